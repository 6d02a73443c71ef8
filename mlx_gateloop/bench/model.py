"""`gateloop bench model`: prefill and decode of language models of equal size."""

from functools import partial
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from mlx_gateloop.bench.measure import (
    Run,
    median_times,
    megabytes,
    mlx_run,
    peak_bytes,
    ratio,
    total_bytes,
)
from mlx_gateloop.bench.models import VOCABULARY, WIDTH, mlx_models, num_parameters, torch_model
from mlx_gateloop.bench.report import Report, present
from mlx_gateloop.io.tables import markdown_table

PEERS = ("torch", "gateloop-transformer")
TORCH = "gateloop-transformer (torch)"


def measure(report: Report) -> None:
    length, decoded = (64, 4) if report.quick else (1024, 128)
    tokens = np.random.default_rng(0).integers(0, VOCABULARY, (1, length))
    models: dict[str, Any] = dict(mlx_models())
    prompt = mx.array(tokens)
    prefills: dict[str, Run] = {n: mlx_run(_prefill, m, prompt) for n, m in models.items()}
    decodes = {n: partial(_decode, m, prompt[:, :16], decoded) for n, m in models.items()}
    four = mx.repeat(prompt[:, :16], 4, 0)
    batches = {n: partial(_decode, m, four, decoded) for n, m in models.items()}
    if all(map(present, PEERS)):
        models[TORCH] = torch_model(WIDTH, 4, 2)
        prefills[TORCH] = _torch_forward(models[TORCH], tokens)
    prefill = median_times(prefills)
    decode, batch = median_times(decodes), median_times(batches)

    ours = next(iter(models))
    rows = []
    for name, model in models.items():
        row = [name, f"{num_parameters(model):,}", str(len(model.layers))]
        row.append(_speed(length, prefill[name], prefill[ours]))
        if name in decode:
            _, state = _prefill(model, prompt)
            row.append(_speed(decoded, decode[name], decode[ours]))
            turns = 4 * decode[name] / batch[name]
            row.append(f"{4 * decoded / batch[name]:,.0f} ({turns:.1f} times)")
            row += [megabytes(peak_bytes(prefills[name])), f"{total_bytes(state) / 2**10:,.0f}"]
        else:
            row += ["-"] * 4
        rows.append(row)
    report.add(
        f"## Prefill of {length:,} tokens and decode, batch 1, float32\n\nVocabulary "
        f"{VOCABULARY:,}. Random weights: speed does not depend on them. Decode takes the "
        f"likeliest token, {decoded} times; then for four texts in a batch, beside four in turns. "
        "Peak is of the prefill. State is what the cache holds after it; GateLoop's, mamba's and "
        "mamba2's never grows, recurrent_gemma's does up to its attention window. torch has no "
        "cache here: its forward pass is timed."
    )
    header = ["", "parameters", "layers", "prefill tokens/s", "decode tokens/s", "four at once"]
    report.add(markdown_table([*header, "peak MB", "state KB"], rows))


def _prefill(model: nn.Module, prompt: mx.array) -> tuple[mx.array, list[Any]]:
    """The logits of the prompt, and the states of the cache after it."""
    cache = model.make_cache()
    logits = model(prompt, cache)
    return logits, [entry.state for entry in cache]


def _decode(model: nn.Module, prompt: mx.array, count: int) -> None:
    cache = model.make_cache()
    token = mx.argmax(model(prompt, cache)[:, -1:], -1)
    for _ in range(count):
        token = mx.argmax(model(token, cache)[:, -1:], -1)
        mx.eval(token)


def _torch_forward(model: Any, tokens: np.ndarray) -> Run:
    import torch

    inputs = torch.tensor(tokens)

    def forward() -> Any:
        with torch.no_grad():
            return model(inputs)

    return forward


def _speed(tokens: int, seconds: float, ours: float) -> str:
    return f"{tokens / seconds:,.0f} ({ratio(seconds, ours)})"
