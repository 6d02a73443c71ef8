"""The GateLoop operator; its modules need nothing but MLX."""

from mlx_gateloop.ops.convolution import convolve
from mlx_gateloop.ops.gate_loop import gate_loop, gate_loop_softmax, linear_scan
from mlx_gateloop.ops.transition import Transition

__all__ = ["Transition", "convolve", "gate_loop", "gate_loop_softmax", "linear_scan"]
