"""Checks of a model's files: inside the folder, without code, and with matching checksums."""

from collections.abc import Sequence
from pathlib import Path

from mlx_gateloop.configuration import read_json
from mlx_gateloop.errors import InputError
from mlx_gateloop.io.files import sha256
from mlx_gateloop.model.registered import MODELS

SUMS = "SHA256SUMS"
CODE_KEYS = ("model_file", "auto_map")  # in config.json and tokenizer_config.json


def is_inside(path: Path, roots: Sequence[Path]) -> bool:
    """Return True if a file, after resolving links, is inside one of the folders."""
    try:
        resolved = path.resolve()
    except (OSError, RuntimeError):  # a link to itself
        return False
    return any(resolved.is_relative_to(root) for root in roots)


def reject_code(name: str, path: Path) -> None:
    """Raise InputError if a model's configuration refers to code."""
    for file in ("config.json", "tokenizer_config.json"):
        config = read_json(path / file) if (path / file).exists() else {}
        forbidden = set(CODE_KEYS)
        if file == "config.json":
            # Ours may name a file, which `save` writes and the app never runs. For other types,
            # mlx-lm has its own classes in place of those in `auto_map`.
            forbidden -= {"model_file" if str(config.get("model_type")) in MODELS else "auto_map"}
        for key in sorted(config.keys() & forbidden):
            raise InputError(f"{name}/{file}: {key} would run repository code; not allowed")


def verify_checksums(name: str, path: Path, digests: dict[str, str]) -> None:
    """Compare every listed and every loaded file with SHA256SUMS."""
    expected = {}
    for line in (path / SUMS).read_text(encoding="utf-8").splitlines():
        digest, _, file = line.partition(" ")
        expected[file.strip().removeprefix("*")] = digest
    for file in sorted(expected.keys() | digests.keys()):
        if file not in expected:
            raise InputError(f"{name}/{file}: is not listed in {SUMS}; remove the file or the list")
        found = digests.get(file)
        if found is None and is_inside(path / file, [path.resolve()]) and (path / file).is_file():
            found = sha256(path / file)
        if found != expected[file]:
            raise InputError(f"{name}/{file}: differs from {SUMS}; download this model again")
