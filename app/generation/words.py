"""Words of a conversation: the tokens of each, and its place in its message."""

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, replace

from .run import Place, Run, Token
from .states import Message

# A browser leaves out or joins these; with others in their place, places stay what they are.
SHOWN = str.maketrans({"\0": "\ufffd", "\r": " "})
SENTENCE_ENDS = ".!?\u2026\u3002\uff01\uff1f"


@dataclass(frozen=True)
class Word:
    """A word, or a sign between words; blanks around it belong to its tokens only."""

    message: int  # number of its message, without the system's
    begin: int  # in the message, in UTF-16 units, as browsers count
    text: str
    first: int  # its first token, as an index of the run's pieces
    stop: int  # the one after its last token
    sentence: int  # number of its sentence in the run


class Words:
    """The words of a run, found as it grows; call `update` from one thread at a time.

    A word ends where a token ends: tokens are never cut. Words are kept as long as each begins
    where the one before it ended; tokens whose place is not known have none.
    """

    def __init__(self) -> None:
        self.words: list[Word] = []
        self._next = 0  # piece
        self._held: int | None = None  # the first piece of a character that is not whole yet
        self._place = 0  # index of the message
        self._number = 0  # of those that are not the system's
        self._characters = self._units = 0  # of the message so far
        self._blank = ""  # after the last word

    def update(self, run: Run) -> list[Word]:
        """Take the run's new pieces; the last one may still change while the run goes on."""
        settled = len(run.pieces) - (not run.done)
        for index in range(self._next, settled):
            self._take(index, run.pieces[index], run.places)
        self._next = max(self._next, settled)
        return self.words

    def _take(self, index: int, piece: Token, places: Sequence[Place]) -> None:
        first, self._held = index if self._held is None else self._held, None
        if not piece.text:  # its character ends with a later token
            self._held = first
            return
        if piece.begin is None:
            return
        place = self._go_to(piece.begin, places)
        if place is None or place.role == "system":
            return
        end = piece.begin + len(piece.text) if place.end is None else place.end
        begin = max(piece.begin, place.begin)
        if begin - place.begin == self._characters:
            text = piece.text[begin - piece.begin : end - piece.begin].translate(SHOWN)
            self._add(text, "" if piece.special else text.strip(), first, index + 1, place.lead)

    def _go_to(self, begin: int, places: Sequence[Place]) -> Place | None:
        """Return the message that ends after this place."""
        while self._place < len(places):
            place = places[self._place]
            if place.end is None or begin < place.end:
                return place
            self._number += place.role != "system"
            self._place += 1
            self._characters = self._units = 0
            self._blank = "\n"
        return None

    def _add(self, text: str, body: str, first: int, stop: int, lead: int) -> None:
        before = text[: len(text) - len(text.lstrip())]
        begin = lead + self._units + units(before)
        last = self.words[-1] if self.words else None
        blank = self._blank + before
        if body and last and not blank and _join(last.text[-1], body[0]):
            self.words[-1] = replace(last, text=last.text + body, stop=stop)
        elif body:
            sentence = 0 if last is None else last.sentence + _ends(last, blank)
            self.words.append(Word(self._number, begin, body, first, stop, sentence))
        self._blank = text[len(text.rstrip()) :] if body else self._blank + text
        self._characters += len(text)
        self._units += units(text)


def place(message: Message, found: tuple[int, int] | None) -> Place:
    """Make the place of a message from what `ChatTokenizer.places` found."""
    role, text = message
    return Place(role, *(found or (0, 0)), len(text) - len(text.lstrip()))


def walk(text: str, pieces: Sequence[str], begin: int) -> list[int | None]:
    """Return where consecutive pieces begin in a text, from `begin` on.

    The detokenizer leaves out a blank before the first one. None from the first piece on that is
    not in the text.
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
    """Return True for two characters between which no word ends."""
    if unicodedata.category(after).startswith("M"):  # a mark of the character before it
        return True
    wide = any(unicodedata.east_asian_width(character) in "WF" for character in (before, after))
    return not wide and all(c.isalnum() or c == "_" or _is_mark(c) for c in (before, after))


def _is_mark(character: str) -> bool:
    return unicodedata.category(character).startswith("M")


def _ends(last: Word, blank: str) -> bool:
    """Return True if a sentence ends with a word, which these blanks follow."""
    return "\n" in blank or (bool(blank) and last.text[-1] in SENTENCE_ENDS)
