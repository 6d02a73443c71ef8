"""Print requirements.txt: what the installed package and its extra `all` declare."""

import re
from importlib.metadata import requires

HEADER = """\
# Made by `make requirements` from pyproject.toml: the package's dependencies with extra `all`."""

OUTSIDE = 'extra == "torch"'  # `all` leaves it out


def text() -> str:
    lines = {HEADER: None}
    for requirement in requires("mlx-gateloop") or []:
        if not requirement.startswith("mlx-gateloop[") and not requirement.endswith(OUTSIDE):
            line = re.sub(r"\s*(;|and) extra == .*", "", requirement)
            lines[line] = None  # in their order, each once
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    print(text(), end="")
