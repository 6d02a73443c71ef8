"""`gateloop bench train`: one training step."""

import mlx.core as mx
import numpy as np

from mlx_gateloop.bench.measure import Run, median_times, megabytes, milliseconds, peak_bytes, ratio
from mlx_gateloop.bench.model import VOCABULARY, num_parameters
from mlx_gateloop.bench.report import Report
from mlx_gateloop.io.tables import markdown_table
from mlx_gateloop.model.lm import Model, ModelArgs
from mlx_gateloop.train.config import OptimizerConfig, TrainConfig
from mlx_gateloop.train.optimizer import make_optimizer
from mlx_gateloop.train.step import make_step

OURS = "GateLoop (ours)"
CLIP_NORM = 1.0
OPTIMIZER = OptimizerConfig(learning_rate=1e-3, weight_decay=0.05, clip_norm=CLIP_NORM)
STEPS = 10**6  # in the schedule; far more than are taken
CONFIG = TrainConfig(optimizer=OPTIMIZER, steps=STEPS)


def measure(report: Report) -> None:
    width, depth, batch, length = (32, 2, 2, 32) if report.quick else (256, 4, 4, 512)
    tokens = np.random.default_rng(0).integers(0, VOCABULARY, (batch, length + 1))
    mx.random.seed(0)
    args = ModelArgs(
        vocab_size=VOCABULARY,
        hidden_size=width,
        num_hidden_layers=depth,
        intermediate_size=3 * width,
        output_gate=True,
    )
    model = Model(args)
    optimizer = make_optimizer(OPTIMIZER, STEPS)
    optimizer.init(model.trainable_parameters())
    mx.eval(model.state, optimizer.state)
    step = make_step(model, optimizer, CONFIG, batch * length)
    batches = [(tokens[:, :-1], tokens[:, 1:])]
    runs: dict[str, Run] = {OURS: lambda: step(batches, 0, 1.0)}
    parameters = {OURS: num_parameters(model)}
    for name, (count, run) in report.others("train", tokens, width, depth).items():
        parameters[name], runs[name] = count, run
    times = median_times(runs)

    ours = times[OURS]
    rows = [
        [
            name,
            f"{parameters[name]:,}",
            f"{milliseconds(seconds)} ({ratio(seconds, ours)})",
            f"{tokens[:, 1:].size / seconds:,.0f}",
            megabytes(peak_bytes(runs[name])) if name == OURS else "-",
        ]
        for name, seconds in times.items()
    ]
    report.add(
        f"## One step: width {width}, depth {depth}, FNN 3x, vocabulary {VOCABULARY:,}, batch "
        f"{batch} of {length}, float32\n\nForward, gradient, clipping to norm {CLIP_NORM:g}, AdamW."
    )
    report.add(markdown_table(["", "parameters", "step ms", "tokens/s", "peak MB"], rows))
