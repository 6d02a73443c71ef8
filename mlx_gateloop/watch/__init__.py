"""The memory of a model: traces of its state transitions, and their recording."""

from mlx_gateloop.watch.attach import Tapped
from mlx_gateloop.watch.dependence import depends, without
from mlx_gateloop.watch.endless import EndlessTrace, total_bytes
from mlx_gateloop.watch.fading import fading
from mlx_gateloop.watch.recorder import Recorder, recording_cache, trace_of
from mlx_gateloop.watch.recordings import Recording, recording
from mlx_gateloop.watch.sharing import Forgotten, share
from mlx_gateloop.watch.trace import Trace

__all__ = [
    "EndlessTrace",
    "Forgotten",
    "Recorder",
    "Recording",
    "Tapped",
    "Trace",
    "depends",
    "fading",
    "recording",
    "recording_cache",
    "share",
    "total_bytes",
    "trace_of",
    "without",
]
