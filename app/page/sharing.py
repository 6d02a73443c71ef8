"""A view as one HTML file, which contains nothing of this machine but the model's name."""

import re
from collections.abc import Sequence
from pathlib import Path

from mlx_gateloop import watch
from mlx_gateloop.watch import Trace
from mlx_gateloop.watch.sharing import MAX_TOKENS, Kind

from ..generation.run import MessageSpan, Run, Token

KINDS: dict[str, Kind] = {"system": "system", "assistant": "answer"}  # others: prompt
OUTSIDE: Kind = "special"  # of all messages
TITLE_CHARACTERS = 80
NAME_CHARACTERS = 48  # in a file name


def share(run: Run, trace: Trace, with_system: int) -> dict[str, str] | None:
    """Return a run's "page", its file "name" and a "message"; None before the first token."""
    tokens = min(trace.tokens, len(run.pieces))
    words = message_words(run.pieces[:tokens], run.message_spans)
    shown = [i for i, (_, kind) in enumerate(words) if with_system or kind != "system"]
    if not shown:
        return None
    cut = len(shown) > MAX_TOKENS
    page = watch.share(
        trace.branch(tokens),
        [text for text, _ in words],
        [kind for _, kind in words],
        forgotten=[each for each in run.counterfactuals if max(each.left_out, default=0) < tokens],
        title=_title(run),
        start=shown[-MAX_TOKENS] if cut else 0,
        with_system=bool(with_system),
    )
    late = " without its beginning, which was not recorded" if run.earlier else ""
    name = f"{file_name(run)}.html"
    part = f", the last {MAX_TOKENS:,} of {len(shown):,} tokens" if cut else ""
    return {"page": page, "name": name, "message": f"Saved {name}{part}{late}."}


def message_words(pieces: Sequence[Token], spans: Sequence[MessageSpan]) -> list[tuple[str, Kind]]:
    """Separate the text of messages from what the chat template adds.

    Returns the text and the kind of each token; tokens outside known messages have an empty text.
    """
    if not spans:
        return [("" if p.special else p.text, "special" if p.special else p.kind) for p in pieces]
    remaining, words = list(spans), list[tuple[str, Kind]]()
    for piece in pieces:
        text, begin, kind = "", piece.begin, OUTSIDE
        while begin is not None and remaining and _ended(remaining[0], begin):
            remaining.pop(0)
        if begin is not None and remaining and not piece.special:
            span = remaining[0]
            text = piece.text[max(span.begin - begin, 0) : span.end and span.end - begin]
            if text or begin >= span.begin:  # it may be a part of a character
                kind = KINDS.get(span.role, "prompt")
        words.append((text, kind))
    return words


def _ended(span: MessageSpan, begin: int) -> bool:
    return span.end is not None and span.end <= begin


def has_system(run: Run) -> bool:
    """Return True if the run has a system prompt with a known span."""
    return any(s.role == "system" and not _ended(s, s.begin) for s in run.message_spans)


def file_name(run: Run) -> str:
    """Return a file name from the model and the prompt."""
    words = re.findall(r"[^\W_]+", f"{Path(run.model).name} {run.prompt[:200]}")
    return "-".join(words)[:NAME_CHARACTERS].strip("-") or "gateloop"


def _title(run: Run) -> str:
    asked = " ".join(run.prompt[: 2 * TITLE_CHARACTERS].split())
    asked = asked if len(asked) <= TITLE_CHARACTERS else f"{asked[: TITLE_CHARACTERS - 1]}…"
    late = "the beginning was not recorded" if run.earlier else ""
    return " · ".join(filter(None, (asked, Path(run.model).name, late))) or "What a model remembers"
