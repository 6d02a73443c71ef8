"""`gateloop bench model`: prefill and decode of language models of equal size."""

from functools import partial
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx.utils import tree_reduce

from mlx_gateloop.bench.measure import (
    Run,
    median_times,
    megabytes,
    mlx_run,
    peak_bytes,
    ratio,
    total_bytes,
)
from mlx_gateloop.bench.report import Report
from mlx_gateloop.io.tables import markdown_table
from mlx_gateloop.model.lm import Model, ModelArgs

VOCABULARY = 1024
WIDTH = 192


def mlx_models() -> dict[str, nn.Module]:
    """Models of about two million parameters, with a shared embedding and head."""
    from mlx_lm.models import mamba, mamba2, recurrent_gemma

    mx.random.seed(0)
    sizes: dict[str, Any] = {"vocab_size": VOCABULARY, "hidden_size": WIDTH}
    ours: dict[str, Any] = {"num_hidden_layers": 4, "intermediate_size": 512, "output_gate": True}
    shared = sizes | {
        "intermediate_size": 2 * WIDTH, "num_hidden_layers": 7, "conv_kernel": 4,
        "use_bias": False, "use_conv_bias": True,
    }  # fmt: skip
    heads: dict[str, Any] = {"num_heads": 6, "head_dim": 64, "n_groups": 1}
    griffin: dict[str, Any] = {
        "attention_bias": False, "conv1d_width": 4, "intermediate_size": 6 * WIDTH,
        "logits_soft_cap": 30.0, "num_attention_heads": 3, "num_hidden_layers": 4,
        "num_key_value_heads": 1, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
        "attention_window_size": 2048, "block_types": ["recurrent", "recurrent", "attention"],
    }  # fmt: skip
    models: dict[str, nn.Module] = {
        "GateLoop (ours)": Model(ModelArgs(**sizes, **ours, tie_word_embeddings=True)),
        "mlx-lm mamba": mamba.Model(
            mamba.ModelArgs("mamba", **shared, state_size=16, time_step_rank=12)
        ),
        "mlx-lm mamba2": mamba2.Model(
            mamba2.ModelArgs(
                "mamba2", **shared, **heads, state_size=64, tie_word_embeddings=True,
                layer_norm_epsilon=1e-5, time_step_rank="auto", time_step_limit=(0.0, float("inf")),
            )
        ),
        "mlx-lm recurrent_gemma": recurrent_gemma.Model(
            recurrent_gemma.ModelArgs("recurrent_gemma", **sizes, **griffin)
        ),
    }  # fmt: skip
    models["mlx-lm recurrent_gemma"].pop("lm_head")  # as its loader does if the head is shared
    mx.eval([model.parameters() for model in models.values()])
    return models


def num_parameters(model: nn.Module) -> int:
    """Shared parameters count once."""
    return tree_reduce(lambda n, leaf: n + leaf.size, model.parameters(), 0)


def measure(report: Report) -> None:
    length, decoded = (64, 4) if report.quick else (1024, 128)
    tokens = np.random.default_rng(0).integers(0, VOCABULARY, (1, length))
    models = mlx_models()
    prompt = mx.array(tokens)
    prefills: dict[str, Run] = {n: mlx_run(_prefill, m, prompt) for n, m in models.items()}
    decodes = {n: partial(_decode, m, prompt[:, :1], decoded) for n, m in models.items()}
    four = mx.repeat(prompt[:, :1], 4, 0)
    batches = {n: partial(_decode, m, four, decoded) for n, m in models.items()}
    sizes = {n: (num_parameters(m), len(m.layers)) for n, m in models.items()}
    for name, (size, run) in report.others("model", tokens).items():
        sizes[name], prefills[name] = size, run
    prefill = median_times(prefills)
    decode, batch = median_times(decodes), median_times(batches)

    ours = next(iter(models))
    rows = []
    for name, (parameters, layers) in sizes.items():
        row = [name, f"{parameters:,}", str(layers)]
        row.append(_speed(length, prefill[name], prefill[ours]))
        if name in decode:
            _, state = _prefill(models[name], prompt)
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
        "mamba2's never grows, recurrent_gemma's does up to its attention window."
    )
    header = ["", "parameters", "layers", "prefill tokens/s", "decode tokens/s", "four at once"]
    report.add(markdown_table([*header, "peak MB", "state KB"], rows))


def _prefill(model: nn.Module, prompt: mx.array) -> tuple[mx.array, list[Any]]:
    """The logits of the prompt, and the states of the cache after it."""
    cache = model.make_cache()
    logits = model(prompt, cache)
    return logits, [entry.state for entry in cache]


def _decode(model: nn.Module, token: mx.array, count: int) -> None:
    cache = model.make_cache()
    for _ in range(count):
        token = mx.argmax(model(token, cache)[:, -1:], -1)
        mx.eval(token)


def _speed(tokens: int, seconds: float, ours: float) -> str:
    return f"{tokens / seconds:,.0f} ({ratio(seconds, ours)})"
