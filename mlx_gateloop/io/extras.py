"""Optional dependencies: the extras of the installed package, and what is missing of each."""

import re
from importlib.metadata import PackageNotFoundError, requires, version

from mlx_gateloop.errors import InputError

_REQUIREMENT = re.compile(r"""([\w.-]+).*extra == ["'](\w+)["']""")


def missing() -> dict[str, list[str]]:
    """The distributions that are not installed, by extra; an extra without any is complete."""
    return {
        extra: [name for name in names if installed(name) is None]
        for extra, names in _declared().items()
    }


def check(extra: str) -> None:
    """Raise if an extra is not completely installed, saying how to install it; "" needs nothing."""
    if names := missing().get(extra):
        raise InputError(absent(extra, names))


def advice(module: str) -> str | None:
    """One line that says how to get a missing module; None if no extra brings it."""
    if module in ("mlx_gateloop.app", "mlx_gateloop.convert"):
        return f"{module}: the source tree is not installed; run: pip install -e ."
    for extra, names in _declared().items():
        if module.split(".")[0].replace("_", "-") in names:
            return absent(extra, [module])
    return None


def _declared() -> dict[str, list[str]]:
    try:
        requirements = requires("mlx-gateloop") or []
    except PackageNotFoundError:  # a source tree that was not installed
        return {}
    extras: dict[str, list[str]] = {}
    for requirement in requirements:
        match = _REQUIREMENT.match(requirement)
        if match and match[2] != "all":  # it names the other extras
            extras.setdefault(match[2], []).append(match[1])
    return extras


def installed(name: str) -> str | None:
    """The version of a distribution; None if it is not installed."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def absent(extra: str, names: list[str]) -> str:
    """One line that says how to install what is missing of an extra."""
    return f'{", ".join(names)}: not installed; run: pip install "mlx-gateloop[{extra}]"'
