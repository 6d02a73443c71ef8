"""State files: mlx-lm's prompt caches, with hashes of the model that wrote them."""

import base64
import json
import math
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx.utils import tree_flatten, tree_map, tree_unflatten

from mlx_gateloop.errors import InputError, one_line, shown
from mlx_gateloop.io.files import checksum, require_new, staged
from mlx_gateloop.model.lm import ModelArgs, readable_ids
from mlx_gateloop.model.state import State

MAX_ITEMS = 1_000_000  # of the lists that the names in a file make
DAMAGED = ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError


def hashes(model: nn.Module, tokenizer: Any) -> dict[str, str]:
    """Compute SHA-256 of what a state depends on; the weights as float32, as they are on a CPU."""
    weights: dict[str, mx.array] = dict(tree_flatten(model.parameters()))
    adapter = {name: w for name, w in weights.items() if ".lora_" in name}
    others = {name: w for name, w in weights.items() if name not in adapter}

    def of(arrays: dict[str, mx.array]) -> str:
        def plain(w: mx.array) -> np.ndarray:
            return np.array(w.astype(mx.float32) if mx.issubdtype(w.dtype, mx.floating) else w)

        return checksum((name, plain(w)) for name, w in sorted(arrays.items()))

    args, saved = getattr(model, "args", None) or model.config, {}  # plamo2's name
    if isinstance(args, ModelArgs):  # where a saved model has numbers, a new one may have None
        saved = {"num_heads": args.heads, "num_outputs": args.outputs}
    config = json.dumps(vars(args) | saved, sort_keys=True, default=str)
    texts = {"model": config, "tokenizer": json.dumps(tokenizer.get_vocab(), sort_keys=True)}
    found = {name: checksum([], text) for name, text in texts.items()}
    return found | {"weights": of(others), "adapter": of(adapter)}


def write_state(
    path: str | os.PathLike[str], state: State, model: nn.Module, tokenizer: Any, source: str = ""
) -> None:
    """Write a state to a file; mlx-lm takes it as a prompt cache if its name ends in .safetensors.

    Args:
        path: The file; one that is there is replaced when the new one is complete.
        state: The state of a text that the model has read.
        model: The model that read it.
        tokenizer: The model's tokenizer.
        source: The model's directory or hub id, for mlx-lm.

    Raises:
        InputError: The state is empty, not finite or of several texts, or cannot be written.

    Examples:
        >>> from tempfile import NamedTemporaryFile
        >>> import mlx_gateloop as gl
        >>> model, tokenizer = gl.load("demo")
        >>> with NamedTemporaryFile() as file:
        ...     state = gl.State(model.make_cache())
        ...     state.read(model, tokenizer.encode("Once upon a time"))
        ...     gl.write_state(file.name, state, model, tokenizer)
    """
    write_hashed(path, state, hashes(model, tokenizer), source)


def write_hashed(
    path: str | os.PathLike[str], state: State, hashed: dict[str, str], source: str
) -> None:
    """Write a state as `write_state` does, with hashes that were computed before."""
    from mlx_lm.models.cache import save_prompt_cache

    if Path(path).is_dir():
        raise InputError(f"{path}: a folder; give a file")
    if any(layer.empty() for layer in state.cache):
        raise InputError(f"{path}: the state is empty; read a text before")
    values = [*dict(tree_flatten([layer.state for layer in state.cache])).values(), state.logits]
    arrays = [x for x in values if isinstance(x, mx.array)]
    if any(x.ndim > 2 and len(x) > 1 for x in arrays):
        raise InputError(f"{path}: the state is that of several texts; write one at a time")
    if not all(mx.isfinite(x).all() for x in arrays):
        raise InputError(f"{path}: the state is not finite, as weights or a text can make it")
    facts: dict[str, Any] = {"hashes": hashed, "tokens": state.tokens, "last": state.last}
    facts |= {"source": state.source, "digest": state.digest}
    if state.logits is not None:
        logits = np.array(state.logits.astype(mx.float32), "<f4")
        facts["logits"] = base64.b64encode(logits.tobytes()).decode()
    metadata = {"model": source, "tokenizer_config": "{}", "gateloop": json.dumps(facts)}
    with staged(Path(path)) as partial, partial.open("wb") as file:
        save_prompt_cache(file, state.cache, metadata)


def read_state(path: str | os.PathLike[str], model: nn.Module, tokenizer: Any) -> State:
    """Read a state file.

    Args:
        path: A file of `write_state`, or a prompt cache of mlx-lm, which names no weights: there
            only the shapes are compared.
        model: The model that wrote it.
        tokenizer: The model's tokenizer.

    Returns:
        The state, from which the model continues.

    Raises:
        InputError: No such file, a damaged one, or that of another model.

    Examples:
        >>> import mlx_gateloop as gl
        >>> model, tokenizer = gl.load("demo")
        >>> gl.read_state("book.state", model, tokenizer)
        Traceback (most recent call last):
        mlx_gateloop.errors.InputError: book.state: no such file; gateloop read or tune writes one
    """
    return read_hashed(path, model, hashes(model, tokenizer))


def read_hashed(
    file: str | os.PathLike[str] | BytesIO,
    model: nn.Module,
    hashed: dict[str, str],
    name: str | None = None,
) -> State:
    """Read a state as `read_state` does, with hashes that were computed before.

    A file in memory has a `name` for errors.
    """
    from mlx_lm.models.cache import make_prompt_cache

    path = name or file
    cache = make_prompt_cache(model)
    outputs = model(mx.zeros((1, 1), mx.int32), cache=cache).shape[-1]
    with _reading(file, path) as (arrays, flat):
        metadata, classes, scalars = tree_unflatten(list(flat.items()))
        for entry, kind in scalars[1:]:
            value = np.array(arrays[entry])
            text = "".join(map(chr, value)) if kind == "string" else None
            arrays[entry] = value.item() if kind == "scalar" else text
        saved = tree_unflatten(list(arrays.items()))
        facts = json.loads(metadata.get("gateloop", "{}"))
        state = State(cache, int(facts.get("tokens", 1)), None, [*map(int, facts.get("last", []))])
        state.source, state.digest = int(facts.get("source", 0)), str(facts.get("digest", ""))
        if "logits" in facts:
            state.logits = mx.array(np.frombuffer(base64.b64decode(facts["logits"]), "<f4"))
        other = next((n for n, v in facts.get("hashes", {}).items() if v != hashed[n]), None)
        values = [x for x in [*arrays.values(), state.logits] if isinstance(x, mx.array)]
        is_whole = state.logits is None or state.logits.size == outputs
        in_range = min([state.tokens, state.source, *state.last]) >= 0
        in_range = in_range and max(state.last, default=0) < (readable_ids(model) or 1)
        if not other and not (is_whole and in_range):
            raise ValueError("its tokens or logits are out of range")
        if not all(mx.isfinite(x).all() for x in values):
            raise ValueError("its numbers are not finite")
        fits = [*classes] == [type(layer).__name__ for layer in cache]
        fits = fits and all(map(_fits, saved, (layer.state for layer in cache)))
    if other or not fits:
        writer = f", {shown(metadata['model'])}" if metadata.get("model") else ""
        reason = f"does not match the {other or 'model'}"
        raise InputError(f"{path}: {reason}; load the model that wrote it{writer}")
    for layer, value in zip(cache, saved, strict=True):
        layer.state = tree_map(  # float32 on a CPU, whatever wrote it
            lambda x, like: x.astype(like.dtype) if isinstance(x, mx.array) else x,
            value,
            layer.state,
        )
    mx.eval([layer.state for layer in cache])
    return state


@contextmanager
def _reading(file: str | os.PathLike[str] | BytesIO, path: Any) -> Iterator[Any]:
    """Yield the arrays and the metadata of a state file; a damaged one raises InputError."""
    if not isinstance(file, BytesIO):
        file = os.fspath(file)
        if not Path(file).is_file():
            reason = "not a regular file" if Path(file).exists() else "no such file"
            raise InputError(f"{path}: {reason}; gateloop read or tune writes one")
    try:
        read: Any = mx.load(file, format="safetensors", return_metadata=True)
        if not {"1", "2"} <= {name.partition(".")[0] for name in read[1]}:
            raise ValueError("it has no prompt cache's metadata")
        if sum(map(_list_items, read)) > MAX_ITEMS:
            raise ValueError("its indices are out of range")
        yield read
    except DAMAGED as error:
        expected = "a state of gateloop read or gl.write_state"
        raise InputError(f"{path}: not {expected}: {one_line(error)}") from error


def _list_items(names: Iterable[str]) -> int:
    """Count the items of the lists that names such as "2.0.1" make; a list is filled up to each."""
    longest: dict[str, int] = {}
    for name in names:
        parts = name.split(".", 9)
        for depth, part in enumerate(parts):
            index = int("".join(filter(str.isdecimal, part)) or 0)
            parent = ".".join(parts[:depth])
            longest[parent] = max(longest.get(parent, 0), index)
    return sum(longest.values())


def _fits(saved: Any, fresh: Any) -> bool:
    """Compare shapes and kinds; keys and values `[B, H, L, K]` may be of any length."""

    def shape(x: Any) -> Any:
        if not isinstance(x, mx.array):
            return type(x)
        kind = mx.floating if mx.issubdtype(x.dtype, mx.floating) else x.dtype
        return (kind, x.shape[:2], x.shape[3 if x.ndim == 4 else 2 :])

    pairs = dict(tree_flatten(saved)), dict(tree_flatten(fresh))
    return {n: shape(x) for n, x in pairs[0].items()} == {n: shape(x) for n, x in pairs[1].items()}


def mix(paths: Sequence[str], factors: Sequence[float], out: str) -> None:
    """Write the sum of states of one model, each times its factor; it has no next token."""
    if len(paths) != len(factors):
        raise InputError(f"--factors: expected {len(paths)}, one per state, got {len(factors)}")
    require_new(Path(out))
    if not all(map(math.isfinite, factors)):
        raise InputError(f"--factors: expected finite numbers, got {', '.join(map(str, factors))}")
    (first, metadata, facts), *_ = files = [_read(path) for path in paths]
    for path, (arrays, _, others) in zip(paths, files, strict=True):
        shapes = [{n: x.shape for n, x in each.items()} for each in (arrays, first)]
        if others["hashes"] != facts["hashes"] or shapes[0] != shapes[1]:
            raise InputError(f"{path}: from another model than {paths[0]}; mix states of one model")
    if not all(x.ndim for x in first.values()):  # an offset of keys and values
        raise InputError(f"{paths[0]}: a state of attention, whose tokens have no sum; mix others")
    mixed, pairs = {}, [*zip(factors, files, strict=True)]
    for name, array in first.items():
        parts = [factor * file[0][name].astype(mx.float32) for factor, file in pairs]
        mixed[name] = sum(parts[1:], parts[0]).astype(array.dtype)
        if not mx.isfinite(mixed[name]).all():
            raise InputError("--factors: the sum is not finite; give smaller ones")
    facts = {"hashes": facts["hashes"], "tokens": 0, "last": [], "source": 0}
    with staged(Path(out)) as partial, partial.open("wb") as file:
        mx.save_safetensors(file, mixed, metadata | {"0.gateloop": json.dumps(facts)})


def describe(path: str) -> dict[str, str]:
    """Return what a state file holds by name: model, tokens, each layer's size and magnitude."""
    arrays, metadata, facts = _read(path)
    name = metadata.get("0.model")
    lines = {"model": shown(name) if name else "unnamed"}
    lines["tokens read"] = f"{facts['tokens']:,}" if facts["tokens"] else "none: tuned or mixed"
    for name, array in sorted(arrays.items(), key=lambda pair: (pair[0].find("."), pair[0])):
        if array.size:  # an empty array stands for no padding
            root = mx.sqrt(mx.mean(array.astype(mx.float32) ** 2)).item()
            lines[f"layer {name}"] = f"{list(array.shape)}, root mean square {root:.3g}"
    return lines


def _read(path: str) -> tuple[dict[str, mx.array], dict[str, str], dict[str, Any]]:
    """Read the arrays of a state file of ours, its metadata, and our facts in that."""
    with _reading(path, path) as (arrays, metadata):
        ours = tree_unflatten(list(metadata.items()))[0].get("gateloop")
        if ours is None:
            raise ValueError("another program's prompt cache")
        facts = json.loads(ours)
        facts["hashes"], facts["tokens"] = dict(facts["hashes"]), int(facts["tokens"])
    return arrays, metadata, facts
