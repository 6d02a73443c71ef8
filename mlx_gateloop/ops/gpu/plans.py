"""The division of a kernel's work, and what of it depends on the device."""

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import mlx.core as mx

from mlx_gateloop.ops.native import MLX_VERSION

Pass = Literal["forward", "backward"]

WIDTH = 32  # channels of a threadgroup, one for each lane
SEGMENTS = (16, 8, 4)  # of a tile; a GPU may allow fewer than the 512 threads that 16 take
STEPS = 8  # of a segment at most; with more the backward pass would not fit into 128 registers
TILE = 64  # steps of the largest tile; parts of a sequence are whole tiles


@dataclass(frozen=True)
class Plan:
    """The division of work: segments per tile, and parts of a sequence in parallel."""

    segments: int
    parts: int = 1

    @property
    def steps(self) -> int:
        """Steps of a segment."""
        return min(STEPS, TILE // self.segments)


@dataclass(frozen=True)
class Tuning:
    """What the best division of work depends on, of one device.

    Args:
        cores: Processors; MLX does not report their number. Twice as many threadgroups are plenty.
        few: Segments where there are fewer threadgroups than that, by `kind`; 16 if not named.
        many: Segments where there are as many; 8 if not named.
        shortest_part: Steps. In shorter parts reading the gates and inputs twice costs more than
            working side by side saves.
    """

    cores: int
    few: Mapping[str, int] = field(default_factory=dict)
    many: Mapping[str, int] = field(default_factory=dict)
    shortest_part: int = 512

    def __str__(self) -> str:
        segments = (f"{k} bits {self.few[k]} or {self.many[k]}" for k in self.few)
        listed = "; ".join(["segments " + ", ".join(segments)] if self.few else [])
        start = f"{self.cores} cores, parts from {self.shortest_part} steps"
        return "; ".join(filter(None, [start, listed]))


DEFAULTS = {"metal": Tuning(32), "cuda": Tuning(132)}  # those of a common GPU of the platform


def kind(name: Pass, dtype: mx.Dtype) -> str:
    """Name the work of a pass on numbers of a type: "forward 32"."""
    return f"{name} {8 * dtype.size}"


def plan(tuning: Tuning, kind: str, B: int, L: int, D: int) -> Plan:
    """Choose more segments for few threadgroups, and parts for very few with long sequences."""
    groups, plenty = B * -(-D // WIDTH), 2 * tuning.cores
    if groups >= plenty:
        return Plan(tuning.many.get(kind, 8))
    few = tuning.few.get(kind, 16)
    parts = min(plenty // groups, L // tuning.shortest_part)
    if parts < 4:  # two passes over the inputs take nearly twice as long as one
        return Plan(few)
    tiles = -(-L // TILE)
    return Plan(few, -(-tiles // -(-tiles // parts)))  # no part without steps


def device() -> str:
    """Name the GPU and MLX's version, for which a tuning is kept."""
    return f"{mx.device_info().get('device_name', '')}, MLX {MLX_VERSION}"


def tunings_file() -> Path:
    """Return the file in the user's cache folder that `gateloop bench ops --tune` writes."""
    cache = Path("Library/Caches") if sys.platform == "darwin" else Path(".cache")
    return Path.home() / cache / "mlx_gateloop" / "tunings.json"


def stored(device: str) -> Tuning | None:
    """Read the tuning of a device; None if there is none that can be used."""
    try:
        return _checked(json.loads(tunings_file().read_text())[device])
    except (OSError, RuntimeError, ValueError, KeyError, TypeError):  # a cache may be anything
        return None


def _checked(found: Any) -> Tuning:
    tuning = Tuning(**found)
    segments = [*dict(tuning.few).values(), *dict(tuning.many).values()]
    numbers = [tuning.cores, tuning.shortest_part, *segments]
    if not all(type(n) is int for n in numbers) or tuning.few.keys() != tuning.many.keys():
        raise TypeError
    if tuning.cores < 1 or tuning.shortest_part < TILE or not {*segments} <= {*SEGMENTS}:
        raise ValueError
    return tuning
