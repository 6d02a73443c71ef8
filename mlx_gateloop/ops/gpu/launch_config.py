"""Launch configuration and per-device tuning."""

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import mlx.core as mx

from mlx_gateloop.ops.cpu import MLX_VERSION

Pass = Literal["forward", "backward"]
Join = tuple[int, bool]  # segments, and `fold`

WIDTH = 32  # channels of a threadgroup, one for each lane
SEGMENTS = (16, 8, 4)  # per tile; a GPU may allow fewer than the 512 threads that 16 take
STEPS = 8  # per segment at most; with more the backward pass would not fit into 128 registers
TILE = 64  # steps of the largest tile; parts of a sequence are whole tiles


@dataclass(frozen=True)
class Plan:
    """The division of work."""

    segments: int  # per tile
    parts: int = 1  # per sequence, run in parallel
    # each thread joins earlier segments one by one; else Hillis and Steele's scan does, in
    # log2(segments) rounds
    fold: bool = False

    @property
    def steps(self) -> int:
        return min(STEPS, TILE // self.segments)


@dataclass(frozen=True)
class Tuning:
    """Measured settings of one device; two threadgroups a core are plenty."""

    cores: int  # MLX does not report their number
    # by `kind`: if each threadgroup has a core for itself, by default (16, False); and for more,
    # (8, False), as one of 16 segments fills a core with its threads, registers or memory
    few: Mapping[str, Join] = field(default_factory=dict)
    many: Mapping[str, Join] = field(default_factory=dict)
    shortest_part: int = 512  # steps; in fewer the second read costs more than parallel work saves

    def __str__(self) -> str:
        def shown(join: Join) -> str:
            return f"{join[0]}{' folded' if join[1] else ''}"

        start = f"{self.cores} cores, parts from {self.shortest_part} steps"
        each = (f"{k} bits {shown(self.few[k])} or {shown(self.many[k])}" for k in self.few)
        return f"{start}; segments {', '.join(each)}" if self.few else start


DEFAULTS = {"metal": Tuning(32), "cuda": Tuning(132)}  # those of a common GPU of the platform


def kind(name: Pass, dtype: mx.Dtype) -> str:
    """Name the work of a pass on numbers of a type: "forward 32"."""
    return f"{name} {8 * dtype.size}"


def plan(tuning: Tuning, kind: str, B: int, L: int, D: int) -> Plan:
    """Choose parts for few threadgroups with long sequences, and more segments for still few."""
    groups, tiles = B * -(-D // WIDTH), -(-L // TILE)
    parts = min(2 * tuning.cores // groups, L // tuning.shortest_part)
    # Two passes over the inputs take nearly twice as long as one. No part is without steps.
    parts = 1 if parts < 4 else -(-tiles // -(-tiles // parts))
    if groups * parts > tuning.cores:
        segments, fold = tuning.many.get(kind, (8, False))
    else:
        segments, fold = tuning.few.get(kind, (16, False))
    return Plan(segments, parts, fold)


def device() -> str:
    """Name the GPU and MLX's version, for which a tuning is stored."""
    return f"{mx.device_info().get('device_name', '')}, MLX {MLX_VERSION}"


def tunings_file() -> Path:
    """Return the file in the user's cache folder that `gateloop bench ops --tune` writes."""
    if sys.platform == "darwin":
        cache = Path.home() / "Library" / "Caches"
    else:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "mlx_gateloop" / "tunings.json"


def stored(device: str) -> Tuning | None:
    """Read the tuning of a device; None if there is none that can be used."""
    try:
        return _checked(json.loads(tunings_file().read_text())[device])
    except Exception:  # the file may hold anything; then there is no tuning
        return None


def _checked(found: Any) -> Tuning:
    few, many = (
        {str(kind): (segments, fold) for kind, (segments, fold) in found[name].items()}
        for name in ("few", "many")
    )
    tuning = Tuning(**found | {"few": few, "many": many})
    joins = [*few.values(), *many.values()]
    numbers = [tuning.cores, tuning.shortest_part, *(segments for segments, _ in joins)]
    if any(type(n) is not int for n in numbers) or any(type(fold) is not bool for _, fold in joins):
        raise TypeError
    if not {segments for segments, _ in joins} <= {*SEGMENTS} or few.keys() != many.keys():
        raise ValueError
    if tuning.cores < 1 or tuning.shortest_part < TILE:
        raise ValueError
    return tuning
