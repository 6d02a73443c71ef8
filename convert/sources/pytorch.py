"""A PyTorch model as the reference of its own weights."""

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import numpy as np

from .base import Tensor


def load_weights(model: Any, tensor: Tensor) -> None:
    """Load a checkpoint's weights into a torch module in float32, and switch dropout off."""
    import torch

    state = {
        name: torch.from_numpy(np.array(tensor(name).astype(mx.float32)))
        for name in model.state_dict()
    }
    model.load_state_dict(state)
    model.eval()


class TorchReference:
    """A torch module with its weights; see `Reference`. `blocks` have the hidden states."""

    def __init__(self, model: Any, blocks: Sequence[Any]) -> None:
        self._model, self._blocks = model, blocks

    def logits(self, tokens: np.ndarray) -> np.ndarray:
        import torch

        with torch.no_grad():
            result: np.ndarray = self._model(torch.from_numpy(tokens)).numpy()
        return result

    def hidden_states(self, tokens: np.ndarray) -> list[np.ndarray]:
        states: list[np.ndarray] = []
        hooks = [
            block.register_forward_hook(lambda _module, _inputs, y: states.append(y.numpy()))
            for block in self._blocks
        ]
        try:
            self.logits(tokens)
        finally:
            for hook in hooks:
                hook.remove()
        return states
