"""mlx-lm's cache of a recurrent state, which can also go back over its last tokens.

A state cannot be divided by what was added to it. So the cache holds the states before the last
calls of a model, and of a call with several tokens what the operator read.
"""

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import mlx.core as mx
from mlx_lm.models import cache

from mlx_gateloop.errors import InputError
from mlx_gateloop.model.convolution import INPUTS, STATE, with_past
from mlx_gateloop.ops import Transition, gate_loop
from mlx_gateloop.ops.transition import Form

MAX_BYTES = 1 << 18  # held by a layer
MIN_CALLS = 5  # calls held, however large the state: the tokens of a draft
MAX_GUESS = 16  # tokens of a call that can be undone in part, however large their inputs


class CannotTrim(InputError):
    """A trim over more tokens than the cache holds; its state stays as it was."""


# Key, value, both parts of the transition and the mask, `[B, L, ...]`, and what a convolution read
# with the documents' first tokens; some may be None.
Inputs = tuple[Any, ...]


class Call(NamedTuple):
    """A call of the model, with the cache as it was before."""

    tokens: int
    entries: list[mx.array | None]
    padding: tuple[mx.array | None, mx.array | None]
    form: Form  # of the transition
    inputs: Inputs | None  # None: it can be undone whole only
    nbytes: int


class ArraysCache(cache.ArraysCache):  # type: ignore[misc]
    """The state of one layer after the tokens so far, under the name in saved prompts of mlx-lm."""

    cache: list[Any]
    lengths: mx.array | None
    left_padding: mx.array | None
    can_go_back = True  # see `final`
    _calls: deque[Call] | None = None
    _nbytes = 0  # bytes of the calls
    _after: mx.array | None = None  # the state after the last call

    def update(
        self,
        state: mx.array,
        key: mx.array,
        value: mx.array,
        transition: Transition,
        mask: mx.array | None,
        read: tuple[mx.array, mx.array | None] | None = None,
    ) -> None:
        """Set the state after a call of the model, and hold what undoes the call."""
        before, tokens = [*self.cache], key.shape[1]
        if self._calls is None or before[STATE] is not self._after:  # new, or one that was set
            self._calls, self._nbytes = deque(), 0
        inputs, nbytes = None, sum(entry.nbytes for entry in before if entry is not None)
        if tokens > 1:
            inputs = key, value, transition.first, transition.second, mask, *(read or (None, None))
            size = sum(array.nbytes for array in inputs if array is not None)
            if size > MAX_BYTES and tokens > MAX_GUESS:
                inputs = None
            else:
                nbytes += size
        padding = self.lengths, self.left_padding
        self._calls.append(Call(tokens, before, padding, transition.form, inputs, nbytes))
        self._nbytes += nbytes
        while self._nbytes > MAX_BYTES and len(self._calls) > MIN_CALLS:
            self._nbytes -= self._calls.popleft().nbytes
        self.cache[STATE] = self._after = state

    def finalize(self) -> None:
        """End the right padding: rows then differ in their last tokens, so hold no calls."""
        if self.lengths is not None:
            self._calls, self._nbytes = None, 0
        super().finalize()

    def is_trimmable(self) -> bool:
        """Tell if `trim` may be tried: it raises rather than leave a wrong state."""
        return self.can_go_back

    def trim(self, n: int) -> int:
        """Go back over the last n tokens, or raise CannotTrim and stay."""
        if n <= 0:
            return 0
        calls = deque(self._calls or ()) if self[STATE] is self._after else deque()
        kept = -n  # tokens of the last call that was popped
        while kept < 0 and calls:
            call = calls.pop()
            kept += call.tokens
        if kept < 0 or (kept > 0 and call.inputs is None):
            raise CannotTrim(f"trim: cannot go back over {n} tokens; read the prompt again")
        now, self.cache = self.cache, [*call.entries]
        self.lengths, self.left_padding = call.padding
        if kept > 0 and call.inputs is not None:
            inputs: Inputs = tuple(None if x is None else x[:, :kept] for x in call.inputs)
            key, value, first, second, mask, read, starts = inputs
            transition = Transition(call.form, first, second)
            _, self.cache[STATE] = gate_loop(key, key, value, transition, self[STATE], mask=mask)
            if read is not None:
                size = 1 + now[INPUTS].shape[1]
                *_, self.cache[INPUTS] = with_past(read, size, mask, starts, self)
            calls.append(call._replace(tokens=kept, inputs=inputs))
            self.lengths, self.left_padding = (
                None if p is None else mx.maximum(p - kept, 0) for p in call.padding
            )
        self._calls, self._nbytes = calls, sum(call.nbytes for call in calls)
        self._after = self[STATE]
        return n

    @property
    def nbytes(self) -> int:
        return int(super().nbytes) + self._nbytes


@contextmanager
def final() -> Iterator[None]:
    """Let no cache go back meanwhile."""
    ArraysCache.can_go_back = False
    try:
        yield
    finally:
        ArraysCache.can_go_back = True
