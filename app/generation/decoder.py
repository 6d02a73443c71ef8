"""One generation, step by step: reads the new part of a prompt and writes the answer."""

import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass, replace

import mlx.core as mx
import numpy as np

from mlx_gateloop.errors import InputError
from mlx_gateloop.generate import Sampling
from mlx_gateloop.tokenizer import CONTEXT

from .models import LoadedModel
from .reader import Reader
from .run import Limits, Place, Run, Steps, Token
from .sampler import Drawn, Sampler
from .states import START, Boundary, Message, StateCache
from .words import place, walk

NO_WAY_BACK = "state not kept, an attention cache cannot go back: what follows is read again"
TOO_LARGE = "state not kept, it is too large: what follows is read again"
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

    def steps(
        self, run: Run, loaded: LoadedModel, states: StateCache, limits: Limits
    ) -> Steps[None]:
        """Generate, as `Decoder.steps`."""
        return Decoder(run, loaded, self, states, limits).steps()


class Decoder:
    """Generates for a run: a step reads a chunk of the prompt or writes a token."""

    def __init__(
        self, run: Run, loaded: LoadedModel, request: Request, states: StateCache, limits: Limits
    ) -> None:
        self.run, self.loaded, self.request = run, loaded, request
        self.states, self.limits = states, limits
        self.begun = self.first = time.perf_counter()
        self.ids: list[int] = []
        self.answer: list[int] = []

    def steps(self) -> Steps[None]:
        """Generate; yield after every step, and while the tokenizer works."""
        fresh, self.reader = yield from self._begin()
        unread = fresh[:-1]  # the answer begins with reading the last one
        while unread and not self.run.stopped:
            self.reader.read(mx.array(unread[:CHUNK]))
            mx.eval(self.reader.caches.arrays)
            self.reader.take()
            unread = unread[CHUNK:]
            yield
        if self.run.stopped:
            return
        self._keep_state(self._messages(), self.text, self.ids, unread=1)
        self.written = len(self.text)  # with the answer
        drawn = self._draw(mx.array(self.ids[-1:]))
        while not self.run.stopped and len(self.answer) < self.request.max_tokens:
            following = yield from self._write(drawn)
            if following is None:
                break
            drawn = following
            yield
        else:
            mx.eval(self.reader.caches.arrays)  # the last token of the answer has been read too
        yield from self._finish()

    def _begin(self) -> Steps[tuple[list[int], Reader]]:
        """Return the tokens to read, and the reader in the state before them."""
        run, call = self.run, self.loaded.tokenizer.call
        empty, self.stops, special = yield from call("special_ids")
        self.special = set(special)
        start = yield from self._tokens()
        self.ids = self.ids or [empty]  # a text starts after this one
        fresh = self.ids[len(start.ids) - start.unread :]
        self._check(fresh)
        reader = Reader(self.loaded, start, run, self.request.record, self.limits)
        run.stats.waiting_seconds = self.begun - run.submitted
        run.stats.prompt_tokens, run.stats.prompt_tokens_read = len(self.ids), len(fresh)
        texts = yield from call("pieces", fresh)
        known = len(start.text) - sum(map(len, texts[: start.unread]))
        begins = walk(self.text, texts, known)
        run.pieces += [
            Token(text, id, "prompt", special=id in self.special, begin=begin)
            for text, id, begin in zip(texts, fresh, begins, strict=True)
        ]
        run.earlier = tuple(self.ids[: len(self.ids) - len(run.pieces)])
        self.sampler = Sampler(self.request.sampling, self.loaded.layout.outputs, self.ids)
        return fresh, reader

    def _tokens(self) -> Steps[Boundary]:
        """Set the whole text and its tokens; returns the state from which to read.

        A state without its trace is used only where reading again would take long.
        """
        self.text, typed, start = yield from self._prompt()
        call = self.loaded.tokenizer.call
        new = yield from call("encode", self.text[len(start.text) :], typed)
        self.ids = [*start.ids, *new]
        if self.request.record and (messages := self._messages()):
            found = yield from call("places", messages, self.text)
            self.run.places = (*map(place, messages, found), Place("assistant", len(self.text)))
        is_lost = self.request.record and self.loaded.instrumented.names and not start.recorded()
        return START if is_lost and len(self.ids) <= self.limits.reread_tokens else start

    def _prompt(self) -> Steps[tuple[str, list[int] | None, Boundary]]:
        """Return the whole text, the latest cached state on the way, and what is typed after it.

        That is: positions inside special tokens that somebody has typed, or None for all.
        """
        request, loaded = self.request, self.loaded
        if isinstance(request.prompt, str):
            return request.prompt, None, START
        text, typed = yield from loaded.tokenizer.call("render", request.prompt)
        if request.conversation is None:
            return text, typed, START
        found = self.states.prefixes(request.conversation, loaded.fingerprint, request.prompt, text)
        start = next(filter(loaded.fits, reversed(found)), START)
        known = len(start.text)
        return text, [position - known for position in typed if position >= known], start

    def _check(self, fresh: list[int]) -> None:
        most, vocabulary = self.limits.input_tokens, self.loaded.vocabulary
        if len(fresh) > most:
            raise InputError(
                f"prompt: {len(fresh):,} new tokens, at most {most:,} can be read at once; "
                "send a shorter text"
            )
        if None in fresh:
            raise InputError("prompt: empty, and the model has no token to begin with; type a word")
        if max(fresh) >= vocabulary:
            raise InputError(
                f"model: its tokenizer makes token {max(fresh)}, it has {vocabulary}; "
                "use another model"
            )

    def _draw(self, token: mx.array) -> Drawn:
        """Begin to compute the token after this one `[1]`."""
        drawn = self.sampler(self.reader.read(token))
        async_eval(drawn, self.reader.caches.arrays)
        return drawn

    def _write(self, drawn: Drawn) -> Steps[Drawn | None]:
        """Add a token to the answer; returns the next one, or None after the last."""
        before = self.reader.caches.mark()
        # The next step is on its way before this one's token is looked at.
        following = self._draw(drawn.token)
        token = int(np.array(drawn.token)[0])
        self.reader.take_now_and_then()
        self._measure()
        if token in self.stops:
            self.reader.undo(before)
            return None
        ids, chances = drawn.candidates()
        write = self.run.id, self.ids[-CONTEXT:], token, ids
        text, texts = yield from self.loaded.tokenizer.call("write", *write)
        self.answer.append(token)
        self.run.stats.tokens = len(self.answer)
        candidates = tuple(zip(texts, chances, strict=True))
        special = token in self.special
        self.run.pieces.append(Token(text, token, "answer", candidates, special, self.written))
        self.written += len(text)
        return following

    def _measure(self) -> None:
        now, stats = time.perf_counter(), self.run.stats
        stats.state_bytes, stats.attention_bytes = self.reader.caches.nbytes
        if self.answer:
            stats.decode_tokens_per_second = len(self.answer) / (now - self.first)
            return
        self.first, stats.first_token_seconds = now, now - self.begun
        stats.prefill_tokens_per_second = stats.prompt_tokens_read / (now - self.begun)
        stats.memory_bytes = mx.get_active_memory()

    def _finish(self) -> Steps[None]:
        run = self.run
        rest = yield from self.loaded.tokenizer.call("end", run.id)
        if rest:
            run.pieces[-1] = replace(run.pieces[-1], text=run.pieces[-1].text + rest)
        self.reader.take()
        run.stats.memory_bytes = mx.get_active_memory()
        if self.answer:
            messages = (*self._messages(), ("assistant", run.text))
            self._keep_state(messages, self.text + run.text, self.ids + self.answer, unread=0)

    def _messages(self) -> tuple[Message, ...]:
        return () if isinstance(self.request.prompt, str) else self.request.prompt

    def _keep_state(
        self, messages: tuple[Message, ...], text: str, ids: list[int], unread: int
    ) -> None:
        if self.request.conversation is None or isinstance(self.request.prompt, str):
            return
        run = self.run
        if (kept := self.reader.caches.keep()) is None:
            run.stats.note = NO_WAY_BACK
            return
        states, attended = kept
        seen = len(run.pieces) - unread
        boundary = Boundary(
            messages, text, tuple(ids), unread, states, weakref.ref(run), seen, attended
        )
        if not self.states.put(self.request.conversation, self.loaded.fingerprint, boundary):
            run.stats.note = TOO_LARGE
