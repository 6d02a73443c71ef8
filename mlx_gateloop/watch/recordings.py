"""Recording of any recurrent model of mlx-lm, and of ours, while it generates."""

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import RLock

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from mlx_gateloop.errors import one_line
from mlx_gateloop.watch.checks import checked_tokens
from mlx_gateloop.watch.hooks import Call, report_of
from mlx_gateloop.watch.instrument import Instrumented
from mlx_gateloop.watch.layer import columns_of, layer_of
from mlx_gateloop.watch.trace import Trace

Calls = dict[str, list[Call]]  # of one forward pass, by layer
BEHIND = 2  # forward passes that may still be computing
NOT_FOUND = "not watched: it has no recurrence that is known"
AT_ONCE = 32  # tokens that are moved into the trace together
async_eval: Callable[..., None] = mx.async_eval  # MLX declares no types for it


@contextmanager
def recording(
    model: nn.Module, *, most_bytes: int = 256 << 20, window: int = 256
) -> Iterator["Recording"]:
    """Record the decays of every recurrent layer while a model generates.

    It works around any use of the model with one sequence: mlx-lm's generate, stream_generate and
    its servers, or calls of the model. What the model computes stays the same, bit for bit, and
    after the block the model is as before.

    Args:
        model: A model that `mlx_lm.load` or `gl.load` returned.
        most_bytes: Memory of the trace. Recent tokens are kept whole, older ones in groups.
        window: Tokens whose queries and keys are kept, for `remembered`; 0 keeps decays only.

    Yields:
        A `Recording`; its `trace` may be read at any time, also after the block.

    Raises:
        InputError: The model is being recorded already.

    Example:
        >>> import mlx_gateloop as gl
        >>> model = gl.Model(gl.ModelArgs(vocab_size=9, hidden_size=8, num_hidden_layers=2))
        >>> with recording(model) as recorder:
        ...     logits = model(mx.array([[1, 2, 3]]))
        >>> recorder.trace.magnitude(0).shape
        (3, 8)
    """
    instrumented = Instrumented(model)
    recorder = Recording(instrumented, most_bytes, window)
    try:
        with instrumented.to(recorder):
            yield recorder
    finally:
        instrumented.detach()
        recorder.close()


def trace_of(model: nn.Module, tokens: np.ndarray) -> Trace:
    """Record one forward pass of a model over tokens `[length]`, at least one.

    Example:
        >>> import mlx_gateloop as gl
        >>> model = gl.Model(gl.ModelArgs(vocab_size=9, hidden_size=8, num_hidden_layers=2))
        >>> trace_of(model, np.array([1, 2, 3])).layers
        2
    """
    ids = checked_tokens(model, tokens)
    with recording(model, window=len(ids)) as recorder:
        mx.eval(model(mx.array(ids)[None]))
    return recorder.trace


class Recording:
    """The trace of a model's recurrent layers, and reasons for those that are not in it.

    Args:
        instrumented: The model.
        most_bytes: Memory of the trace.
        window: Tokens whose queries and keys are kept.
        trace: An earlier trace of the model, to continue.

    Example:
        >>> import mlx_gateloop as gl
        >>> model = gl.Model(gl.ModelArgs(vocab_size=9, hidden_size=8, num_hidden_layers=2))
        >>> instrumented = gl.watch.Instrumented(model)
        >>> recorder = Recording(instrumented)
        >>> with instrumented.to(recorder):
        ...     logits = model(mx.array([[1, 2, 3]]))
        >>> recorder.trace.tokens
        3
    """

    def __init__(
        self,
        instrumented: Instrumented,
        most_bytes: int = 256 << 20,
        window: int = 256,
        trace: Trace | None = None,
    ) -> None:
        self._trace = Trace([], most_bytes, window) if trace is None else trace
        self._names = [n for n in instrumented.names if trace is None or n in trace.names]
        self._sizes, self._reasons = (most_bytes, window), dict(instrumented.unwatched)
        self._reasons |= dict.fromkeys(
            set(instrumented.names) - set(self._names), "left out before"
        )
        self._pass: Calls = {}
        self._passes: deque[tuple[mx.array, Calls]] = deque()
        self._tokens: list[np.ndarray] = []
        self._waiting = 0  # tokens of passes since some were taken
        self._lock, self._open = RLock(), True

    @property
    def trace(self) -> Trace:
        """All that the model has read until now."""
        return self.catch_up()

    @property
    def tokens(self) -> np.ndarray:
        """Ids of the tokens that the model has read, integers `[tokens]`."""
        with self._lock:
            self.catch_up()
            return np.concatenate([np.zeros(0, np.int32), *self._tokens])

    @property
    def unwatched(self) -> dict[str, str]:
        """Lines "not watched: ..." for modules that are not in the trace, by path.

        Modules that a batch has called too have one: the batch is left out, not they.
        """
        return {path: f"not watched: {reason}" for path, reason in self._reasons.items()}

    @property
    def reason(self) -> str:
        """The line of one module that is not in the trace, for models in which none is."""
        # refused recurrences come after the attention layers
        return [NOT_FOUND, *self.unwatched.values()][-1]

    def catch_up(self, behind: int = 0) -> Trace:
        """Move all forward passes into the trace but the newest, `behind` of them."""
        with self._lock:
            self._take(max(len(self._passes) - behind, 0))
            return self._trace

    def drop(self) -> None:
        """Forget the newest forward pass, whose state was dropped; it must not be taken yet."""
        with self._lock:
            if self._passes:  # a model without recurrence has none
                self._passes.pop()

    def receive(self, name: str, call: Call) -> None:
        """Receive one call of a layer's recurrence."""
        if self._open and name in self._names:
            self._pass.setdefault(name, []).append(call)

    def refuse(self, name: str, reason: str) -> None:
        """Leave a layer out from now on."""
        with self._lock:
            if self._open and name in self._names:
                self._names.remove(name)
                self._trace.without(name)
                self._reasons[name] = reason

    def _end(self, name: str, reason: str) -> None:
        """Record nothing more, because one pass of this layer is lost."""
        self._reasons[name] = f"recorded up to token {self._trace.tokens}: {reason}"
        self._open = False
        self._passes.clear()

    @contextmanager
    def forward_pass(self, tokens: mx.array | None = None) -> Iterator[None]:
        """Take one forward pass of the model over tokens `[1, length]`; not one that fails."""
        self._pass = {}
        try:
            yield
        except BaseException:
            self._pass = {}
            raise
        with self._lock:
            calls, self._pass = self._pass, {}
            if self._is_batch(calls):
                return
            if not isinstance(tokens, mx.array) or tokens.ndim != 2:
                tokens = mx.zeros((1, 0), mx.int32)  # it is called with something else
            length = self._check(calls, tokens.shape[1])
            if calls:
                self._compute(tokens, calls)
            if not calls:
                return
            self._passes.append((tokens, calls))
            self._waiting += length
            if self._waiting >= AT_ONCE and len(self._passes) > BEHIND:
                self.catch_up(BEHIND)

    def close(self) -> None:
        """End the recording."""
        with self._lock:
            if self._pass and not self._is_batch(self._pass):  # layers called without their model
                self._check(self._pass, 0)
                self._passes.append((mx.zeros((1, 0), mx.int32), self._pass))
            self.catch_up()
            self._open = False

    def _is_batch(self, calls: Calls) -> bool:
        """Tell if a pass reads several sequences, and say of its layers that it is left out."""
        for name, (call, *_) in calls.items():
            if call.sequences != 1:
                self._reasons[name] = f"a batch of {call.sequences}; generate one at a time"
        return any(of[0].sequences != 1 for of in calls.values())

    def _check(self, calls: Calls, tokens: int) -> int:
        """Leave layers out that were not called for all tokens of a pass; returns how many."""
        seen = {name: sum(call.tokens for call in of) for name, of in calls.items()}
        tokens = max([tokens, *seen.values()])
        for name in list(self._names):
            if seen.get(name, 0) != tokens:
                reason = f"{seen.get(name, 0)} of {tokens} tokens came; decoding may be compiled"
                self.refuse(name, reason)
                calls.pop(name, None)
        return tokens

    def _compute(self, tokens: mx.array, calls: Calls) -> None:
        """Begin to compute a pass in the thread that called the model.

        No other thread can evaluate its arrays, and the model itself computes only some of them.
        """
        arrays = {name: [call.arrays for call in of] for name, of in calls.items()}
        with suppress(RuntimeError, ValueError):
            async_eval(tokens, list(arrays.values()))
            return
        try:
            async_eval(tokens)
        except (RuntimeError, ValueError) as error:  # the whole model is compiled
            self.catch_up()
            for name in calls:
                self._end(name, one_line(error))
            calls.clear()
            return
        for name, of in arrays.items():  # some are tracers of mx.compile
            try:
                async_eval(of)
            except (RuntimeError, ValueError) as error:
                self.refuse(name, one_line(error))
                del calls[name]

    def _take(self, passes: int) -> None:
        """Move the oldest passes into the trace."""
        self._waiting = 0
        taken = [self._passes.popleft() for _ in range(passes)]
        columns, layers = [], []
        for name in list(self._names):
            calls = [call for _, each in taken for call in each.get(name, [])]
            if not calls:
                continue
            try:
                report = report_of(calls)
                columns.append(columns_of(report, self._sizes[1]))
                layers.append(layer_of(name, report))
            except Exception as error:
                reason = f"{type(error).__name__}: {one_line(error)}"
                if name in self._trace.names:  # keep what all layers have recorded
                    self._end(name, reason)
                    return
                self.refuse(name, reason)  # the arguments are another mlx-lm's
        if taken:  # in one array, as each takes a hundred bytes besides
            self._tokens.append(np.concatenate([np.array(tokens)[0] for tokens, _ in taken]))
        if columns:
            if not self._trace.layers:
                self._trace = Trace(layers, *self._sizes)
            self._trace.append(columns)
