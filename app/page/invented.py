"""Answers that an embedded model has likely invented: its first words were improbable.

`python -m benchmarks.embedded_models.invented` finds the thresholds, on names that the models have
not learned.
"""

import math
from pathlib import Path

from ..generation.models import Models
from ..generation.run import Run
from .examples import CHAT_EXAMPLES

FIRST = 8  # tokens of an answer
# By model: geometric mean of the probabilities of the likeliest first tokens, below which it is.
THRESHOLDS = {"code": 0.9, "demo": 0.99, "demo-fixed": 0.98}


def confidence(run: Run) -> float:
    """Return the geometric mean of the greatest probabilities of the answer's first tokens."""
    first = [p for p in run.pieces[run.answer_begin :] if p.candidates][:FIRST]
    chances = [max(piece.candidates[0][1], 1e-9) for piece in first]
    return math.exp(sum(map(math.log, chances)) / len(chances)) if chances else 1.0


def offers(run: Run, models: Models) -> list[str]:
    """Return questions that the model can answer, if it has likely invented this answer."""
    if not models.is_trusted(run.model) or not run.message_spans:
        return []
    is_known = confidence(run) >= THRESHOLDS.get(Path(run.model).name, 0)
    return [] if is_known or not run.done else CHAT_EXAMPLES
