"""State files without their model: what they hold, and weighted sums of them."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.utils import tree_unflatten

from mlx_gateloop.errors import InputError, one_line
from mlx_gateloop.io.files import staged
from mlx_gateloop.io.states import EXPECTED

Arrays = dict[str, mx.array]


def mix(paths: Sequence[str], factors: Sequence[float], out: str | os.PathLike[str]) -> None:
    """Write the sum of states, each times its factor.

    The sum of states that were read forgets the next token and the last ones; that of tuned states
    has none.

    Args:
        paths: State files of one model.
        factors: A number for each.
        out: The new file.

    Raises:
        InputError: Files of different models, or another number of factors.
    """
    if len(paths) != len(factors):
        raise InputError(f"--factors: expected {len(paths)}, one a state, got {len(factors)}")
    files = [_read(path) for path in paths]
    first, metadata, facts = files[0]
    for path, (arrays, _, others) in zip(paths[1:], files[1:], strict=True):
        same = {n: (x.shape, x.dtype) for n, x in arrays.items()}
        if others["hashes"] != facts["hashes"] or same != {
            n: (x.shape, x.dtype) for n, x in first.items()
        }:
            raise InputError(f"{path}: of another model than {paths[0]}; mix states of one model")
    mixed, pairs = {}, [*zip(factors, files, strict=True)]
    for name, array in first.items():
        parts = [f * arrays[name].astype(mx.float32) for f, (arrays, _, _) in pairs]
        mixed[name] = sum(parts[1:], parts[0]).astype(array.dtype)
    facts = {"hashes": facts["hashes"], "tokens": 0, "last": [], "source": 0}
    with staged(Path(out)) as partial, partial.open("wb") as file:
        mx.save_safetensors(file, mixed, metadata | {"0.gateloop": json.dumps(facts)})


def describe(path: str) -> dict[str, str]:
    """Return what a state file holds by name: its model, its tokens, each layer's size and norm."""
    arrays, metadata, facts = _read(path)
    model = metadata.get("0.model") or "unnamed"
    lines = {"model": model, "weights": facts["hashes"]["weights"][:12]}
    lines["tokens read"] = f"{facts['tokens']:,}" if facts["tokens"] else "none: tuned or mixed"
    for name, array in arrays.items():
        if not array.size:  # no padding
            continue
        root = mx.sqrt(mx.mean(array.astype(mx.float32) ** 2)).item()
        lines[f"layer {name}"] = f"{list(array.shape)}, root mean square {root:.3g}"
    return lines


def _read(path: str) -> tuple[Arrays, dict[str, str], dict[str, Any]]:
    """Read the arrays of a state file, its metadata, and our facts in that."""
    if not Path(path).is_file():
        raise InputError(f"{path}: no such state file; gateloop read or tune writes one")
    try:
        loaded: Any = mx.load(path, format="safetensors", return_metadata=True)
        arrays, metadata = loaded
        facts = json.loads(tree_unflatten(list(metadata.items()))[0]["gateloop"])
        if not {"hashes", "tokens"} <= facts.keys():
            raise KeyError("hashes")
    except (RuntimeError, ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise InputError(f"{path}: not {EXPECTED}: {one_line(error)}") from error
    return arrays, metadata, facts
