"""One run: reads what is new in a prompt and writes the answer, with exact states to go on from."""

import random
import time
import weakref
from collections.abc import Generator, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np

from mlx_gateloop.errors import InputError
from mlx_gateloop.generate import Sampling, sampler
from mlx_gateloop.watch.trace import Trace, recording

from .models import LoadedModel
from .run import Limits, Run, Token
from .states import NOTHING, Boundary, Conversations, Message

CHUNK = 128  # tokens read at once; between two chunks a run can stop, and others take their turns
CANDIDATES = 8
RECENT = 20  # tokens that the repetition penalty looks at: mlx-lm's default


@dataclass(frozen=True)
class Request:
    """What a run was asked for; the prompt is a text to continue, or messages to answer."""

    prompt: str | tuple[Message, ...]
    sampling: Sampling
    max_tokens: int
    record: bool
    conversation: str | None


def decode(
    run: Run, loaded: LoadedModel, request: Request, conversations: Conversations, limits: Limits
) -> Iterator[None]:
    """Fill the run in; every `next` takes one step: a chunk of the prompt, or a token.

    Raises:
        InputError: A prompt that the model cannot take.
    """
    begun = time.perf_counter()
    text, start = _prompt(loaded, request, conversations)
    new = loaded.tokenizer.encode(text[len(start.text) :], add_special_tokens=False)
    ids = [*start.ids, *new] or [loaded.tokenizer.eos_token_id]  # a new text starts after it
    fresh = ids[len(start.ids) - start.unread :]
    if len(fresh) > limits.input_tokens:
        most = f"at most {limits.input_tokens} can be read at once"
        raise InputError(f"prompt: {len(fresh)} new tokens, {most}; send a shorter text")
    reader = _Reader(loaded.model, start, run, request.record, limits)
    run.stats.waiting_seconds = begun - run.submitted
    run.stats.prompt_tokens, run.stats.prompt_tokens_read = len(ids), len(fresh)
    run.add(_as_pieces(loaded, fresh))

    def keep(messages: tuple[Message, ...], text: str, ids: list[int], unread: int) -> None:
        if request.conversation is not None and isinstance(request.prompt, tuple):
            seen = len(run.pieces) - unread
            boundary = Boundary(
                messages, text, tuple(ids), unread, reader.states(), weakref.ref(run), seen
            )
            conversations.put(request.conversation, loaded.fingerprint, boundary)

    for first in range(0, len(fresh) - 1, CHUNK):
        reader.read(mx.array(fresh[first : min(first + CHUNK, len(fresh) - 1)]))
        mx.eval(reader.made())
        reader.take()
        yield
        if run.stopped:
            return
    messages = () if isinstance(request.prompt, str) else request.prompt
    keep(messages, text, ids, unread=1)
    answer = yield from _write(run, loaded, request, reader, ids, begun)
    if answer:
        said = (*messages, ("assistant", run.text))
        keep(said, text + run.text, ids + answer, unread=0)


def _write(
    run: Run,
    loaded: LoadedModel,
    request: Request,
    reader: "_Reader",
    ids: list[int],
    begun: float,
) -> Generator[None, None, list[int]]:
    """Generate; returns the tokens, all of which the reader's state has seen."""
    answer: list[int] = []
    detokenizer, stats = loaded.tokenizer.detokenizer, run.stats
    draw = _Draw(request.sampling, loaded.model.args.outputs, ids)
    following = draw(reader.read(mx.array(ids[-1:])))
    mx.async_eval(following, reader.made())
    while len(answer) < request.max_tokens and not run.stopped:
        drawn, before = following, reader.layers()
        # The next step is on its way before this one's token is looked at.
        following = draw(reader.read(drawn.token))
        mx.async_eval(following, reader.made())
        token = int(np.array(drawn.token)[0])
        reader.take()
        now = time.perf_counter()
        if not answer:
            first, stats.first_token_seconds = now, now - begun
            stats.prefill_tokens_per_second = stats.prompt_tokens_read / (now - begun)
            stats.state_bytes = sum(layer.nbytes for layer in before)
            stats.memory_bytes = mx.get_active_memory()
        else:
            stats.decode_tokens_per_second = len(answer) / (now - first)
        if token in loaded.tokenizer.eos_token_ids:
            reader.undo(before)
            break
        answer.append(token)
        stats.tokens = len(answer)
        detokenizer.add_token(token)
        run.add([Token(detokenizer.last_segment, token, "answer", drawn.candidates(loaded))])
        yield
    else:  # what was said last has been read too
        mx.eval(reader.made())
        reader.take()
    detokenizer.finalize()
    if answer and (rest := detokenizer.last_segment):
        run.pieces[-1] = replace(run.pieces[-1], text=run.pieces[-1].text + rest)
    stats.memory_bytes = mx.get_active_memory()
    return answer


class _Reader:
    """The model with a state that moves on at every forward pass, and a trace if one is wanted."""

    def __init__(self, model: Any, start: Boundary, run: Run, record: bool, limits: Limits) -> None:
        self.model = model
        self.recorder = None
        if record:
            trace = Trace(len(model.layers), model.args.width)
            most = limits.trace_bytes // 2 // trace.bytes_per_token
            earlier = start.run and start.run()
            # A trace that is half full begins again, so that there is room for this run.
            if earlier and earlier.trace and start.pieces <= min(earlier.trace.tokens, most // 2):
                trace = earlier.trace.branch(start.pieces)
                run.begin = start.pieces  # first: the earlier answers are not this one's
                run.pieces += earlier.pieces[: start.pieces]
            self.caches, self.recorder = recording(model, trace, most)
            run.trace = trace
        else:
            self.caches = model.make_cache()
        self._set([mx.array(state) for state in start.states])

    def read(self, tokens: mx.array) -> mx.array:
        """Logits after these tokens `[1, vocabulary]`, not yet evaluated."""
        logits = self.model(tokens.reshape(1, -1), self.caches)[:, -1]
        self._recorded = [] if self.recorder is None else self.recorder.step()
        return logits

    def made(self) -> list[mx.array]:
        """What the last forward pass left behind, to be evaluated."""
        return self.layers() + self._recorded

    def take(self) -> None:
        """Record the oldest forward pass that was not yet."""
        if self.recorder is not None:
            self.recorder.take()

    def layers(self) -> list[mx.array]:
        return [cache[0] for cache in self.caches if cache[0] is not None]

    def undo(self, layers: list[mx.array]) -> None:
        """Take the last forward pass back; `layers` are the states before it."""
        self._set(layers)
        if self.recorder is not None:
            self.recorder.drop()

    def _set(self, layers: list[mx.array]) -> None:
        for cache, layer in zip(self.caches, layers, strict=False):
            cache[0] = layer

    def states(self) -> tuple[np.ndarray, ...]:
        return tuple(np.array(layer) for layer in self.layers())


class _Drawn(NamedTuple):
    """A token `[1]` and the likeliest ones `[1, CANDIDATES]` with their log probabilities."""

    token: mx.array
    likeliest: mx.array
    log_probabilities: mx.array

    def candidates(self, loaded: LoadedModel) -> tuple[tuple[str, float], ...]:
        ids, logs = np.array(self.likeliest)[0], np.array(self.log_probabilities)[0]
        best = np.argsort(-logs, kind="stable")
        return tuple((loaded.text(int(ids[i])), float(np.exp(logs[i]))) for i in best)


class _Draw:
    """Draws tokens as asked; runs that take turns do not touch each other's random numbers."""

    def __init__(self, sampling: Sampling, vocabulary: int, ids: list[int]) -> None:
        self.sampler, self.processors = sampler(sampling, vocabulary)
        self.recent = mx.array(ids[-RECENT:])
        self.seeds = random.Random(sampling.seed)
        self.candidates = min(CANDIDATES, vocabulary)

    def __call__(self, logits: mx.array) -> _Drawn:
        logs = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
        most = mx.argpartition(-logs, self.candidates - 1, axis=-1)[:, : self.candidates]
        likeliest = mx.take_along_axis(logs, most, axis=-1)
        for process in self.processors:
            logs = process(self.recent, logs)
            logs = logs - mx.logsumexp(logs, axis=-1, keepdims=True)
        mx.random.seed(self.seeds.getrandbits(64))
        token = self.sampler(logs)
        self.recent = mx.concatenate([self.recent, token])[-RECENT:]
        return _Drawn(token, most, likeliest)


def _prompt(
    loaded: LoadedModel, request: Request, conversations: Conversations
) -> tuple[str, Boundary]:
    """The whole text, and the state that has read the most of it."""
    if isinstance(request.prompt, str):
        return request.prompt, NOTHING
    if not loaded.tokenizer.has_chat_template:
        raise InputError("model: it has no chat template; use completion, or another model")
    messages = [{"role": role, "content": text} for role, text in request.prompt]
    try:
        text = loaded.tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, tokenize=False
        )
    except Exception as error:  # a template may refuse roles and orders with any exception
        reason = " ".join(str(error).split())
        raise InputError(f"messages: the chat template refuses them: {reason}") from error
    if request.conversation is None:
        return text, NOTHING
    path = conversations.path(request.conversation, loaded.fingerprint, request.prompt, text)
    return text, path[-1] if path else NOTHING


def _as_pieces(loaded: LoadedModel, ids: list[int]) -> list[Token]:
    detokenizer, pieces = loaded.tokenizer.detokenizer, []
    for token in ids:
        detokenizer.add_token(token)
        pieces.append(Token(detokenizer.last_segment, token, "prompt"))
    return pieces
