"""Example prompts, and the answers below which they are offered.

An embedded model has likely invented an answer whose first words were improbable.
`python -m benchmarks.embedded_models.invented` finds the thresholds, on names that the models have
not learned.
"""

import math
from pathlib import Path

from ..generation.models import Models
from ..generation.run import Run

CHAT_EXAMPLES = [
    "What does `str.split` do?",
    "What does `re.sub` do?",
    "How do I use os.path.join?",
]
# From files of Python's standard library that are not in the training data of the model `code`; a
# file begins with its label. Copyright the Python Software Foundation, PSF License Version 2
# (https://docs.python.org/3/license.html).
FOLDER = Path(__file__).parent / "static" / "examples"
TEXT_EXAMPLES = dict(
    file.read_text("utf-8").split("\n", 1) for file in sorted(FOLDER.glob("*.txt"))
)
FIRST = 8  # tokens of an answer
# By model: geometric mean of the probabilities of the likeliest first tokens, below which it is.
THRESHOLDS = {"code": 0.97, "demo": 0.99, "demo-fixed": 0.98}


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
