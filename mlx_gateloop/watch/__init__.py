"""The memory of a model: recording and analysis of its state transitions."""

from mlx_gateloop.watch.ablation import depends, without
from mlx_gateloop.watch.editing import Edit, channels, edit
from mlx_gateloop.watch.instrument import Instrumented
from mlx_gateloop.watch.lens import lens
from mlx_gateloop.watch.page import page
from mlx_gateloop.watch.recordings import Recording, recording, trace_of
from mlx_gateloop.watch.sharing import Counterfactual, share
from mlx_gateloop.watch.trace import Trace

__all__ = [
    "Counterfactual", "Edit", "Instrumented", "Recording", "Trace", "channels", "depends", "edit",
    "lens", "page", "recording", "share", "trace_of", "without",
]  # fmt: skip
