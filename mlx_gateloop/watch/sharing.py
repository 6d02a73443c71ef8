"""A trace as one HTML file, which needs no server and no network."""

import base64
import hashlib
import html
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from mlx_gateloop.errors import InputError, shown
from mlx_gateloop.watch.checks import check_indices

PARTS = Path(__file__).parent / "shared"
# Range of the decay rate -log|a| in `Trace.columns`, 8 bits on a log scale: half-lives from 0.04 to
# 700,000 tokens. |a| itself in 8 bits could not represent long memory.
LOW, HIGH = 1e-6, 16.0
# Each file imports only from earlier ones.
SCRIPTS = ("colours.js", "data.js", "plain.js", "play.js", "view.js", "recorded.js")
MAX_TOKENS = 1000  # the retention then takes 0.5 MB
ROWS, MIN_ROWS = 96, 8  # in a layer's picture
COLUMN_BYTES = 1 << 20  # in all pictures together
# Control characters and bidirectional marks.
SIGNS = r"[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]"
UNKNOWN = 0  # code of a strength that was not recorded
Kind = Literal["prompt", "answer", "special", "system"]


@dataclass(frozen=True)
class Counterfactual:
    """Another answer, generated without some earlier words.

    Args:
        left_out: Positions of the tokens that were left out, as in `without`.
        answer: Token texts of the other answer.

    Examples:
        >>> Counterfactual(left_out=[8], answer=["another", " answer"]).left_out
        [8]
    """

    left_out: Sequence[int]
    answer: Sequence[str]


def share(
    trace: Any,
    texts: Sequence[str],
    kinds: Sequence[Kind] | None = None,
    *,
    forgotten: Sequence[Counterfactual] = (),
    title: str = "What a model remembers",
    start: int = 0,
    with_system: bool = False,
) -> str:
    """Make one HTML file of a trace, in which words fade as the state forgets them.

    The file contains the given texts, `Trace.retention` at every token and the decays in 8 bits,
    and nothing else about the model or the machine. It is ASCII, and its policy allows only its own
    script.

    Args:
        trace: A `Trace` whose window covers all tokens on the page.
        texts: Text of each token.
        kinds: Kind of each token: "prompt", "answer", "special" (hidden) or "system". None means
            "answer" for all.
        forgotten: Recorded answers without some words.
        title: Heading.
        start: First token on the page.
        with_system: Also show tokens of the kind "system".

    Returns:
        The content of the file.

    Raises:
        ValueError: Texts or kinds do not fit the trace, there are too many tokens, or positions do
            not exist.

    Examples:
        >>> import mlx_gateloop as gl
        >>> model = gl.Model(gl.ModelArgs(vocab_size=9, hidden_size=8, num_hidden_layers=2))
        >>> page = share(gl.watch.trace_of(model, [1, 2]), ["one", " two"])
        >>> page.startswith("<!doctype html>")
        True
    """
    kinds = ["answer"] * len(texts) if kinds is None else kinds
    if len(texts) != trace.tokens or not all(isinstance(text, str) for text in texts):
        raise InputError(f"texts: expected {trace.tokens}, one per token, got {len(texts)}")
    if len(kinds) != len(texts):
        raise InputError(f"kinds: expected {len(texts)}, one per token, got {len(kinds)}")
    if wrong := [kind for kind in kinds if kind not in get_args(Kind)]:
        raise InputError(f"kinds: expected {', '.join(get_args(Kind))}, got {shown(wrong[0])}")
    check_indices("start", [start], max(len(texts), 1))
    for each in forgotten:
        if wrong_positions := [m for m in each.left_out if not 0 <= m < len(texts)]:
            expected = f"positions from 0 to {len(texts) - 1}"
            raise InputError(f"forgotten: expected {expected}, got {shown(wrong_positions[0])}")
    kept = [t for t in range(start, len(texts)) if with_system or kinds[t] != "system"]
    if len(kept) > MAX_TOKENS:
        limit = f"a page shows at most {MAX_TOKENS} tokens, got {len(kept)}"
        raise InputError(f"start: {limit}; use a start of {len(texts) - MAX_TOKENS} or more")
    data = {
        "texts": [texts[token] for token in kept],
        "kinds": [kinds[token] for token in kept],
        "left": base64_of(_strengths(trace, kept)),
        "rates": [LOW, HIGH],
        "layers": [_layer(trace, layer, kept) for layer in range(trace.layers)],
        "forgotten": [_changes(each, texts, kinds, kept) for each in forgotten],
    }
    first = kept[0] if kept else 0
    note = f" The {first:,} tokens before these are omitted." if start and first else ""
    return filled(data, title, SCRIPTS, part("words.html").format(about="", form="", note=note))


def _strengths(trace: Any, kept: Sequence[int]) -> np.ndarray:
    """Encode the retention of the tokens at each other."""
    rows, first = [np.zeros(0, np.uint8)], kept[0] if kept else 0
    positions = np.array(kept, int) - first
    shares = list(trace.retentions(first)) if kept else []
    for at, position in enumerate(positions):
        rows.append(strength_codes(shares[position][positions[: at + 1]]))
    return np.concatenate(rows)


def strength_codes(shares: np.ndarray) -> np.ndarray:
    """Encode square roots of shares, relative to the largest, as 1 to 255; NaN as `UNKNOWN`."""
    known = np.isfinite(shares)
    maximum = max(shares[known].max(initial=0), 1e-30)
    codes = 1 + np.rint(254 * np.sqrt(np.where(known, shares, 0) / maximum))
    return np.where(known, codes, UNKNOWN).astype(np.uint8)


def _layer(trace: Any, layer: int, kept: Sequence[int]) -> dict[str, Any]:
    """Encode the decays of a layer in rows of similar channels, long memory on top."""
    start = kept[0] if kept else 0
    codes = trace.columns(layer, start)[:, 0][[token - start for token in kept]]
    max_groups = max(MIN_ROWS, COLUMN_BYTES // max(1, len(kept) * trace.layers))
    order = np.argsort(codes.mean(0), kind="stable") if len(kept) else np.arange(codes.shape[1])
    groups = np.array_split(order, min(len(order), ROWS, max_groups))
    rows = np.rint(np.stack([codes[:, group].mean(1) for group in groups], 1)).astype(np.uint8)
    return {"kind": trace.kinds[layer], "rows": len(groups), "codes": base64_of(rows)}


def _changes(
    forgotten: Counterfactual, texts: Sequence[str], kinds: Sequence[str], kept: Sequence[int]
) -> dict[str, Any]:
    """Mark the tokens in which the last answer and the other one differ."""
    asked = max((i for i, token in enumerate(kept) if kinds[token] == "prompt"), default=-1)
    original = [texts[token] for token in kept[asked + 1 :] if kinds[token] == "answer"]
    other = list(forgotten.answer)
    gone, added = list[int](), list[int]()
    for kind, i, i_end, j, j_end in SequenceMatcher(None, original, other, False).get_opcodes():
        if kind != "equal":
            gone += range(i, i_end)
            added += range(j, j_end)
    left_out = [kept.index(m) for m in forgotten.left_out if m in kept]
    return {"left_out": left_out, "answer": other, "gone": gone, "added": added}


def _escaped(signs: str, text: str) -> str:
    """Replace the signs that a pattern matches by their codes, as in plain.js."""
    return re.sub(signs, lambda sign: f"\\u{ord(sign[0]):04x}", text)


def base64_of(codes: np.ndarray) -> str:
    return base64.b64encode(codes.tobytes()).decode("ascii")


def filled(
    data: dict[str, Any],
    title: str,
    scripts: Sequence[str],
    body: str,
    styles: Sequence[str] = ("page.css",),
    model: str = "",
    workers: str = "'none'",
) -> str:
    """Fill the template; in the data, markup and all that is not ASCII becomes codes."""
    style, script = "".join(map(part, styles)), script_of(scripts)
    return part("page.html").format(
        title=_ascii(html.escape(_escaped(SIGNS, title))),
        style=style,
        style_hash=_hash(style),
        script=script,
        script_hash=_hash(script),
        data=_escaped("[<>&]", json.dumps(data, separators=(",", ":"))),
        body=body,
        model=model,
        workers=workers,
    )


def part(name: str) -> str:
    """Read a file of a page, as ASCII."""
    return _ascii((PARTS / name).read_text("utf-8"))


def _ascii(text: str) -> str:
    return text.encode("ascii", "xmlcharrefreplace").decode("ascii")


def script_of(files: Sequence[str]) -> str:
    """Join modules into one ASCII script without imports."""
    texts = [(PARTS / name).read_text("utf-8") for name in files]
    joined = re.sub(r"^import .*\n|^export ", "", "\n".join(texts), flags=re.MULTILINE)
    return _escaped(r"[^\x00-\x7f]", joined)


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode("utf-8")).digest()
    return f"'sha256-{base64.b64encode(digest).decode('ascii')}'"
