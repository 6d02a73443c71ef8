"""Where weights come from: one module a source, each with an explicit table of its keys.

A source knows the names and shapes of a checkpoint, nothing of the files that hold it. Names are
joined by dots (`time_mixing_layers_0.model.proj.kernel`), wrappers and prefixes taken off.
"""

from mlx_gateloop.errors import InputError

from . import flax, lucidrains, lucidrains_simple, paper
from .base import Inference, Reference, Shapes, Source, Tensor
from .rules import Rule, Transform

__all__ = [
    "SOURCES",
    "Inference",
    "Reference",
    "Rule",
    "Shapes",
    "Source",
    "Tensor",
    "Transform",
    "detect",
]

SOURCES: dict[str, Source] = {
    lucidrains.KIND: lucidrains,
    lucidrains_simple.KIND: lucidrains_simple,
    paper.KIND: paper,
    flax.KIND: flax,
}


def detect(shapes: Shapes, kind: str | None = None) -> Source:
    """The source of a checkpoint.

    Args:
        shapes: Its names and their shapes.
        kind: A key of SOURCES; None asks each source.

    Raises:
        InputError: No source has such names.
    """
    if kind is not None:
        return SOURCES[kind]
    for source in SOURCES.values():
        if source.recognises(shapes):
            return source
    if {"model.embed_tokens.weight", "model.layers.0.time_mixing.q_proj.weight"} <= shapes.keys():
        raise InputError("weights: this is a model directory of ours already; --to goes back")
    names = ", ".join(ascii(name)[1:-1][:120] for name in sorted(shapes)[:10])
    raise InputError(
        f"weights: names of no known source ({', '.join(SOURCES)}): {names}; name it with --from"
    )
