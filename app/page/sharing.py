"""A view as a page of one file, with nothing of the machine but the model's name."""

import re
from collections.abc import Sequence
from pathlib import Path

from mlx_gateloop.watch import Trace, share
from mlx_gateloop.watch.sharing import MAX_TOKENS, Kind

from ..generation.run import Place, Run, Token

KINDS: dict[str, Kind] = {"system": "system", "assistant": "answer"}  # of roles; else the prompt's
TITLE_CHARACTERS = 80
NAME_CHARACTERS = 48  # of a file's


def shared_page(run: Run, trace: Trace, with_system: bool, name: str) -> dict[str, str] | None:
    """Return a run's "page", the "name" of its file and what is "said"; None before any token."""
    tokens = min(trace.tokens, len(run.pieces))
    words = told(run.pieces[:tokens], run.places)
    shown = [i for i, (_, kind) in enumerate(words) if with_system or kind != "system"]
    if not shown:
        return None
    cut = len(shown) > MAX_TOKENS
    page = share(
        trace.branch(tokens),
        [text for text, _ in words],
        [kind for _, kind in words],
        forgotten=[each for each in run.forgotten if max(each.left_out, default=0) < tokens],
        title=_title(run),
        start=shown[-MAX_TOKENS] if cut else 0,
        with_system=with_system,
    )
    late = " without its beginning, which was not recorded" if run.earlier else ""
    part = f", the last {MAX_TOKENS:,} of {len(shown):,} tokens" if cut else ""
    return {"page": page, "name": f"{name}.html", "said": f"Saved {name}.html{part}{late}."}


def told(pieces: Sequence[Token], places: Sequence[Place]) -> list[tuple[str, Kind]]:
    """Separate the words of messages from what the chat template writes around them.

    Returns the text and the kind of each token. Those in no known place have an empty text.
    """
    if not places:
        return [("" if p.special else p.text, "special" if p.special else p.kind) for p in pieces]
    known, words = list(places), list[tuple[str, Kind]]()
    for piece in pieces:
        begin = piece.begin
        while begin is not None and known and _ended(known[0], begin):
            known.pop(0)
        if begin is None or piece.special or not known or begin + len(piece.text) < known[0].begin:
            words.append(("", "special"))
            continue
        place = known[0]
        text = piece.text[max(place.begin - begin, 0) : place.end and place.end - begin]
        inside = bool(text) or begin >= place.begin  # or a part of a character
        words.append((text, KINDS.get(place.role, "prompt") if inside else "special"))
    return words


def _ended(place: Place, begin: int) -> bool:
    return place.end is not None and place.end <= begin


def has_system(run: Run) -> bool:
    """Return True if the run has a system prompt whose place is known."""
    return any(place.role == "system" and not _ended(place, place.begin) for place in run.places)


def file_name(run: Run) -> str:
    """Name a run after its model and prompt, for files."""
    words = re.findall(r"[^\W_]+", f"{Path(run.model).name} {run.prompt[:200]}")
    return "-".join(words)[:NAME_CHARACTERS].strip("-") or "gateloop"


def _title(run: Run) -> str:
    asked = " ".join(run.prompt[: 2 * TITLE_CHARACTERS].split())
    asked = asked if len(asked) <= TITLE_CHARACTERS else f"{asked[: TITLE_CHARACTERS - 1]}…"
    late = "the beginning was not recorded" if run.earlier else ""
    return " · ".join(filter(None, (asked, Path(run.model).name, late))) or "What a model remembers"
