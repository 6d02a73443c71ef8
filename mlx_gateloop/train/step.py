"""One optimizer step as two compiled functions: a batch's gradients, and the clipped update."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, cast

import mlx.core as mx
import mlx.nn as nn
import mlx.optimizers as optim
import numpy as np
from mlx.utils import tree_map, tree_map_with_path

from mlx_gateloop.ops.pointwise import cross_entropy

Batch = tuple[np.ndarray, np.ndarray]
Tree = dict[str, Any]  # arrays in nested dicts and lists, as MLX has parameters
Step = Callable[[Iterable[Batch]], tuple[float, float]]


def make_step(
    model: nn.Module, optimizer: optim.Optimizer, clip_norm: float, accumulate: int, dtype: mx.Dtype
) -> Step:
    """Build the step: the mean gradient of some batches, clipped to a global norm, and the update.

    The compiled functions capture the containers of the model's and the optimizer's arrays, so
    both must be initialised (and restored) before. A gradient whose norm is not finite changes
    nothing.

    Args:
        model: the float32 weights.
        optimizer: initialised on the model's weights.
        clip_norm: largest global norm of the gradient.
        accumulate: number of batches per step.
        dtype: dtype of the forward and backward pass.

    Returns:
        `step(batches) -> (loss, norm)`: mean nats per token (negative targets are not counted),
        and the norm before clipping; if it is not finite, the update was skipped.
    """
    state = [model.state, optimizer.state, mx.random.state]

    def mean_loss(parameters: Tree, inputs: mx.array, targets: mx.array) -> mx.array:
        model.update(lowered(model, parameters, dtype))
        asked = targets >= 0
        losses = cross_entropy(model(inputs), mx.maximum(targets, 0))
        return mx.where(asked, losses, 0).sum() / asked.sum() / accumulate

    @partial(mx.compile, inputs=state, outputs=state)
    def gradients(inputs: mx.array, targets: mx.array) -> tuple[mx.array, Tree]:
        parameters = model.trainable_parameters()
        result = mx.value_and_grad(mean_loss)(parameters, inputs, targets)
        model.update(parameters)
        return result

    @partial(mx.compile, inputs=state, outputs=state)
    def update(gradient: Tree) -> mx.array:
        clipped: Tree
        norm: mx.array
        clipped, norm = optim.clip_grad_norm(gradient, clip_norm)
        before = tree_map(lambda leaf: leaf, [model.trainable_parameters(), optimizer.state])
        optimizer.update(model, clipped)
        after = [model.trainable_parameters(), optimizer.state]
        finite = mx.isfinite(norm)
        weights, moments = tree_map(partial(mx.where, finite), after, before)
        model.update(weights)
        assign(optimizer.state, moments)
        return norm

    def step(batches: Iterable[Batch]) -> tuple[float, float]:
        loss = mx.array(0.0)
        gradient: Tree = {}
        for inputs, targets in batches:
            part, new = gradients(mx.array(inputs), mx.array(targets))
            loss = loss + part
            gradient = tree_map(mx.add, gradient, new) if gradient else new
            mx.eval(loss, gradient, mx.random.state)
        norm = update(gradient)
        mx.eval(state, norm)
        return number(loss), number(norm)

    return step


def number(scalar: mx.array) -> float:
    """The value of a real array with one element."""
    return cast(float, scalar.item())


def lowered(model: nn.Module, parameters: Tree, dtype: mx.Dtype) -> Tree:
    """Cast the weights to `dtype`, except those that `model.cast_predicate` keeps in float32."""
    casts = model.cast_predicate
    cast_leaf = lambda path, leaf: leaf.astype(dtype) if casts(path) else leaf  # noqa: E731
    return cast(Tree, tree_map_with_path(cast_leaf, parameters))


def assign(target: Any, source: Any) -> None:
    """Write the leaves of one tree into the containers of another with the same structure.

    Compiled functions have captured the containers; replacing them would silently have no effect.
    """
    for key in target if isinstance(target, dict) else range(len(target)):
        if isinstance(target[key], (dict, list)):
            assign(target[key], source[key])
        else:
            target[key] = source[key]


def checkpoint_blocks(model: nn.Module) -> None:
    """Make each block of this model store only its input and recompute the rest in the gradient."""
    for layer in model.layers:
        block = type(layer)

        class Checkpointed(block):  # type: ignore[misc, valid-type]
            def __call__(self, *args: Any, **kwargs: Any) -> Any:
                return nn.utils.checkpoint(self, super().__call__)(*args, **kwargs)

        layer.__class__ = Checkpointed
