"""Words of a conversation: the tokens of each, and its position in its message."""

import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from .prefix_cache import Message
from .run import MessageSpan, Run, Token

# Browsers drop or join these characters; replacing them keeps positions the same.
SHOWN = str.maketrans({"\0": "\ufffd", "\r": " "})
SENTENCE_ENDS = ".!?\u2026\u3002\uff01\uff1f"


@dataclass(frozen=True)
class Word:
    """A word or a punctuation mark, without the whitespace around it."""

    message: int  # number of its message, not counting the system prompt
    begin: int  # offset in the message in UTF-16 units, as in JavaScript
    text: str
    first: int  # index of its first token in the run's pieces
    stop: int  # index after its last token
    sentence: int  # number of its sentence in the run


class Words:
    """The words of a growing run; call `update` from one thread at a time.

    A word consists of whole tokens. Tokens without a known position belong to no word, nor do those
    after a gap in a message.
    """

    def __init__(self) -> None:
        self.words: list[Word] = []
        self._next = 0  # next piece
        self._partial: int | None = None  # first piece of an incomplete character
        self._span = 0  # index of the message
        self._number = 0  # the message's number, without the system prompt
        self._characters = self._units = 0  # length of the message so far
        self._blank = ""  # whitespace after the last word

    def update(self, run: Run) -> list[Word]:
        """Add the run's new pieces; the last one may still change until the run is done."""
        settled = len(run.pieces) - (not run.done)
        for index in range(self._next, settled):
            self._add_piece(index, run.pieces[index], run.message_spans)
        self._next = max(self._next, settled)
        return self.words

    def _add_piece(self, index: int, piece: Token, spans: Sequence[MessageSpan]) -> None:
        first, self._partial = index if self._partial is None else self._partial, None
        if not piece.text:  # its character ends with a later token
            self._partial = first
            return
        if piece.begin is None:
            return
        span = self._find_span(piece.begin, spans)
        if span is None or span.role == "system":
            return
        end = piece.begin + len(piece.text) if span.end is None else span.end
        begin = max(piece.begin, span.begin)
        if begin - span.begin == self._characters:
            text = piece.text[begin - piece.begin : end - piece.begin].translate(SHOWN)
            self._add_text(text, "" if piece.special else text.strip(), first, index + 1, span.lead)

    def _find_span(self, begin: int, spans: Sequence[MessageSpan]) -> MessageSpan | None:
        """Return the span of the message that ends after this position."""
        while self._span < len(spans):
            span = spans[self._span]
            if span.end is None or begin < span.end:
                return span
            self._number += span.role != "system"
            self._span += 1
            self._characters = self._units = 0
            self._blank = "\n"
        return None

    def _add_text(self, text: str, body: str, first: int, stop: int, lead: int) -> None:
        before = text[: len(text) - len(text.lstrip())]
        begin = lead + self._units + units(before)
        last = self.words[-1] if self.words else None
        blank = self._blank + before
        if body and last and not blank and _join(last.text[-1], body[0]):
            self.words[-1] = replace(last, text=last.text + body, stop=stop)
        elif body:
            ends = last and blank and ("\n" in blank or last.text[-1] in SENTENCE_ENDS)
            sentence = last.sentence + bool(ends) if last else 0
            self.words.append(Word(self._number, begin, body, first, stop, sentence))
        self._blank = text[len(text.rstrip()) :] if body else self._blank + text
        self._characters += len(text)
        self._units += units(text)


def message_span(message: Message, found: tuple[int, int] | None) -> MessageSpan:
    """Make the span of a message from a result of `ChatTokenizer.message_spans`."""
    role, text = message
    return MessageSpan(role, *(found or (0, 0)), len(text) - len(text.lstrip()))


def token_begins(text: str, pieces: Sequence[str], begin: int) -> list[int | None]:
    """Return where consecutive pieces begin in a text, starting at `begin`.

    The detokenizer omits a space before the first one. All are None from the first piece that does
    not match the text.
    """
    found: list[int | None] = []
    for piece in pieces:
        if not text.startswith(piece, begin) and text.startswith(" " + piece, begin):
            begin += 1
        if begin < 0 or not text.startswith(piece, begin):
            break
        found.append(begin)
        begin += len(piece)
    return found + [None] * (len(pieces) - len(found))


def units(text: str) -> int:
    """Count the UTF-16 units of a text."""
    return len(text) + sum(character > "\uffff" for character in text)


def _join(before: str, after: str) -> bool:
    """Return True if two adjacent characters belong to one word."""
    if is_mark(after):
        return True
    wide = any(unicodedata.east_asian_width(character) in "WF" for character in (before, after))
    return not wide and all(c.isalnum() or c == "_" or is_mark(c) for c in (before, after))


def is_mark(character: str) -> bool:
    return unicodedata.category(character).startswith("M")  # combining


UNITS: dict[str, Callable[[Word], object]] = {
    "words": lambda word: word.first,
    "sentences": lambda word: word.sentence,
    "messages": lambda word: word.message,
}


def tokens_of(words: Sequence[Word], unit: range) -> range:
    """The tokens of some words, and those between them."""
    return range(words[unit[0]].first, words[unit[-1]].stop)


def units_of(words: Sequence[Word], key: Callable[[Word], object]) -> Iterator[range]:
    """Group consecutive words; yield their numbers."""
    for _, group in groupby(range(len(words)), lambda number: key(words[number])):
        numbers = list(group)
        yield range(numbers[0], numbers[-1] + 1)
