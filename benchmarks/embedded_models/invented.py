"""Thresholds below which the app marks an answer as likely invented.

    python -m benchmarks.embedded_models.invented app/embedded_models/code

Questions about names that the model has learned, and about as many that it has not: names that its
text has once, and members that their module does not have. Half of the learned names find the
threshold, the other half and the other names test it.
"""

import random
from typing import Any

import mlx.core as mx
import numpy as np
from mlx_gateloop.app.page.examples import FIRST

import mlx_gateloop as gl
from mlx_gateloop.io.tables import markdown_table

from . import corpus
from .arguments import errors_in_one_line, paths

COUNT = 120  # names of each kind
FALSE_MARKS = 0.05  # share of learned names that the threshold marks


def names(seed: int = 0) -> tuple[list[str], list[str]]:
    """Return learned names, and others: from the text, and made up."""
    chance = random.Random(seed)
    known, once = (
        [question.split("`")[1] for question, _ in part]
        for part in (corpus.questions(), corpus.other_questions())
    )
    parts = [name.rpartition(".") for name in known if "." in name]
    made: set[str] = set()
    while len(made) < COUNT // 2:
        made.add(f"{chance.choice(parts)[0]}.{chance.choice(parts)[2]}")
        made -= {*known, *once}
    return chance.sample(known, COUNT), [*chance.sample(once, COUNT // 2), *sorted(made)]


def confidence(model: gl.Model, tokenizer: Any, question: str) -> float:
    """Return the geometric mean of the greatest probabilities of an answer's first tokens."""
    asked = [{"role": "user", "content": question}]
    new = list(tokenizer.apply_chat_template(asked, add_generation_prompt=True))
    cache, logs = model.make_cache(), []
    while len(logs) < FIRST and (not logs or new[0] not in tokenizer.eos_token_ids):
        logits = model(mx.array([new]), cache)[0, -1].astype(mx.float32)
        logs.append(float((logits - mx.logsumexp(logits)).max()))
        new = [int(logits.argmax())]
    return float(np.exp(np.mean(logs)))


def main() -> None:
    rows = []
    for path in paths(__doc__, last="models"):
        model, tokenizer = gl.load(str(path))
        chance = random.Random(1)
        asked = [[chance.choice(corpus.WORDINGS).format(n) for n in kind] for kind in names()]
        learned, others = (
            np.array([confidence(model, tokenizer, question) for question in kind])
            for kind in asked
        )
        threshold = round(float(np.quantile(learned[::2], FALSE_MARKS)), 2)
        held = [float((each < threshold).mean()) for each in (learned[1::2], others)]
        rows.append([str(path), f"{threshold:.2f}", *(f"{share:.1%}" for share in held)])
    header = ["model", "threshold", "learned names marked", "other names marked"]
    print(markdown_table(header, rows))


if __name__ == "__main__":
    with errors_in_one_line():
        main()
