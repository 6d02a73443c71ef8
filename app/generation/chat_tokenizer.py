"""A model's tokenizer and chat template; special tokens that a user types stay text."""

from functools import cache
from itertools import accumulate
from pathlib import Path
from typing import Any

from mlx_gateloop.errors import InputError
from mlx_gateloop.io.models import refusing
from mlx_gateloop.tokenizer import TextStream, hidden, start_ids, text_ids, token_texts, unused

from .prefix_cache import Message

MAX_CHARACTERS = 1_000_000  # rendered by a template; a conversation has at most 400,000
MAX_TOKEN_CHARACTERS = 4_096
ANSWERS = 16  # concurrent answers; the engine has fewer


class ChatTokenizer:
    """Turns messages into token ids, and tokens into text.

    All arguments and results are JSON values, because it may run in another process.
    """

    def __init__(self, path: str) -> None:
        from mlx_lm.utils import load_config, load_tokenizer

        with refusing("model", "its tokenizer cannot be loaded"):
            stops = load_config(Path(path)).get("eos_token_id")
            no_code = {"trust_remote_code": False}
            tokenizer: Any = load_tokenizer(Path(path), no_code, eos_token_ids=stops)
            added = tokenizer.added_tokens_decoder
        self._tokenizer = tokenizer
        self._special_ids = sorted(id for id, token in added.items() if token.special)
        self.stops = sorted(tokenizer.eos_token_ids)
        # Templates write the first token; a text to continue gets it here, as in mlx-lm.
        self._start = start_ids(tokenizer)
        self._answers: dict[str, TextStream] = {}
        self._text = cache(lambda id: tokenizer.decode([id])[:MAX_TOKEN_CHARACTERS])

    def get_vocab(self) -> dict[str, int]:
        """Return all tokens, whose hash is in state files."""
        return self._tokenizer.get_vocab()

    def special_ids(self) -> tuple[int | None, list[int], list[int]]:
        """Return the tokens for an empty text, for the end of an answer, and all special tokens."""
        return self._tokenizer.eos_token_id, self.stops, self._special_ids

    def render(self, messages: list[Message]) -> tuple[str, list[int]]:
        """Render messages; return the text and a position inside each typed special token."""
        if not self._tokenizer.has_chat_template:
            raise InputError("model: has no chat template; complete texts with it, or use another")
        mark = unused("".join(text for _, text in messages))
        parts = self._render(messages, mark).split(mark)
        return "".join(parts), list(accumulate(map(len, parts)))[:-1]

    def message_spans(self, messages: list[Message], text: str) -> list[tuple[int, int] | None]:
        """Return where each message begins and ends in a text that `render` wrote.

        Spaces around a message do not count, because templates strip them. All are None if the
        template changes messages.
        """
        whole = "".join(text for _, text in messages)
        mark = unused(whole)
        edge = unused(whole + mark)
        marked = [(role, _between(edge, text)) for role, text in messages]
        nowhere: list[tuple[int, int] | None] = [None] * len(messages)
        try:
            parts = self._render(marked, mark).replace(mark, "").split(edge)
        except InputError:  # the template rejects the marked messages
            return nowhere
        spoken = [message.strip() for _, message in messages]
        if "".join(parts) != text or parts[1::2] != [message for message in spoken if message]:
            return nowhere
        ends = list(accumulate(map(len, parts)))
        found = iter(zip(ends[::2], ends[1::2], strict=False))
        return [next(found) if message else None for message in spoken]

    def _render(self, messages: list[Message], mark: str) -> str:
        # The mark inside a typed special token hides it from the template, too.
        marked = [
            {"role": role, "content": hidden(self._tokenizer, text, mark)}
            for role, text in messages
        ]
        with refusing("messages", "the chat template rejects them"):
            written: str = self._tokenizer.apply_chat_template(
                marked, add_generation_prompt=True, tokenize=False
            )
        if len(written) > MAX_CHARACTERS:
            reason = f"the chat template writes {len(written):,} characters"
            raise InputError(f"messages: {reason}, at most {MAX_CHARACTERS:,} are allowed")
        return written

    def encode(self, text: str, typed: list[int] | None) -> list[int]:
        """Encode a text; special tokens at the positions `typed` become text.

        If `typed` is None, the text is to be continued: all its special tokens become text, and the
        tokenizer's first token comes before it.
        """
        with refusing("text", "the model's tokenizer cannot encode it"):
            ids = text_ids(self._tokenizer, text, typed)
        return [*self._start, *ids] if typed is None else ids

    def pieces(self, ids: list[int], answer: str | None = None) -> list[str]:
        """Return the text that each token adds; an `answer` to continue may end inside a letter."""
        if answer is None:
            return [_short(piece) for piece in token_texts(self._tokenizer, ids)]
        stream = self._stream(answer, [])
        return [_short(stream.add(token)) for token in ids]

    def write(
        self, answer: str, before: list[int], token: int, candidates: list[int]
    ) -> tuple[str, list[str]]:
        """Return the text that the next token adds to an answer, and the texts of the candidates.

        The tokens `before` precede the answer; only the last `CONTEXT` matter.
        """
        return _short(self._stream(answer, before).add(token)), self.texts(candidates)

    def _stream(self, answer: str, before: list[int]) -> TextStream:
        if answer not in self._answers:
            while len(self._answers) >= ANSWERS:  # failed answers stay here
                del self._answers[next(iter(self._answers))]
            self._answers[answer] = TextStream(self._tokenizer, before)
        return self._answers[answer]

    def texts(self, tokens: list[int]) -> list[str]:
        """Return the text of each token alone."""
        return list(map(self._text, tokens))

    def end(self, answer: str) -> str:
        """End an answer; return its buffered text, an incomplete character."""
        stream = self._answers.pop(answer, None)  # missing if the answer has no token
        return "" if stream is None else stream.end()


def _short(piece: str) -> str:
    if len(piece) > MAX_TOKEN_CHARACTERS:
        raise InputError(f"model: a token has more than {MAX_TOKEN_CHARACTERS:,} characters")
    return piece


def _between(edge: str, text: str) -> str:
    """Mark both ends of a text, inside the spaces around it."""
    if not (body := text.strip()):
        return text
    before, after = text.split(body, 1)
    return f"{before}{edge}{body}{edge}{after}"
