"""One generation, step by step: reads the new part of a prompt and writes the answer."""

import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass, replace

import mlx.core as mx
import numpy as np

from mlx_gateloop.errors import InputError
from mlx_gateloop.generate import Sampling

from .models import LoadedModel
from .reader import Reader
from .run import Limits, Run, Token
from .sampler import Drawn, Sampler
from .states import START, Boundary, Message, StateCache

CHUNK = 128  # tokens read at once; between two chunks a run can stop, and others take their turns
async_eval: Callable[..., None] = mx.async_eval  # MLX declares no types for it


@dataclass(frozen=True)
class Request:
    """A request for a generation; the prompt is a text to continue, or messages to answer."""

    prompt: str | tuple[Message, ...]
    sampling: Sampling
    max_tokens: int
    record: bool
    conversation: str | None


class Decoder:
    """Fills a run in; every step reads a chunk of the prompt or writes a token.

    Args:
        run: Receives pieces, trace and figures.
        loaded: The model.
        request: What to generate.
        states: Cached states to go on from and to add to.
        limits: Of the server.

    Raises:
        InputError: The model cannot take the prompt.
    """

    def __init__(
        self, run: Run, loaded: LoadedModel, request: Request, states: StateCache, limits: Limits
    ) -> None:
        self.run, self.loaded, self.request, self.states = run, loaded, request, states
        self.begun = self.first = time.perf_counter()
        self.text, start = _prompt(loaded, request, states)
        new = loaded.tokenizer.encode(self.text[len(start.text) :], add_special_tokens=False)
        self.ids = [*start.ids, *new] or [loaded.tokenizer.eos_token_id]  # a text starts after it
        fresh = self.ids[len(start.ids) - start.unread :]
        if len(fresh) > limits.input_tokens:
            most = f"at most {limits.input_tokens} can be read at once"
            raise InputError(f"prompt: {len(fresh)} new tokens, {most}; send a shorter text")
        self.reader = Reader(loaded.model, start, run, request.record, limits)
        self.unread = fresh[:-1]  # the answer begins with reading the last one
        run.stats.waiting_seconds = self.begun - run.submitted
        run.stats.prompt_tokens, run.stats.prompt_tokens_read = len(self.ids), len(fresh)
        run.pieces += _as_pieces(loaded, fresh)
        self.sampler = Sampler(request.sampling, loaded.model.args.outputs, self.ids)
        self.detokenizer = loaded.tokenizer.detokenizer
        self.answer: list[int] = []
        self.following: Drawn | None = None  # the next token, already being computed

    def step(self) -> bool:
        """Read a chunk of the prompt or write a token; returns whether there is more to do."""
        if self.following is None and self.run.stopped:
            return False
        if self.unread:
            self._read_chunk()
            return True
        if self.following is None:
            self._cache_state(self._messages(), self.text, self.ids, unread=1)
            self.following = self._draw(mx.array(self.ids[-1:]))
        if self.run.stopped or len(self.answer) >= self.request.max_tokens:
            mx.eval(self.reader.pending())  # the last token of the answer has been read too
            self.reader.take()
            self._finish()
            return False
        return self._write_token(self.following)

    def _read_chunk(self) -> None:
        chunk, self.unread = self.unread[:CHUNK], self.unread[CHUNK:]
        self.reader.read(mx.array(chunk))
        mx.eval(self.reader.pending())
        self.reader.take()

    def _draw(self, token: mx.array) -> Drawn:
        """Begin to compute the token after this one `[1]`."""
        drawn = self.sampler(self.reader.read(token))
        async_eval(drawn, self.reader.pending())
        return drawn

    def _write_token(self, drawn: Drawn) -> bool:
        before = self.reader.layers()
        # The next step is on its way before this one's token is looked at.
        self.following = self._draw(drawn.token)
        token = int(np.array(drawn.token)[0])
        self.reader.take()
        self._measure(sum(layer.nbytes for layer in before))
        if token in self.loaded.tokenizer.eos_token_ids:
            self.reader.undo(before)
            self._finish()
            return False
        self.answer.append(token)
        self.run.stats.tokens = len(self.answer)
        self.detokenizer.add_token(token)
        candidates = drawn.candidates(self.loaded)
        self.run.pieces.append(Token(self.detokenizer.last_segment, token, "answer", candidates))
        return True

    def _measure(self, state_bytes: int) -> None:
        now, stats = time.perf_counter(), self.run.stats
        if self.answer:
            stats.decode_tokens_per_second = len(self.answer) / (now - self.first)
            return
        self.first, stats.first_token_seconds = now, now - self.begun
        stats.prefill_tokens_per_second = stats.prompt_tokens_read / (now - self.begun)
        stats.state_bytes, stats.memory_bytes = state_bytes, mx.get_active_memory()

    def _finish(self) -> None:
        run = self.run
        self.detokenizer.finalize()
        if self.answer and (rest := self.detokenizer.last_segment):
            run.pieces[-1] = replace(run.pieces[-1], text=run.pieces[-1].text + rest)
        run.stats.memory_bytes = mx.get_active_memory()
        if self.answer:
            messages = (*self._messages(), ("assistant", run.text))
            self._cache_state(messages, self.text + run.text, self.ids + self.answer, unread=0)

    def _messages(self) -> tuple[Message, ...]:
        return () if isinstance(self.request.prompt, str) else self.request.prompt

    def _cache_state(
        self, messages: tuple[Message, ...], text: str, ids: list[int], unread: int
    ) -> None:
        if self.request.conversation is None or isinstance(self.request.prompt, str):
            return
        seen = len(self.run.pieces) - unread
        states, run = self.reader.states(), weakref.ref(self.run)
        boundary = Boundary(messages, text, tuple(ids), unread, states, run, seen)
        self.states.put(self.request.conversation, self.loaded.fingerprint, boundary)


def _prompt(loaded: LoadedModel, request: Request, states: StateCache) -> tuple[str, Boundary]:
    """Return the whole text, and the cached state that has read the most of it."""
    if isinstance(request.prompt, str):
        return request.prompt, START
    if not loaded.tokenizer.has_chat_template:
        raise InputError("model: it has no chat template; use the Completion tab, or another model")
    messages = [{"role": role, "content": text} for role, text in request.prompt]
    try:
        text = loaded.tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, tokenize=False
        )
    except Exception as error:  # a template may refuse roles and orders with any exception
        reason = " ".join(str(error).split())
        raise InputError(f"messages: the chat template refuses them: {reason}") from error
    if request.conversation is None:
        return text, START
    found = states.prefixes(request.conversation, loaded.fingerprint, request.prompt, text)
    return text, found[-1] if found else START


def _as_pieces(loaded: LoadedModel, ids: list[int]) -> list[Token]:
    detokenizer, pieces = loaded.tokenizer.detokenizer, []
    for token in ids:
        detokenizer.add_token(token)
        pieces.append(Token(detokenizer.last_segment, token, "prompt"))
    return pieces
