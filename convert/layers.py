"""The GateLoop layers inside a checkpoint of any model, written as one file."""

import re
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

from mlx_gateloop import __version__
from mlx_gateloop.errors import InputError, printable
from mlx_gateloop.io.files import staged
from mlx_gateloop.io.layers import save_layers

from .output import check_target
from .plan import Plan, first, plan_of
from .reading.find import Checkpoint, find
from .sources.base import Format
from .sources.lucidrains import Full, Simple

# A tensor that every layer of a kind has, below the layer's name.
KINDS: dict[str, tuple[Format[Any], re.Pattern[str]]] = {
    "simple": (Simple(), re.compile(r"(?:(.*)\.)?to_qkva\.0\.weight")),
    "full": (Full(), re.compile(r"(?:(.*)\.)?to_a\.0\.weight")),
}
CARD = """---
library_name: mlx
tags:
- mlx
- gateloop
---

# {name}

{count} GateLoop layers of `{origin}`, converted by mlx_gateloop {version}. A simple layer is
gateloop-transformer's `SimpleGateLoopLayer`, a full one its `GateLoopedAttention`.

| layer | kind | width | heads |
| --- | --- | --- | --- |
{rows}

```python
import mlx_gateloop as gl

layers = gl.load_layers(".")
y, state = layers[{example!r}](x)  # as there, without a skip connection; also state, reverse=True
```

| file | SHA-256 |
| --- | --- |
{hashes}
"""


def convert_layers(options: Namespace) -> None:
    """Write the layers of a checkpoint; list them only in a dry run."""
    names = ("kind", "dtype", "quantize", "verify", "tokenizer", "settings", "set")
    if given := [name for name in names if getattr(options, name)]:
        flag = {"kind": "from"}.get(given[0], given[0])
        raise InputError(f"--layers: cannot be combined with --{flag}; leave it out")
    checkpoint = find(options.source, options.ema)
    check_target(options.out, checkpoint.files, options.force)
    plans = find_layers(checkpoint)
    table = [(n, kind, plan.args.hidden_size, plan.args.heads) for n, (kind, plan) in plans.items()]
    for name, kind, width, heads in table:
        print(printable(f"{name or 'the layer'}: {kind}, width {width}, {heads} heads"))
    for note in checkpoint.notes:
        print(f"note: {note}")
    if options.dry_run:
        print(f"dry run: nothing was written to {options.out}")
        return
    layers = {}
    for name, (_, plan) in plans.items():
        layer, not_finite = plan.load()
        layers[name] = plan.args, layer
        if not_finite:
            warning = f"NaN or infinity in {len(not_finite)} tensors: {first(not_finite)}"
            print(printable(f"warning: {name or 'the layer'}: {warning}"), file=sys.stderr)
    with staged(options.out) as directory:
        save_layers(layers, directory)
        hashes = checkpoint.hashes().items()
        card = CARD.format(
            name=options.out.name,
            count=len(plans),
            origin=Path(options.source).name,
            version=__version__,
            rows="\n".join(printable(f"| `{n}` | {k} | {w} | {h} |") for n, k, w, h in table),
            example=next(iter(plans)),
            hashes="\n".join(f"| `{n}` | `{digest}` |" for n, digest in hashes),
        )
        (directory / "README.md").write_text(card, encoding="utf-8")
    print(f"wrote {options.out}")


def find_layers(checkpoint: Checkpoint) -> dict[str, tuple[str, Plan]]:
    """Find the layers by their names in the checkpoint, each with its kind, and check them."""
    found = {}
    for key in checkpoint.shapes:
        for kind, (source, pattern) in KINDS.items():
            if match := pattern.fullmatch(key):
                part = checkpoint.part(f"{match[1]}." if match[1] else "")
                if kind == "simple" or "to_qkv.weight" in part.shapes:
                    found[match[1] or ""] = kind, plan_of(source, part, {})
    if not found:
        expected = "keys that end in to_qkva.0.weight, or in to_qkv.weight and to_a.0.weight"
        problem = f"no GateLoop layer: expected {expected}, got {first(checkpoint.shapes, 5)}"
        raise InputError(f"{checkpoint.origin}: {problem}")
    return found
