"""The gradient of sequences that are too long for the memory, a part of their length at a time.

Forward, only the states before each part are kept. Backward, from the last part to the first, each
is computed again from its state, with the gradient of the state after it as a part of its loss.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_map

from mlx_gateloop.train.fused_update import Tree

Losses = Callable[..., Any]
States = list[mx.array]


def make_chunked_gradients(
    model: nn.Module, losses: Losses, chunk: int
) -> Callable[[mx.array, mx.array, mx.array], tuple[mx.array, Tree]]:
    """Build a batch's summed loss and its scaled gradient, as `step` does for whole sequences.

    The model has no attention and no dropout. `losses` goes from parameters, inputs, answers, scale
    and a cache to the scaled loss and the sum.
    """

    def cached(states: list[Any]) -> list[Any]:
        caches = model.make_cache()
        for cache, state in zip(caches, states, strict=True):
            cache[0] = state
        return list(caches)

    @partial(mx.compile, inputs=[model.state], outputs=[model.state])
    def states_after(states: States, inputs: mx.array) -> States:
        caches = cached(states)
        parameters = model.trainable_parameters()
        losses(parameters, inputs, inputs, mx.array(1.0), caches)
        model.update(parameters)
        return [cache[0] for cache in caches]

    def with_future(
        parameters: Tree, states: States, future: States, *arrays: mx.array
    ) -> tuple[mx.array, mx.array]:
        """Add the states after the part times the gradient by them: a loss with their gradient."""
        caches = cached(states)
        loss, total = losses(parameters, *arrays, caches)
        for cache, gradient in zip(caches, future, strict=True):
            loss = loss + (cache[0] * gradient).sum()
        return loss, total

    @partial(mx.compile, inputs=[model.state], outputs=[model.state])
    def part(states: States, future: States, *arrays: mx.array) -> tuple[mx.array, Tree, States]:
        parameters = model.trainable_parameters()
        function = mx.value_and_grad(with_future, argnums=(0, 1))
        (_, total), (gradient, past) = function(parameters, states, future, *arrays)
        model.update(parameters)
        return total, gradient, past

    def gradients(inputs: mx.array, answers: mx.array, scale: mx.array) -> tuple[mx.array, Tree]:
        parts = [slice(i, i + chunk) for i in range(0, inputs.shape[1], chunk)]
        nothing = [mx.zeros_like(state) for state in _first(cached, model, inputs)]
        before = [nothing]
        for span in parts[:-1]:
            before.append(states_after(before[-1], inputs[:, span]))
            mx.eval(before[-1])
        total, gradient, future = mx.array(0.0), None, nothing
        for span, states in zip(reversed(parts), reversed(before), strict=True):
            arrays = inputs[:, span], answers[:, span], scale
            new_total, new, future = part(states, future, *arrays)
            total = total + new_total
            gradient = new if gradient is None else tree_map(mx.add, gradient, new)
            mx.eval(total, gradient, future)
        assert gradient is not None
        return total, gradient

    return gradients


def _first(cached: Callable[[list[Any]], list[Any]], model: nn.Module, inputs: mx.array) -> States:
    """The states after one token, for their shapes."""
    caches = cached([None] * len(model.layers))
    model(inputs[:, :1], caches)
    return [cache[0] for cache in caches]
