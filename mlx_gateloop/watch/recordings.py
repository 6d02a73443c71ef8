"""Recording of a recurrent model, ours or mlx-lm's, while it generates."""

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from threading import RLock

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from mlx_gateloop.errors import one_line
from mlx_gateloop.model.layers import evaluating
from mlx_gateloop.watch.checks import Tokens, checked_tokens
from mlx_gateloop.watch.hooks import Call, report_of
from mlx_gateloop.watch.instrument import Instrumented
from mlx_gateloop.watch.layer import Layer, columns_of, values_of
from mlx_gateloop.watch.trace import Trace

Calls = dict[str, list[Call]]  # calls of one forward pass by layer
BEHIND = 2  # forward passes that may still be computing
NOT_FOUND = "not watched: no known recurrence"
CHUNK = 32  # tokens to append to the trace together


@contextmanager
def recording(
    model: nn.Module, *, max_bytes: int = 256 << 20, window: int = 256
) -> Iterator["Recording"]:
    """Record the decays of every recurrent layer while a model generates.

    Inside the block, use the model with one sequence in any way: mlx-lm's generate, stream_generate
    and servers, or direct calls. Tokens that a draft model or `lookup` takes back stay recorded.
    The model's results are the same, bit for bit. The end of the block restores the model.

    Args:
        model: A model that `mlx_lm.load` or `gl.load` returned.
        max_bytes: Memory of the trace, which keeps recent tokens exactly and older ones in groups.
        window: Number of tokens with queries and keys, for `remembered`; 0 keeps decays only.

    Yields:
        A `Recording`; read its `trace` at any time, also after the block.

    Raises:
        InputError: The model is already being recorded.

    Examples:
        >>> import mlx_gateloop as gl
        >>> model = gl.Model(gl.ModelArgs(vocab_size=9, hidden_size=8, num_hidden_layers=2))
        >>> with recording(model) as recorder:
        ...     logits = model(mx.array([[1, 2, 3]]))
        >>> recorder.trace.magnitude(0).shape
        (3, 8)
    """
    instrumented = Instrumented(model)
    recorder = Recording(instrumented, max_bytes, window)
    try:
        with instrumented.to(recorder):
            yield recorder
    finally:
        instrumented.detach()
        recorder.close()


def trace_of(model: nn.Module, tokens: Tokens) -> Trace:
    """Record one forward pass without dropout of a model over tokens `[length]`, at least one.

    Examples:
        >>> import mlx_gateloop as gl
        >>> model = gl.Model(gl.ModelArgs(vocab_size=9, hidden_size=8, num_hidden_layers=2))
        >>> trace_of(model, [1, 2, 3]).layers
        2
    """
    ids = checked_tokens(model, tokens)
    with evaluating(model), recording(model, window=len(ids)) as recorder:
        mx.eval(model(mx.array(ids)[None]))
    return recorder.trace


class Recording:
    """The trace of a model's recurrent layers, with the reasons for missing layers.

    Args:
        instrumented: The model.
        max_bytes: Memory of the trace.
        window: Number of tokens with queries and keys.
        trace: An earlier trace of the model to continue.

    Examples:
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
        max_bytes: int = 256 << 20,
        window: int = 256,
        trace: Trace | None = None,
    ) -> None:
        self._trace = Trace([], max_bytes, window) if trace is None else trace
        self._names = [n for n in instrumented.names if trace is None or n in trace.names]
        self._sizes, self._reasons = (max_bytes, window), dict(instrumented.unwatched)
        self._reasons |= dict.fromkeys({*instrumented.names} - {*self._names}, "excluded earlier")
        self._pass: Calls = {}
        self._passes: deque[tuple[mx.array, Calls]] = deque()
        self._tokens: list[np.ndarray] = []
        self._waiting = 0  # tokens of passes that are not in the trace
        self._lock, self._open = RLock(), True

    @property
    def trace(self) -> Trace:
        """The trace of everything that the model has read."""
        return self.catch_up()

    @property
    def tokens(self) -> np.ndarray:
        """Ids of the tokens that the model has read, integers `[tokens]`."""
        with self._lock:
            self.catch_up()
            return np.concatenate([np.zeros(0, np.int32), *self._tokens])

    @property
    def unwatched(self) -> dict[str, str]:
        """Lines "not watched: ..." by path, for modules or batches that are not in the trace."""
        return {path: f"not watched: {reason}" for path, reason in self._reasons.items()}

    @property
    def reason(self) -> str:
        """The reason for an empty trace."""
        # excluded recurrences come after the attention layers
        return [NOT_FOUND, *self.unwatched.values()][-1]

    def catch_up(self, behind: int = 0) -> Trace:
        """Append all but the newest `behind` forward passes to the trace."""
        with self._lock:
            self._take(max(len(self._passes) - behind, 0))
            return self._trace

    def drop(self, tokens: int = 0) -> None:
        """Drop the newest forward pass, or its last tokens; it must not be in the trace yet."""
        with self._lock:
            if not self._passes:  # none without a recurrence
                return
            read, calls = self._passes.pop()
            if tokens:
                kept = read.shape[1] - tokens
                # a layer was called once, or once for each token
                calls = {n: [call.first(kept) for call in of[:kept]] for n, of in calls.items()}
                self._passes.append((read[:, :kept], calls))

    def receive(self, name: str, call: Call) -> None:
        if self._open and name in self._names:
            self._pass.setdefault(name, []).append(call)

    def exclude(self, name: str, reason: str) -> None:
        with self._lock:
            if self._open and name in self._names:
                self._names.remove(name)
                self._trace.without(name)
                self._reasons[name] = reason

    def _end(self, name: str, reason: str) -> None:
        """Stop the recording, because one pass of this layer is lost."""
        self._reasons[name] = f"recorded up to token {self._trace.tokens}: {reason}"
        self._open = False
        self._passes.clear()

    @contextmanager
    def forward_pass(self, tokens: mx.array | None = None) -> Iterator[None]:
        """Record one forward pass over tokens `[1, length]`, unless it fails."""
        self._pass = {}
        try:
            yield
        except BaseException:
            self._pass = {}
            raise
        with self._lock:
            calls, self._pass = self._pass, {}
            batches = {n: of[0].sequences for n, of in calls.items() if of[0].sequences != 1}
            for name, count in batches.items():
                self._reasons[name] = f"a batch of {count}; generate one at a time"
            if batches:
                return
            if not isinstance(tokens, mx.array) or tokens.ndim != 2:
                tokens = mx.zeros((1, 0), mx.int32)  # called with something else
            length = self._check(calls, tokens.shape[1])
            if not (length and calls and self._compute(tokens, calls)):
                return
            self._passes.append((tokens, calls))
            self._waiting += length
            if self._waiting >= CHUNK and len(self._passes) > BEHIND:
                self.catch_up(BEHIND)

    def close(self) -> None:
        with self._lock:
            self.catch_up()
            self._open = False

    def _check(self, calls: Calls, tokens: int) -> int:
        """Exclude layers that were not called for all tokens of a pass; return the tokens."""
        seen = {name: sum(call.tokens for call in of) for name, of in calls.items()}
        tokens = max([tokens, *seen.values()])
        for name in list(self._names):
            if seen.get(name, 0) != tokens:
                reason = f"reported {seen.get(name, 0)} of {tokens} tokens; is decoding compiled?"
                self.exclude(name, reason)
                calls.pop(name, None)
        return tokens

    def _compute(self, tokens: mx.array, calls: Calls) -> bool:
        """Start the evaluation of a pass in this thread, as no other can; return True if it can."""
        try:
            mx.async_eval(tokens, [call.arrays for of in calls.values() for call in of])
            return True
        except (RuntimeError, ValueError) as error:  # arrays inside mx.compile
            self.catch_up()
            for name in calls:
                self._end(name, one_line(error))
            return False

    def _take(self, passes: int) -> None:
        self._waiting = 0
        taken = [self._passes.popleft() for _ in range(passes)]
        columns, layers = [], []
        for name in list(self._names):
            if not (calls := [call for _, each in taken for call in each.get(name, [])]):
                continue
            try:
                report = report_of(calls)
                columns.append(columns_of(report, self._sizes[1]))
                scale = None if report.scale is None else values_of(report.scale)
                layers.append(Layer(name, report.kind, scale, report.erases))
            except Exception as error:
                reason = f"{type(error).__name__}: {one_line(error)}"
                if name in self._trace.names:  # keep the part that all layers have
                    self._end(name, reason)
                    return
                self.exclude(name, reason)  # unexpected arguments: another mlx-lm
        if taken:  # one array, because each has an overhead of 100 bytes
            self._tokens.append(np.concatenate([np.array(tokens)[0] for tokens, _ in taken]))
        if columns:
            if not self._trace.layers:
                self._trace = Trace(layers, *self._sizes)
            self._trace.append(columns)
