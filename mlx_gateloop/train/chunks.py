"""The gradient of sequences that are too long for the memory, a part of their length at a time.

Forward, only the states before each part are kept. Backward, from the last part to the first, each
is computed again from its state, with the gradient of the state after it as a part of its loss.
"""

from collections.abc import Callable
from functools import partial
from itertools import chain
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_map

from mlx_gateloop.train.fused_update import Tree

Losses = Callable[..., Any]
States = list[list[mx.array]]  # for each layer, the states in its cache


def make_chunked_gradients(
    model: nn.Module, losses: Losses, chunk: int
) -> Callable[..., tuple[mx.array, Tree, States]]:
    """Build a batch's summed loss and its scaled gradient, as `step` does for whole sequences.

    The model has no attention and no dropout. `losses` goes from parameters, inputs, answers,
    scale, a cache and documents' starts to the scaled loss and the sum.

    Returns:
        `gradients(states, inputs, answers, scale, *starts) -> (sum, gradient, states)`: the states
        before the batch, empty for zero, and after it. They are constants of the gradient.
    """

    def with_future(
        parameters: Tree, states: States, future: States, *arrays: mx.array
    ) -> tuple[mx.array, tuple[mx.array, States]]:
        """Add the states after the part times the gradient by them: a loss with their gradient."""
        caches = caches_of(model, states)
        loss, total = losses(parameters, *arrays[:3], caches, *arrays[3:])
        after = [list(cache.cache) for cache in caches]
        for one, gradient in zip(chain(*after), chain(*future), strict=True):
            loss = loss + (one * gradient).sum()
        return loss, (total, after)

    @partial(mx.compile, inputs=[model.state], outputs=[model.state])
    def states_after(states: States, *arrays: mx.array) -> States:
        parameters = model.trainable_parameters()
        _, (_, after) = with_future(parameters, states, states, *arrays)
        model.update(parameters)
        return after

    @partial(mx.compile, inputs=[model.state], outputs=[model.state])
    def part(states: States, future: States, *arrays: mx.array) -> tuple[Any, ...]:
        parameters = model.trainable_parameters()
        function = mx.value_and_grad(with_future, argnums=(0, 1))
        (_, (total, after)), (gradient, past) = function(parameters, states, future, *arrays)
        model.update(parameters)
        return total, gradient, past, after

    def gradients(
        states: States, inputs: mx.array, answers: mx.array, scale: mx.array, *starts: mx.array
    ) -> tuple[mx.array, Tree, States]:
        spans = [slice(i, i + chunk) for i in range(0, inputs.shape[1], chunk)]
        future = zero_states(model, len(inputs))
        before = [states or future]

        def arrays(span: slice) -> list[mx.array]:
            return [inputs[:, span], answers[:, span], scale, *(x[:, span] for x in starts)]

        for span in spans[:-1]:
            before.append(states_after(before[-1], *arrays(span)))
            mx.eval(before[-1])
        total = mx.array(0.0)
        gradient: Tree = {}
        last: States = []
        for span, state in zip(reversed(spans), reversed(before), strict=True):
            new_total, new, future, after = part(state, future, *arrays(span))
            total, last = total + new_total, last or after
            gradient = tree_map(mx.add, gradient, new) if gradient else new
            mx.eval(total, gradient, future, last)
        return total, gradient, last

    return gradients


def caches_of(model: nn.Module, states: States) -> list[Any]:
    """Make caches that hold these states."""
    caches: list[Any] = model.make_cache()
    for cache, state in zip(caches, states, strict=True):
        cache.cache = list(state)
    return caches


def zero_states(model: nn.Module, batch: int) -> States:
    """Return the states before the first token, whose shapes are those after one."""
    caches = model.make_cache()
    model(mx.zeros((batch, 1), mx.int32), caches)
    return [[mx.zeros_like(array) for array in cache.cache] for cache in caches]
