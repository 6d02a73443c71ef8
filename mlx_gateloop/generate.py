"""Streaming text from a model, on top of mlx-lm's generation loop."""

import random
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from mlx_gateloop.errors import InputError
from mlx_gateloop.model.lm import require_readable
from mlx_gateloop.model.state import State
from mlx_gateloop.tokenizer import TextStream, start_ids, template_ids

MAX_TOKENS = 10**9  # per answer; they take weeks
MAX_BACK = 64  # draws that can be taken back
LEAST = 1e-4  # of a temperature and of top_p, which float32 rounds


@dataclass(frozen=True)
class Sampling:
    """Values for sampling the next token.

    Args:
        temperature: 0 takes the likeliest token.
        top_p: Draw from the smallest set of tokens with at least this probability; 1 is off.
        top_k: Draw from this many likeliest tokens; 0 is off.
        min_p: Leave out tokens below this share of the highest probability; 0 is off.
        repetition_penalty: Divide the scores of recent tokens by this; 1 is off.
        seed: Seed of the random numbers; None takes another every time.
    """

    temperature: float = 0.8
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None

    def __post_init__(self) -> None:
        limits = {
            "temperature": (0 <= self.temperature < float("inf"), "at least 0"),
            "top_p": (0 < self.top_p <= 1, "in (0, 1]"),
            "top_k": (self.top_k >= 0, "at least 0"),
            "min_p": (0 <= self.min_p <= 1, "in [0, 1]"),
            "repetition_penalty": (0 < self.repetition_penalty < float("inf"), "above 0"),
            "seed": (self.seed is None or 0 <= self.seed < 2**64, "in [0, 2^64)"),
        }
        for name, (good, expected) in limits.items():
            if not good:
                raise InputError(f"{name}: expected a number {expected}, got {getattr(self, name)}")


class Draw:
    """Draws a token for each row of log probabilities, with one random number for each."""

    def __init__(self, sampling: Sampling) -> None:
        self._sampling, self._random = sampling, random.Random(sampling.seed)
        self._used: deque[int] = deque(maxlen=MAX_BACK)
        self._again: list[int] = []

    def __call__(self, logs: mx.array) -> mx.array:
        """Draw tokens `[N]` from log probabilities `[N, vocabulary]`."""
        from mlx_lm.sample_utils import apply_min_p, apply_top_k, apply_top_p

        sampling = self._sampling
        if sampling.temperature == 0:
            return mx.argmax(logs, axis=-1)
        if sampling.top_p < 1:
            logs = apply_top_p(logs, max(sampling.top_p, LEAST))
        if sampling.min_p > 0:
            logs = apply_min_p(logs, sampling.min_p)
        if 0 < sampling.top_k < logs.shape[-1]:
            logs = apply_top_k(logs, sampling.top_k)
        logs = logs.astype(mx.float32) / max(sampling.temperature, LEAST)
        # mlx-lm's own sampler draws from the global state, which other streams use too.
        rows = [
            mx.random.categorical(row, key=mx.random.key(self._number()))
            for row in mx.split(logs, len(logs))
        ]
        return rows[0] if len(rows) == 1 else mx.concatenate(rows)

    def back(self, tokens: int) -> None:
        """Take back the last draws; the next ones use their random numbers."""
        for _ in range(min(tokens, len(self._used))):
            self._again.append(self._used.pop())

    def _number(self) -> int:
        self._used.append(self._again.pop() if self._again else self._random.getrandbits(64))
        return self._used[-1]


def sampler(sampling: Sampling) -> tuple[Draw, list[Callable[[mx.array, mx.array], mx.array]]]:
    """Make what draws tokens, and mlx-lm's functions of recent tokens and logits before it."""
    from mlx_lm.sample_utils import make_logits_processors

    penalty = None if sampling.repetition_penalty == 1 else sampling.repetition_penalty
    return Draw(sampling), make_logits_processors(repetition_penalty=penalty)


@dataclass
class Speed:
    """Token counts and rates of a generation, updated while it runs."""

    prompt_tokens: int = 0
    prompt_tokens_per_second: float = 0.0
    tokens: int = 0
    tokens_per_second: float = 0.0


def stream(
    model: nn.Module,
    tokenizer: Any,
    prompt: str | Sequence[dict[str, str]],
    sampling: Sampling,
    *,
    max_tokens: int = 256,
    stop: str | Sequence[str] = (),
    speed: Speed | None = None,
    draft: nn.Module | None = None,
    lookup: bool = False,
    state: State | None = None,
) -> Iterator[str]:
    """Yield the pieces of a continuation as they come.

    Args:
        model: A model of `lm.Model`, or any that mlx-lm can run.
        tokenizer: mlx-lm's tokenizer, as `load` returns it.
        prompt: Text to continue, or chat messages (`role`, `content`) to answer.
        sampling: How tokens are drawn.
        max_tokens: Tokens at most, 1 to `MAX_TOKENS`.
        stop: One or more strings that end the text, without being part of it; see `until`.
        speed: Filled in with counts and rates.
        draft: A smaller model of the same tokenizer that proposes tokens, see `check_draft`.
        lookup: The text so far proposes tokens, see `model.lookup`.
        state: What was read before the prompt, which may then be empty; it stays as it is. A
            repetition penalty counts tokens of the prompt and the answer alone.

    Raises:
        InputError: A prompt or a limit that cannot be used.
    """
    from mlx_lm import stream_generate
    from mlx_lm.models.cache import make_prompt_cache

    from mlx_gateloop.model.lookup import lookup_tokens

    check_max_tokens(max_tokens)
    if draft is not None and lookup:
        raise InputError("draft: the text proposes tokens with lookup; leave one out")
    if draft is not None and state is not None:
        raise InputError("draft: has not read the state; leave one out")
    if draft is not None and sampling.repetition_penalty != 1:
        raise InputError("repetition_penalty: not with a draft model; leave one out")
    draw, processors = sampler(sampling)
    ids = prompt_ids(model, tokenizer, prompt, state is not None and state.tokens > 0)
    before = [*state.last, *ids] if state is not None else ids
    cache = None if state is None else deepcopy(state.cache)
    text, stops = TextStream(tokenizer, before), tokenizer.eos_token_ids
    if lookup:
        check_can_go_back("--lookup", model)

    def tokens() -> Iterator[int]:
        read, most = ids, max_tokens
        if state is not None and not read:  # its logits are those of the first token
            if state.logits is None:
                raise InputError("prompt: empty, and the state has no next token; give a word")
            first: Any = draw((state.logits - mx.logsumexp(state.logits))[None]).tolist()
            yield first[0]
            read, most = first, most - 1
            if not most:
                return
        how: dict[str, Any] = {"max_tokens": most, "sampler": draw, "logits_processors": processors}
        if state is not None:
            how["prompt_cache"] = cache
        if lookup:
            how.setdefault("prompt_cache", make_prompt_cache(model))
            yield from lookup_tokens(read, model, **how)
        else:
            responses = stream_generate(model, tokenizer, read, draft_model=draft, **how)
            for count, response in enumerate(responses):
                if count == 0 and not processors and mx.isnan(response.logprobs).any():
                    raise InputError("model: its logits are not numbers; check its weights")
                yield response.token

    def pieces(speed: Speed) -> Iterator[str]:
        start = time.perf_counter()
        for count, token in enumerate(tokens(), 1):
            now = time.perf_counter()
            if count == 1:  # the prompt was read
                speed.prompt_tokens = len(ids)
                speed.prompt_tokens_per_second = len(ids) / (now - start)
                start = now
            speed.tokens, speed.tokens_per_second = count, (count - 1) / max(now - start, 1e-9)
            if token in stops:
                break
            yield text.add(token)
        yield text.end()

    return until(pieces(speed or Speed()), stop)


def check_draft(model: nn.Module, tokenizer: Any, draft: nn.Module, its_tokenizer: Any) -> None:
    """Reject a draft with other tokens, and models with caches that cannot be trimmed."""
    if tokenizer.get_vocab() != its_tokenizer.get_vocab():
        raise InputError("--draft-model: has not the tokens of --model; use one tokenizer")
    for flag, one in (("--model", model), ("--draft-model", draft)):
        check_can_go_back(flag, one)


def check_can_go_back(flag: str, model: nn.Module) -> None:
    """Reject a model whose caches cannot go back over tokens that are not in the text."""
    from mlx_lm.models.cache import make_prompt_cache

    if not can_go_back(make_prompt_cache(model)):
        kind = getattr(model, "model_type", type(model).__name__)
        raise InputError(f"{flag}: a state of {kind} cannot be rewound; generate without drafts")


def can_go_back(caches: list[Any]) -> bool:
    """Return True if caches can drop tokens at any length; a sliding window loses older ones."""
    from mlx_lm.models.cache import can_trim_prompt_cache

    slides = any(getattr(cache, "max_size", None) for cache in caches)
    return can_trim_prompt_cache(caches) and not slides


def check_max_tokens(max_tokens: int) -> None:
    """Reject a number of tokens that no generation reaches."""
    if not 1 <= max_tokens <= MAX_TOKENS:
        raise InputError(f"max_tokens: expected 1 to {MAX_TOKENS:,}, got {max_tokens:,}")


def until(pieces: Iterator[str], stop: str | Sequence[str]) -> Iterator[str]:
    """Yield the pieces up to the first stop string; hold back text that may be the start of one.

    The stop string that is complete first ends the text, and of several the longest: with the stops
    "abcd" and "c", "xabcdy" becomes "xab".
    """
    stop = [stop] if isinstance(stop, str) else stop
    if "" in stop:
        raise InputError("stop: a stop string must not be empty")
    held = ""
    for piece in pieces:
        held += piece
        if found := [(at + len(s), at) for s in stop if (at := held.find(s)) >= 0]:
            _, start = min(found)
            if start:
                yield held[:start]
            return
        starts = (n for n in range(len(held)) if any(s.startswith(held[n:]) for s in stop))
        if safe := next(starts, len(held)):
            yield held[:safe]
            held = held[safe:]
    if held:
        yield held


def prompt_ids(
    model: nn.Module,
    tokenizer: Any,
    prompt: str | Sequence[dict[str, str]],
    is_continued: bool = False,
) -> list[int]:
    """Return the tokens that a model reads; a text begins with the tokenizer's first token."""
    ids: list[int]
    if isinstance(prompt, str):
        ids = tokenizer.encode(prompt, add_special_tokens=False)
        if not is_continued:
            start = start_ids(tokenizer)
            ids = ids if start and ids[:1] == start else start + ids
            # A new document starts after the end-of-text token, which separates documents.
            ids = ids or [tokenizer.eos_token_id]
        if ids == [None]:
            raise InputError("prompt: empty, and the model has no token to begin with; give a word")
    elif not tokenizer.has_chat_template:
        raise InputError("this model's tokenizer has no chat template; give a plain prompt")
    else:
        tools = getattr(prompt, "tools", None)
        ids = template_ids(tokenizer, prompt, tools, add_generation_prompt=True)
    require_readable(model, max(ids, default=0))
    return ids
