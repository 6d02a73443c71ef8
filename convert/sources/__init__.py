"""Formats of checkpoints: one class each, with an explicit table of tensor names."""

import re
from typing import Any

from mlx_gateloop.errors import InputError

from .base import Shapes, Source
from .fla import Fla
from .flax import Flax
from .jax import Jax
from .lucidrains import Lucidrains
from .paper import Paper

# Any: each source has arguments of its own type
SOURCES: dict[str, Source[Any]] = {
    source.kind: source for source in (Lucidrains(), Paper(), Flax(), Jax(), Fla({}, {}))
}
# A model of a known source within a larger one, and a layer.
PART = re.compile(
    r"(.+)\.(layers\.0\.(0\.fn\.to_a\.0|gamma)|time_mixing_layers_0\.model\.proj)\.\w+"
)
LAYER = re.compile(r"(.*)\bto_qkva\.0\.weight")


def detect(shapes: Shapes, kind: str | None = None) -> Source[Any]:
    """Find the source with these names and shapes of tensors, or by a key of SOURCES."""
    for source in [SOURCES[kind]] if kind else SOURCES.values():
        if source.recognises(shapes):
            return source
    if part := next(filter(None, map(PART.fullmatch, sorted(shapes))), None):
        prefix, advice = ascii(part[1][:120]), "save that module's state_dict() alone"
        raise InputError(f"GateLoop layers under the prefix {prefix}; {advice}")
    if any(map(LAYER.fullmatch, shapes)):
        raise InputError("GateLoop layers, not a language model; --layers converts them")
    if kind:
        return SOURCES[kind]
    if {"model.embed_tokens.weight", "model.layers.0.time_mixing.v_proj.weight"} <= shapes.keys():
        raise InputError("already a model directory of ours; use it as it is")
    names = ", ".join(ascii(name)[1:-1][:120] for name in sorted(shapes)[:10])
    raise InputError(f"no known source ({', '.join(SOURCES)}): has the names {names}; give --from")
