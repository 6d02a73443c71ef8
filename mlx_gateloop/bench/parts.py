"""The parts of a training step, each timed alone."""

import mlx.core as mx
from mlx.utils import tree_map

import mlx_gateloop as gl
from mlx_gateloop.bench.measure import (
    Function,
    Run,
    median_times,
    milliseconds,
    mlx_run,
)
from mlx_gateloop.bench.report import Report
from mlx_gateloop.io.tables import markdown_table
from mlx_gateloop.model.lm import Model, ModelArgs
from mlx_gateloop.ops import pointwise
from mlx_gateloop.train.config import OptimizerConfig
from mlx_gateloop.train.fused_update import make_update
from mlx_gateloop.train.optimizer import make_optimizer


def measure_parts(
    report: Report, args: ModelArgs, shape: tuple[int, int], step_seconds: float
) -> None:
    """Time forward pass and gradient of each part, and multiply by its number in a step.

    Args:
        report: Gets the table.
        args: The model's arguments.
        shape: Batch and length.
        step_seconds: Time of the whole step.
    """
    parts = _parts(args, shape)
    times = median_times({name: run for name, (_, run) in parts.items()})
    together = {name: count * times[name] for name, (count, _) in parts.items()}
    rows = [
        [name, str(parts[name][0]), milliseconds(times[name]), *_share(seconds, step_seconds)]
        for name, seconds in together.items()
    ]
    rest = step_seconds - sum(together.values())
    rows.append(["the rest", "", "", *_share(rest, step_seconds)])
    report.add(
        "### The parts of our step\n\nForward pass and gradient of each part alone, times its "
        "number in the step. Parts in a step share caches and are compiled together, so the shares "
        "are estimates, and the rest may be negative."
    )
    report.add(markdown_table(["", "number", "ms each", "ms together", "of the step"], rows))


def _share(seconds: float, step_seconds: float) -> list[str]:
    return [milliseconds(seconds), f"{100 * seconds / step_seconds:.0f} %"]


def _parts(args: ModelArgs, shape: tuple[int, int]) -> dict[str, tuple[int, Run]]:
    """The number of each part in a step, and its forward pass and gradient, compiled."""
    width, inner, depth = args.hidden_size, args.intermediate_size, args.num_hidden_layers
    narrow, wide = (mx.random.normal((*shape, size)) for size in (width, inner))
    logits = mx.random.normal((*shape, args.outputs))
    targets = mx.random.randint(0, args.outputs, shape)

    def operator(
        q: mx.array, k: mx.array, v: mx.array, gamma: mx.array, theta: mx.array
    ) -> mx.array:
        return gl.gate_loop(q, k, v, gl.Transition.sigmoid(gamma, theta))[0]

    def linear(x: mx.array, weight: mx.array, bias: mx.array) -> mx.array:
        return mx.addmm(bias, x, weight.T)

    def weights(inputs: int, outputs: int) -> list[mx.array]:
        return [mx.random.normal((outputs, inputs)), mx.zeros((outputs,))]

    def norm(x: mx.array, weight: mx.array, bias: mx.array) -> mx.array:
        return pointwise.layer_norm(x, weight, bias, args.layer_norm_eps)

    def loss(logits: mx.array) -> mx.array:
        return pointwise.cross_entropy(logits, targets)

    return {
        "the operator": (depth, _run(operator, *(mx.array(narrow) for _ in range(5)))),
        "projections of time mixing": (7 * depth, _run(linear, narrow, *weights(width, width))),
        "channel mixing, up": (depth, _run(linear, narrow, *weights(width, inner))),
        "channel mixing, down": (depth, _run(linear, wide, *weights(inner, width))),
        "GELU": (depth, _run(pointwise.gelu, wide)),
        "SiLU": (depth, _run(pointwise.silu, narrow)),
        "layer norm": (2 * depth + 1, _run(norm, narrow, mx.ones(width), mx.zeros(width))),
        "head": (1, _run(linear, narrow, *weights(width, args.outputs))),
        "cross-entropy": (1, _run(loss, logits)),
        "clipping and AdamW": (1, _update(args)),
    }


def _run(function: Function, *arrays: mx.array) -> Run:
    compiled = mx.compile(lambda *xs: [function(*xs)])
    outputs = compiled(*arrays)
    mx.eval(arrays, outputs)
    # The outputs are evaluated too, as the step needs them even where the gradient does not.
    return mlx_run(lambda: mx.vjp(compiled, list(arrays), outputs))


def _update(args: ModelArgs) -> Run:
    model = Model(args)
    optimizer = make_optimizer(OptimizerConfig(), 10**6)
    optimizer.init(model.trainable_parameters())
    gradient = tree_map(mx.ones_like, model.trainable_parameters())
    update = make_update(model, optimizer, 1.0)
    position, scale = mx.array(0, mx.uint64), mx.array(1.0)

    def step() -> None:
        mx.eval(update(gradient, position, scale), model.state, optimizer.state)

    mx.eval(gradient)
    return step
