"""The tokenizer of converted weights, which do not say which it was."""

from pathlib import Path
from typing import Any

from mlx_gateloop.configuration import read_json
from mlx_gateloop.errors import InputError, shortened
from mlx_gateloop.io.models import HUB_ID, refusing
from mlx_gateloop.tokenizer import byte_tokenizer, from_sentencepiece, largest_id

from .reading.find import download

NAMES = ("tokenizer.json", "tokenizer.model")
TOKENIZER_FILES = ["*.json", "*.model", "*.jinja", "*.txt"]


def load_tokenizer(name: str | None, directory: Path, vocab_size: int) -> tuple[Any, str]:
    """Load the tokenizer that a user names, or the one beside the weights; return its origin too.

    The name is a `.model` file, a `tokenizer.json`, a directory, "bytes", or a hub id.
    """
    if name is None:
        found = [directory / file for file in NAMES if (directory / file).exists()]
        if not found:
            advice = "give --tokenizer: a .model file, a tokenizer.json, bytes, or a hub id"
            raise InputError(f"{directory}: no tokenizer beside the weights; {advice}")
        name = str(found[0])
    tokenizer, origin = _load(name, vocab_size)
    config = directory / "config.json"
    ends = read_json(config) if config.is_file() else {}
    for end in ("bos", "eos"):  # a tokenizer.json alone does not name them
        ids = ends.get(f"{end}_token_id")
        first = ids[0] if isinstance(ids, list) and ids else ids
        if first in range(len(tokenizer)) and getattr(tokenizer, f"{end}_token") is None:
            setattr(tokenizer, f"{end}_token", tokenizer.convert_ids_to_tokens(first))
    if (largest := largest_id(tokenizer)) >= vocab_size:
        reason = f"has ids up to {largest}, the model has {vocab_size} entries"
        raise InputError(f"--tokenizer {name}: {reason}; give the tokenizer of its training")
    return tokenizer, origin


def _load(name: str, vocab_size: int) -> tuple[Any, str]:
    path = Path(name).expanduser()
    if name == "bytes":
        tokenizer = byte_tokenizer()
        if len(tokenizer) <= vocab_size:
            return tokenizer, "bytes, then special tokens"
        return byte_tokenizer(special=False), "bytes, without special tokens"
    if path.suffix == ".model" and path.is_file():
        return from_sentencepiece(path, vocab_size), f"sentencepiece, {path.name}"
    if path.name == "tokenizer.json" and (path.parent / "tokenizer_config.json").is_file():
        path = path.parent
    if path.exists():
        return _with_transformers(path), f"directory {path.name}" if path.is_dir() else path.name
    if HUB_ID.fullmatch(name) and path.suffix not in (".model", ".json"):
        return _with_transformers(download(name, TOKENIZER_FILES)), f"hub, {name}"
    raise InputError(f"--tokenizer {shortened(name)}: no such file, directory or hub id")


def _with_transformers(path: Path) -> Any:
    """Load a directory, or a tokenizer.json alone."""
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    with refusing(f"--tokenizer {path}", "cannot be loaded"):
        if path.is_file():
            return PreTrainedTokenizerFast(tokenizer_file=str(path))
        # without it, transformers asks on the terminal whether to run the repository's code
        return AutoTokenizer.from_pretrained(str(path), trust_remote_code=False)
