"""Launches of the kernels of heads."""

from dataclasses import dataclass
from typing import Literal

import mlx.core as mx

from mlx_gateloop.ops.gpu.kernels import INTERVAL, Arrays, Kernels, Outputs, Variant
from mlx_gateloop.ops.gpu.launch_config import WIDTH

Task = Literal["outputs", "states", "effects", "adjoints", "backward"]
TASKS: tuple[Task, ...] = ("outputs", "states", "effects", "adjoints")  # in heads_forward.inc

# Arrays in the order of the kernels' parameters, and those that a task reads and writes.
GATED = ["q", "k", "v", "first", "second", "mask"]
EARLIER = ["products", "ends"]  # the effects of parts: products of transitions, states from zero
FORWARD = ([*GATED, "h0", *EARLIER], ["y", "h1", "states", "decay"])
BACKWARD = (
    [*GATED, "states", "dy", "dh1", *EARLIER],
    ["dq", "dk", "dv", "dfirst", "dsecond", "dh0"],
)
USED: dict[Task, set[str]] = {
    "outputs": {*FORWARD[0], "y", "h1"},
    "states": {*FORWARD[0], "states"} - {"q"},
    "effects": {*GATED, "decay", "h1"} - {"q"},
    "adjoints": {*GATED, "decay", "h1"} - {"q"},
    "backward": {*BACKWARD[0], *BACKWARD[1]},
}
# Outputs of the shape of an input, but for tiles of a state and keys that share a transition.
LIKE = {"y": "v", "dq": "q", "dk": "k", "dv": "v", "dfirst": "first", "dsecond": "first"}


@dataclass(frozen=True)
class HeadsPlan:
    """The division of work."""

    segments: int  # simdgroups of a threadgroup
    values: int = 1  # per lane; backward, per thread: 4, or 8 if the state is real
    parts: int = 1  # per sequence, run in parallel

    def tile(self, task: Task) -> tuple[int, int]:
        """Keys and values of a threadgroup; forward a thread has 8 keys, backward one."""
        if task == "backward":
            return WIDTH, self.values * self.segments
        return 8 * self.segments, WIDTH * self.values

    def tiles(self, task: Task, K: int, V: int) -> tuple[int, int]:
        """Tiles of a state along its keys and along its values."""
        keys, values = self.tile(task)
        return -(-K // keys), -(-V // values)

    def steps(self, task: Task) -> int:
        """Steps of a tile; backward, steps with sums in shared memory at a time."""
        return 4 if task == "backward" else min(8, 64 // self.segments)


def launch(kernels: Kernels, task: Task, variant: Variant, cut: HeadsPlan, x: Arrays) -> Arrays:
    """Launch a task once; arrays are of steps, parts and states; results are by name."""
    arrays = BACKWARD if task == "backward" else FORWARD
    name = "heads_backward" if task == "backward" else "heads_forward"
    outputs = _outputs(task, variant, cut, x)
    B, _, H, K = x["k"].shape
    key_tiles, value_tiles = cut.tiles(task, K, x["v"].shape[-1])
    keys, values = cut.tile(task)
    written = {"Out": "y"}
    if task == "backward":
        written = {"OutKey": "dk", "OutValue": "dv", "OutGate": "dfirst"}
    template = variant.template(x, cut.segments, cut.steps(task))
    template += [(kind, outputs[of][1]) for kind, of in written.items()]
    template += [] if task == "backward" else [("TASK", TASKS.index(task))]
    template += [("KEYS", keys), ("VALUES", values)]
    grid = (WIDTH * B * cut.parts * H * key_tiles * value_tiles, cut.segments, 1)
    results = kernels.launch(name, arrays, USED[task] - variant.absent, x, outputs, template, grid)
    return {n: _whole(array, x[LIKE[n]]) if n in LIKE else array for n, array in results.items()}


def _outputs(task: Task, variant: Variant, cut: HeadsPlan, x: Arrays) -> Outputs:
    """Shapes and dtypes; what has several tiles, or is summed over keys, is float32."""
    B, L, H, K = x["k"].shape
    V, G, P = x["v"].shape[-1], x["first"].shape[-1], variant.planes
    T, gate, f32 = x["k"].dtype, x["first"].dtype, mx.float32
    key_tiles, value_tiles = cut.tiles(task, K, V)
    by_key = (value_tiles, B, L, H, K), T if value_tiles == 1 else f32
    by_gate = by_key[0], gate if value_tiles == 1 and G == K else f32
    by_value = (key_tiles, B, L, H, V), T if key_tiles == 1 else f32
    runs = B * cut.parts if task in ("effects", "adjoints") else B
    states = {
        "h1": (runs, P, H, K, V),
        "states": (B, -(-L // INTERVAL), P, H, K, V),
        "decay": (runs, P, H, K),
        "dh0": (B, P, H, K, V),
    }
    outputs = {"y": by_value, "dq": by_key, "dk": by_key, "dv": by_value}
    outputs |= {"dfirst": by_gate, "dsecond": by_gate}
    return outputs | {name: (shape, f32) for name, shape in states.items()}


def _whole(array: mx.array, like: mx.array) -> mx.array:
    """Sum over tiles, and over the keys of a head that share a transition."""
    if array.shape[-1] > like.shape[-1]:
        array = array.sum(-1, keepdims=True)
    array = array.sum(0) if array.shape[0] > 1 else array.squeeze(0)
    return array.astype(like.dtype)
