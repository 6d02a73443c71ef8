"""One generation, step by step: prefill of the new tokens, then decoding."""

import time
import weakref
from dataclasses import dataclass, replace
from typing import Any

import mlx.core as mx
import numpy as np

from mlx_gateloop.errors import InputError
from mlx_gateloop.generate import Sampling, can_go_back
from mlx_gateloop.model.cache import MAX_GUESS
from mlx_gateloop.model.convolution import STATE
from mlx_gateloop.model.lookup import Ngrams
from mlx_gateloop.tokenizer import CONTEXT

from .models import LoadedModel
from .prefix_cache import START, Messages, PrefixCache, PrefixState
from .reader import Reader, Step, read_together
from .run import Limits, MessageSpan, Run, Steps, Token
from .sampler import Ranked, Sample, Sampler, ranked
from .state_files import StateFile
from .words import message_span, token_begins

NOT_TRIMMABLE = "state not cached (attention cache cannot be trimmed): the next turn reads more"
TOO_LARGE = "state not cached (too large): the next turn reads more"
NO_LOOKUP = "no lookup: this model's state cannot go back"
CHUNK = 128  # tokens of a prefill step; a run can stop, and other runs advance, between steps


@dataclass(frozen=True)
class Request:
    """A request for a generation: a text to continue, or messages to answer.

    If the last message is an answer, the generation continues it.
    """

    prompt: str | Messages
    sampling: Sampling
    max_tokens: int  # new ones
    record: bool
    conversation: str | None
    stop: tuple[str, ...] = ()  # the answer ends after any of these
    lookup: bool = False  # earlier text proposes tokens, see `model.lookup`
    state: StateFile | None = None  # the text or the conversation begins from it

    def steps(self, run: Run, loaded: LoadedModel, *shared: Any) -> Steps[None]:
        return Decoder(run, loaded, self, *shared).steps()


class Decoder:
    """Generates for a run: a step reads a chunk of the prompt or samples a token."""

    def __init__(
        self, run: Run, loaded: LoadedModel, request: Request, cache: PrefixCache, limits: Limits
    ) -> None:
        self.run, self.loaded, self.request = run, loaded, request
        self.prefix_cache, self.limits = cache, limits
        messages: Messages = () if isinstance(request.prompt, str) else request.prompt
        is_given = bool(messages) and messages[-1][0] == "assistant"
        self.messages = messages[:-1] if is_given else messages  # before the answer
        self.answer_given = messages[-1][1] if is_given else ""  # the answer to continue
        self.started = self.first = time.perf_counter()
        self.ids: list[int] = []
        self.answer: list[int] = []
        self.given = 0  # first tokens of the answer, of an earlier run
        self.beginning, self.before = START, 0  # the state file's state, and the tokens it has read
        state = request.state
        self.fingerprint = loaded.fingerprint + (state.key if state else "")
        self.text_so_far, self.guess, self.longest = Ngrams(), list[int](), MAX_GUESS
        self.answered = ""  # the new text

    def steps(self) -> Steps[None]:
        """Generate; yield after every step and while the tokenizer works."""
        fresh, self.reader = yield from self._begin()
        unread = fresh[:-1]  # the first decoding step reads the last one
        while unread and not self.run.stopped:
            self.reader.read(mx.array(unread[:CHUNK]))
            mx.eval(self.reader.caches.arrays)
            self.reader.update_trace()
            unread = unread[CHUNK:]
            yield
        if self.run.stopped:
            return
        if not self.given:
            self._cache_state(self.messages, self.text, self.ids, unread=1)
        self.written = len(self.text + self.run.text)  # characters, including the answer
        sample = yield from self._sample(mx.array(fresh[-1:]))
        while not self.run.stopped and not self._is_full():
            checkpoint = self.reader.caches.checkpoint()
            # Start the next step before waiting for this token.
            following = yield from self._sample(sample.token)
            if not (yield from self._append(sample)):
                self.reader.undo(checkpoint)
                self.run.reason = "end"
                break
            sample = yield from self._look_up(following)
        else:
            mx.eval(self.reader.caches.arrays)  # include the last token of the answer
            ids, chances = sample.candidates()
            texts = yield from self.loaded.tokenizer.call("texts", ids)
            self.run.following = tuple(zip(texts, chances, strict=True))
        yield from self._finish()

    def _begin(self) -> Steps[tuple[list[int], Reader]]:
        """Return the tokens to read, and a reader in the state before them."""
        run, call, starting = self.run, self.loaded.tokenizer.call, list[np.ndarray]()
        empty, self.stops, special = yield from call("special_ids")
        self.special = set(special)
        if self.request.state is not None:
            self.beginning, file = yield from self.request.state.start(self.loaded)
            self.before, starting = file.tokens, [np.array(of[STATE]) for of in file.cache]
        start = yield from self._tokens()
        self.ids = self.ids or [empty]  # an empty text starts with this one
        fresh = [*self.ids, *self.answer][len(start.ids) - start.unread :]
        self._check(fresh)
        reader = Reader(self.loaded, start, run, self.request.record, self.limits)
        run.stats.waiting_seconds = self.started - run.submitted
        before = max(self.before - len(self.beginning.ids), 0)  # these are in `self.ids`
        run.stats.prompt_tokens = before + len(self.ids) + self.given
        run.stats.prompt_tokens_read = len(fresh)
        run.max_tokens = self.given + self.request.max_tokens
        texts = yield from call("pieces", fresh, run.id if self.given else None)
        known = len(start.text) - sum(map(len, texts[: start.unread]))
        begins = token_begins(self.text + self.answer_given, texts, known)
        asked = len(fresh) - self.given
        run.pieces += [
            Token(text, id, "prompt" if i < asked else "answer", (), id in self.special, begins[i])
            for i, (text, id) in enumerate(zip(texts, fresh, strict=True))
        ]
        run.earlier = tuple(self.ids[: len(self.ids) + self.given - len(run.pieces)])
        if len(run.earlier) == len(self.beginning.ids):  # all since the state file is recorded
            run.starting = starting
        ids = [*self.ids, *self.answer]
        self.sampler = Sampler(self.request.sampling, ids[:-1])
        self.sampler.skip(self.given)
        if self.request.lookup and not can_go_back(reader.caches.all):
            run.stats.note = NO_LOOKUP
        elif self.request.lookup:
            for id in ids:
                self.text_so_far.add(id)
        return fresh, reader

    def _tokens(self) -> Steps[PrefixState]:
        """Set the text and its tokens; return the state to continue from.

        A state without a trace is used only if reading again takes too long.
        """
        self.text, typed, start = yield from self._prompt()
        call = self.loaded.tokenizer.call
        new = yield from call("encode", self.text[len(start.text) :], typed)
        self.ids = [*start.ids, *new]
        if given := self.answer_given:
            self.answer = self._ids_given() or (
                yield from call("encode", given, list(range(len(given))))  # all of it was typed
            )
            self.given = len(self.answer)
        if self.request.record and self.messages:
            found = yield from call("message_spans", self.messages, self.text)
            self.run.message_spans = (
                *map(message_span, self.messages, found),
                MessageSpan("assistant", len(self.text)),
            )
        is_lost = self.request.record and self.loaded.instrumented.names and not start.recorded()
        return self.beginning if is_lost and len(self.ids) <= self.limits.reread_tokens else start

    def _prompt(self) -> Steps[tuple[str, list[int] | None, PrefixState]]:
        """Return the text, the longest cached prefix, and positions of later typed special tokens.

        None instead of the positions means that all special tokens are typed.
        """
        prompt = self.request.prompt
        if isinstance(prompt, str):
            typed = [*range(len(prompt))] if self.request.state else None
            return prompt, typed, self.beginning
        text, typed = yield from self.loaded.tokenizer.call("render", self.messages)
        found = self._states(self.messages, text)
        start = next(filter(self.loaded.fits, reversed(found)), self.beginning)
        known = len(start.text)
        return text, [position - known for position in typed if position >= known], start

    def _states(self, messages: Messages, text: str) -> list[PrefixState]:
        """Return the cached states of these messages, shortest first."""
        if (conversation := self.request.conversation) is None:
            return []
        return self.prefix_cache.prefixes(conversation, self.fingerprint, messages, text)

    def _ids_given(self) -> list[int]:
        """Return the tokens of the answer to continue, if their state is cached."""
        messages, known = (*self.messages, ("assistant", self.answer_given)), len(self.ids)
        found = self._states(messages, self.text + self.answer_given)
        ids = found[-1].ids if found and found[-1].messages == messages else ()
        return [*ids[known:]] if ids[:known] == tuple(self.ids) else []

    def _check(self, fresh: list[int]) -> None:
        limit, vocabulary = self.limits.input_tokens, self.loaded.vocabulary
        if len(fresh) > limit:
            size = f"{len(fresh):,} tokens, at most {limit:,}"
            raise InputError(f"prompt: {size}; send a shorter text")
        if None in fresh:
            raise InputError("prompt: empty, and the model has no first token; type a word")
        if max(fresh) >= vocabulary:
            problem = f"its tokenizer uses id {max(fresh)}, but the model has only {vocabulary}"
            raise InputError(f"model: {problem}; use another model")

    def _sample(self, token: mx.array) -> Steps[Sample]:
        """Start to compute the token after this one `[1]`, together with other runs."""
        waiting, step = self.loaded.waiting, Step(self.reader, token)
        waiting.append(step)
        yield
        if step.after is None:
            together = [*waiting]
            waiting.clear()
            read_together(together)
        return self._sampled(step.after, token)

    def _sampled(self, after: Ranked | None, read: mx.array) -> Sample:
        assert after is not None
        sample = self.sampler(after, read)
        mx.async_eval(sample, self.reader.caches.arrays)
        return sample

    def _append(self, sample: Sample) -> Steps[bool]:
        """Append a token to the answer, unless it ends it."""
        token = int(np.array(sample.token)[0])
        self.reader.update_trace_if_due()
        self._measure()
        if token in self.stops:
            return False
        ids, chances = sample.candidates()
        before = [*self.ids[-CONTEXT:], *self.answer[-CONTEXT:]][-CONTEXT:]
        write = self.run.id, before, token, ids
        text, texts = yield from self.loaded.tokenizer.call("write", *write)
        self.answer.append(token)
        self.run.stats.tokens = len(self.answer) - self.given
        candidates = tuple(zip(texts, chances, strict=True))
        special = token in self.special
        self.run.pieces.append(Token(text, token, "answer", candidates, special, self.written))
        self.written += len(text)
        self.answered += text
        if self.text_so_far.tokens:
            self.guess = self.text_so_far.add(token)
        return True

    def _look_up(self, sample: Sample) -> Steps[Sample]:
        """Read what followed the same tokens before, and append as much as is sampled.

        Returns the sample of the next token. The recording keeps the tokens that are appended.
        """
        while len(self.guess) > 1 and not self._is_full() and not self.run.stopped:
            token = int(np.array(sample.token)[0])
            if token != self.guess[0] or token in self.stops:
                break
            left = self.request.max_tokens - self.run.stats.tokens
            guess = self.guess[: min(self.longest, left)]
            read = mx.array(guess, mx.uint32)
            after = self._sampled(ranked(self.reader.read(read)), read)
            count = 0
            while count < len(guess) and guess[count] == token and token not in self.stops:
                yield from self._append(sample)
                sample, count = after.row(count), count + 1
                token = int(np.array(sample.token)[0])
                if self._is_full():
                    break
            for each in (self.reader.trim, self.sampler.back):
                each(len(guess) - count)
            self.longest = min(MAX_GUESS, 2 * count)
            self.run.stats.guessed += count - 1
            yield
        return sample

    def _measure(self) -> None:
        now, stats = time.perf_counter(), self.run.stats
        stats.state_bytes, stats.attention_bytes = self.reader.caches.nbytes
        if stats.tokens:
            stats.decode_tokens_per_second = stats.tokens / (now - self.first)
            return
        self.first, stats.first_token_seconds = now, now - self.started
        stats.prefill_tokens_per_second = stats.prompt_tokens_read / (now - self.started)
        stats.memory_bytes = mx.get_active_memory()

    def _finish(self) -> Steps[None]:
        run = self.run
        rest = yield from self.loaded.tokenizer.call("end", run.id)
        if rest:
            run.pieces[-1] = replace(run.pieces[-1], text=run.pieces[-1].text + rest)
        self.reader.update_trace()
        run.stats.memory_bytes = mx.get_active_memory()
        if self.answer:
            messages = (*self.messages, ("assistant", run.text))
            self._cache_state(messages, self.text + run.text, self.ids + self.answer, unread=0)

    def _is_full(self) -> bool:
        """Return True at the limit, or after a stop string; the run gets the reason."""
        run = self.run
        if self.request.stop and run.stats.tokens:
            text, known = self.answered, len(self.answered) - len(run.pieces[-1].text)
            if any(end in text[max(0, known + 1 - len(end)) :] for end in self.request.stop):
                run.reason = "stop"
        if run.stats.tokens >= self.request.max_tokens:
            run.reason = run.reason or "limit"
        return bool(run.reason)

    def _cache_state(self, messages: Messages, text: str, ids: list[int], unread: int) -> None:
        if self.request.conversation is None or isinstance(self.request.prompt, str):
            return
        run = self.run
        if (snapshot := self.reader.caches.snapshot()) is None:
            run.stats.note = NOT_TRIMMABLE
            return
        states, keys_values = snapshot
        seen = len(run.pieces) - unread
        prefix = PrefixState(
            messages, text, tuple(ids), unread, states, weakref.ref(run), seen, keys_values
        )
        if not self.prefix_cache.put(self.request.conversation, self.fingerprint, prefix):
            run.stats.note = TOO_LARGE
