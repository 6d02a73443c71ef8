"""A text's state: the caches after it, and what continuing it needs."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from mlx_gateloop.model.lm import check_ids

LAST = 8  # tokens that decide how the next one is written


@dataclass
class State:
    """The caches after a text, and what continuing it needs.

    Args:
        cache: mlx-lm's caches, one a layer.
        tokens: The number of tokens read; 1 in mlx-lm's own files, which do not say.
        logits: The logits `[V]` of the next token; None if unknown, as in mlx-lm's own files.
        last: The last tokens, which decide how the next one is written.
        source: Bytes of the text read, to resume there.
        digest: SHA-256 of these bytes; empty if unknown.

    Examples:
        >>> import mlx_gateloop as gl
        >>> model = gl.Model(gl.ModelArgs(vocab_size=9, hidden_size=8))
        >>> state = gl.State(model.make_cache())
        >>> state.read(model, [1, 2, 3])
        >>> state.tokens, state.logits.shape
        (3, (9,))
    """

    cache: list[Any]
    tokens: int = 0
    logits: mx.array | None = None
    last: list[int] = field(default_factory=list)
    source: int = 0
    digest: str = ""

    def read(self, model: nn.Module, ids: Sequence[int]) -> None:
        """Read token ids and update the state."""
        if not (ids := [int(id) for id in ids]):
            return
        check_ids(model, ids)
        text = mx.array([ids])
        if len(ids) > 1:  # the last token alone needs logits
            model(text[:, :-1], cache=self.cache)
        self.logits = model(text[:, -1:], cache=self.cache)[0, -1]
        mx.eval(self.logits, [layer.state for layer in self.cache])
        self.tokens, self.last = self.tokens + len(ids), [*self.last, *ids][-LAST:]
