"""The memory of a model: traces of its state transitions, and their recording."""

from mlx_gateloop.watch.recorder import Recorder, recording, trace_of
from mlx_gateloop.watch.trace import Trace, total_bytes

__all__ = ["Recorder", "Trace", "recording", "total_bytes", "trace_of"]
