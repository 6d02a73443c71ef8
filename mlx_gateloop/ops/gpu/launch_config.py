"""Launch configuration."""

from dataclasses import dataclass
from typing import Literal

Pass = Literal["forward", "backward"]

WIDTH = 32  # channels of a threadgroup, one for each lane
SEGMENTS = (16, 8, 4)  # per tile; a GPU may allow fewer than the 512 threads that 16 take
STEPS = 8  # per segment at most; with more the backward pass would not fit into 128 registers
TILE = 64  # steps of the largest tile; parts of a sequence are whole tiles
SHORTEST_PART = 512  # steps; in fewer the second read costs more than parallel work saves
# Of a common GPU of the platform, since MLX does not report their number. Two threadgroups a core
# are plenty.
CORES = {"metal": 32, "cuda": 132}


@dataclass(frozen=True)
class Plan:
    """The division of work."""

    segments: int  # per tile
    parts: int = 1  # per sequence, run in parallel

    @property
    def steps(self) -> int:
        return min(STEPS, TILE // self.segments)


def plan(cores: int, B: int, L: int, D: int) -> Plan:
    """Choose parts for few threadgroups with long sequences, and more segments for still few."""
    groups, tiles = B * -(-D // WIDTH), -(-L // TILE)
    parts = min(2 * cores // groups, L // SHORTEST_PART)
    # Two passes over the inputs take nearly twice as long as one. No part is without steps.
    parts = 1 if parts < 4 else -(-tiles // -(-tiles // parts))
    # One threadgroup of 16 segments fills a core with its threads, registers or memory.
    return Plan(8 if groups * parts > cores else 16, parts)
