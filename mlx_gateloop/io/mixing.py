"""State files without their model: what they hold, and weighted sums of them."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.utils import tree_unflatten

from mlx_gateloop.errors import InputError, one_line
from mlx_gateloop.io.files import staged
from mlx_gateloop.io.states import EXPECTED


def mix(paths: Sequence[str], factors: Sequence[float], out: str) -> None:
    """Write the sum of states of one model, each times its factor; it has no next token."""
    if len(paths) != len(factors):
        raise InputError(f"--factors: expected {len(paths)}, one per state, got {len(factors)}")
    (first, metadata, facts), *_ = files = [_read(path) for path in paths]
    for path, (arrays, _, others) in zip(paths, files, strict=True):
        shapes = [{n: (x.shape, x.dtype) for n, x in each.items()} for each in (arrays, first)]
        if others["hashes"] != facts["hashes"] or shapes[0] != shapes[1]:
            raise InputError(f"{path}: from another model than {paths[0]}; mix states of one model")
    mixed, pairs = {}, [*zip(factors, files, strict=True)]
    for name, array in first.items():
        parts = [factor * file[0][name].astype(mx.float32) for factor, file in pairs]
        mixed[name] = sum(parts[1:], parts[0]).astype(array.dtype)
    facts = {"hashes": facts["hashes"], "tokens": 0, "last": [], "source": 0}
    with staged(Path(out)) as partial, partial.open("wb") as file:
        mx.save_safetensors(file, mixed, metadata | {"0.gateloop": json.dumps(facts)})


def describe(path: str) -> dict[str, str]:
    """Return what a state file holds by name: model, tokens, each layer's size and magnitude."""
    arrays, metadata, facts = _read(path)
    lines = {"model": metadata.get("0.model") or "unnamed"}
    lines["tokens read"] = f"{facts['tokens']:,}" if facts["tokens"] else "none: tuned or mixed"
    for name, array in arrays.items():
        if array.size:  # an empty array stands for no padding
            root = mx.sqrt(mx.mean(array.astype(mx.float32) ** 2)).item()
            lines[f"layer {name}"] = f"{list(array.shape)}, root mean square {root:.3g}"
    return lines


def _read(path: str) -> tuple[dict[str, mx.array], dict[str, str], dict[str, Any]]:
    """Read the arrays of a state file, its metadata, and our facts in that."""
    if not Path(path).is_file():
        raise InputError(f"{path}: no such state file; gateloop read or tune writes one")
    try:
        arrays: Any
        metadata: Any
        arrays, metadata = mx.load(path, format="safetensors", return_metadata=True)
        facts = json.loads(tree_unflatten(list(metadata.items()))[0]["gateloop"])
        facts["hashes"], facts["tokens"] = dict(facts["hashes"]), int(facts["tokens"])
    except (RuntimeError, ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise InputError(f"{path}: not {EXPECTED}: {one_line(error)}") from error
    return arrays, metadata, facts
