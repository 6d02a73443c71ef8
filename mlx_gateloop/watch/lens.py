"""The prediction that the head makes after each block."""

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from mlx_gateloop.errors import InputError
from mlx_gateloop.model.layers import evaluating
from mlx_gateloop.model.lm import Model
from mlx_gateloop.watch.checks import Tokens, check_indices, checked_tokens, num_outputs


def lens(model: nn.Module, tokens: Tokens, top: int | None = None, *, since: int = 0) -> np.ndarray:
    """Apply the final norm and the head to the embedding and after each block.

        logits[l, n] = head(norm(x_l)),   x_l the residual stream after l blocks

    Args:
        model: Ours, of text.
        tokens: Integers `[tokens]`, at least one.
        top: Return this number of the likeliest tokens in place of logits.
        since: First token of the result.

    Returns:
        Logits, float32 `[layers + 1, tokens - since, vocabulary]`, or with `top` token ids, int64
        `[layers + 1, tokens - since, top]`, the likeliest first.

    Raises:
        InputError: Another model, or tokens or a `since` that do not exist.

    Examples:
        >>> import mlx_gateloop as gl
        >>> model = gl.Model(gl.ModelArgs(vocab_size=9, hidden_size=8, num_hidden_layers=2))
        >>> lens(model, [1, 2, 3]).shape, lens(model, [1, 2, 3], top=2).shape
        ((3, 3, 9), (3, 3, 2))
    """
    if not isinstance(model, Model):
        raise InputError("model: expected a GateLoop")
    embedding = model.model.embed_tokens
    head = embedding.as_linear if model.args.tie_word_embeddings else model.lm_head
    ids = checked_tokens(model, tokens)
    check_indices("since", [since], len(ids))
    check_indices("top", None if top is None else [top], num_outputs(model) + 1)
    x = embedding(mx.array(ids[None]))
    found = []
    with evaluating(model):
        for block in [*model.layers, None]:
            logits = head(model.model.norm(x[:, since:]))[0].astype(mx.float32)
            if top is not None:
                logits = mx.argsort(-logits, -1)[:, :top].astype(mx.int64)
            found.append(np.array(logits))
            x = x if block is None else block(x, None, None)
    return np.stack(found)
