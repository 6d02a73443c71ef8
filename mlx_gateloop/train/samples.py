"""Sample texts and half-lives of a model while it is trained."""

import math
from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from mlx_gateloop.data import Document
from mlx_gateloop.generate import Sampling, stream
from mlx_gateloop.model.layers import TimeMixing
from mlx_gateloop.tokenizer import stop_token_ids

LONGEST = 1e9  # tokens; an infinite half-life is not JSON
READ = 256  # tokens of text in which half-lives are measured


def first_prompt(documents: Sequence[Document]) -> Any:
    """Return what comes before the first answer; the beginning of a text is empty."""
    if not documents or isinstance(documents[0], str):
        return ""
    roles = [turn["role"] for turn in documents[0]]
    return documents[0][: roles.index("assistant", 1)] if "assistant" in roles[1:] else ""


def sample(model: nn.Module, tokenizer: Any, prompt: Any, tokens: int) -> str:
    """Draw a text, always with the same random numbers."""
    from mlx_lm.tokenizer_utils import TokenizerWrapper

    wrapped = TokenizerWrapper(tokenizer, eos_token_ids=stop_token_ids(tokenizer))
    return "".join(stream(model, wrapped, prompt, Sampling(seed=0), max_tokens=tokens))


def half_lives(model: nn.Module, tokens: np.ndarray) -> list[float]:
    """Compute each layer's median half-life over its channels, in tokens of a text."""
    found: list[float] = []

    def observe(*inputs: Any) -> None:
        logs = mx.maximum(inputs[3].logarithm()[0], -100)  # log|a|; a may be 0
        decay = np.median(-np.array(logs.mean((0, 1))))
        found.append(float(min(LONGEST, math.log(2) / max(decay, 1e-12))))

    layers = [layer for layer in model.modules() if isinstance(layer, TimeMixing)]
    try:
        for layer in layers:
            layer.observe = observe
        if layers:
            model(mx.array(tokens[None, :READ].astype(np.int32)))
    finally:
        for layer in layers:
            layer.observe = None
    return found
