"""Lookup decoding: what followed the last tokens earlier in the text is what may follow now.

The model reads such a guess in one pass. What it draws at each position is the text; the guess only
says how many positions one pass may serve. So the text is as without guesses, token by token.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.cache import trim_prompt_cache
from mlx_lm.utils import common_prefix_len

from mlx_gateloop.model.cache import MAX_GUESS

Processor = Callable[[mx.array, mx.array], mx.array]  # recent tokens and logits to logits
Sampler = Any  # a `generate.Draw`, of a module that imports this one
SIZES = 4, 3  # n in the n-grams, longest first
CONTEXT = 64  # last tokens for the functions of recent ones, which look at 20
STEP = 2048  # tokens of the prompt read at once


class Ngrams:
    """The tokens of a text, and where its n-grams last ended."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self._ends: dict[tuple[int, ...], int] = {}

    def add(self, token: int) -> list[int]:
        """Add a token; return those that followed the last n-gram where it was before."""
        self.tokens.append(token)
        end, found = len(self.tokens), None
        for size in SIZES:
            ngram = tuple(self.tokens[-size:])
            found = found or self._ends.get(ngram)
            self._ends[ngram] = end
        return self.tokens[found : found + MAX_GUESS] if found else []


def processed(
    processors: Sequence[Processor], recent: mx.array, tokens: mx.array, logits: mx.array
) -> mx.array:
    """Apply functions of recent tokens to the logits `[N, V]` after each of some tokens `[N]`."""
    for process in processors:
        read = mx.concatenate([recent, tokens])
        ends = range(len(recent) + 1, len(read) + 1)
        rows = zip(mx.split(logits, len(tokens)), ends, strict=True)
        logits = mx.concatenate([process(read[:end], row) for row, end in rows])
    return logits


def lookup_tokens(
    prompt: Sequence[int],
    model: nn.Module,
    *,
    max_tokens: int,
    sampler: Sampler,
    logits_processors: Sequence[Processor],
    prompt_cache: list[Any],
) -> Iterator[int]:
    """Yield the tokens after a prompt; arguments as in mlx-lm's `generate_step`."""
    text = Ngrams()
    for read_before in prompt:
        text.add(read_before)

    def read(tokens: mx.array) -> mx.array:
        """Read tokens that follow the text, and draw the one after each."""
        logits = model(tokens[None], cache=prompt_cache)[0]
        recent = mx.array(text.tokens[-CONTEXT:], mx.uint32)
        logits = processed(logits_processors, recent, tokens, logits)
        drawn: mx.array = sampler(logits - mx.logsumexp(logits, -1, keepdims=True))
        mx.async_eval(drawn)
        return drawn

    for start in range(0, len(prompt) - 1, STEP):
        part = prompt[start : min(start + STEP, len(prompt) - 1)]
        model(mx.array([list(part)]), cache=prompt_cache)
        mx.eval([layer.state for layer in prompt_cache])
    longest, left = MAX_GUESS, max_tokens
    text.tokens.pop()  # it is read now
    following = read(mx.array(list(prompt[-1:]), mx.uint32))
    text.tokens.append(prompt[-1])
    while True:
        current, following = following, read(following)
        token: Any = current.item()
        guess = text.add(token)
        yield token
        if (left := left - 1) == 0:
            return
        while len(guess) > 1 and following.item() == guess[0]:
            guess = guess[: min(longest, left)]
            drawn: Any = read(mx.array(guess, mx.uint32)).tolist()
            count = 1 + common_prefix_len(guess[1:], drawn)
            trim_prompt_cache(prompt_cache, len(guess) - count)
            sampler.back(len(guess) - count)
            longest = min(MAX_GUESS, 2 * count)
            for token in guess[:count]:
                found = text.add(token)
                yield token
            if (left := left - count) == 0:
                return
            guess, following = found, mx.array(drawn[count - 1 : count], mx.uint32)
