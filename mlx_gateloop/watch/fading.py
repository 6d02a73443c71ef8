"""Words that fade: how strong each token still is, at every later one."""

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from mlx_gateloop.errors import InputError
from mlx_gateloop.watch.checks import Tokens, checked_tokens
from mlx_gateloop.watch.recordings import recording

TOKEN_BYTES = 8 << 20  # reserved for the recording of a token; what is not touched is not used


def fading(model: nn.Module, tokens: Tokens) -> np.ndarray:
    """Compute how much of the state after each token the earlier ones still are.

    Column n is `EndlessTrace.fading(n)`, which says how it is defined.

    Args:
        model: Ours, or a recurrent model of mlx-lm.
        tokens: Integers `[tokens]`, at least one.

    Returns:
        Shares, float32 `[tokens, tokens]`: [m, n] for token m after token n; 0 for m > n.

    Raises:
        ValueError: Tokens that do not exist, or a model without a recurrence.
    """
    ids = checked_tokens(model, tokens)
    most_bytes = TOKEN_BYTES * (len(ids) + 16)
    with recording(model, most_bytes=most_bytes, window=len(ids)) as recorder:
        mx.eval(model(mx.array(ids[None])))
    trace = recorder.trace
    if not trace.layers:
        raise InputError("model: it has no recurrence to watch; give a recurrent model")
    shares = np.zeros((len(ids), len(ids)), np.float32)
    for token in range(len(ids)):
        shares[: token + 1, token] = trace.fading(token)
    return shares
