"""The structure of Python code at every character: numbers that a channel may follow."""

import io
import tokenize
from token import OP, STRING

import numpy as np

FEATURES = ("indentation", "open brackets", "string", "comment", "column")
_STRINGS = {STRING, *(getattr(tokenize, f"FSTRING_{part}", STRING) for part in ("START", "END"))}


def structure(text: str) -> np.ndarray:
    """Describe each character of a file that Python can parse, `[FEATURES, characters]`.

    Each feature is as of the character's end: spaces at the beginning of the line; open brackets;
    1 inside a string; 1 inside a comment; characters of the line before it.
    """
    lines = text.split("\n")
    starts = np.cumsum([0, *(len(line) + 1 for line in lines)])
    features = np.zeros((len(FEATURES), len(text)), np.float32)
    for line, start, end in zip(lines, starts[:-1], starts[1:], strict=True):
        here = features[:, start:end]
        here[0] = len(line) - len(line.lstrip(" "))
        here[4] = np.arange(here.shape[1])
    try:
        for found in tokenize.generate_tokens(io.StringIO(text).readline):
            (row, column), (last_row, last_column) = found.start, found.end
            start, end = starts[row - 1] + column, starts[last_row - 1] + last_column
            if found.type == OP and found.string in "([{":
                features[1, start:] += 1
            elif found.type == OP and found.string in ")]}":
                features[1, start:] -= 1
            elif found.type in _STRINGS or tokenize.tok_name[found.type] == "FSTRING_MIDDLE":
                features[2, start:end] = 1
            elif found.type == tokenize.COMMENT:
                features[3, start:end] = 1
    except tokenize.TokenError as error:
        raise SyntaxError(str(error)) from None
    return features
