"""Thresholds below which the app marks an answer as likely invented.

    python -m benchmarks.embedded_models.invented app/embedded_models/code

Questions about names that the model has learned, and about as many that it has not: names that its
text has once, and members that their module does not have. Half of the learned names find the
threshold, the other half and the other names test it.
"""

import argparse
import random
from typing import Any

import mlx.core as mx
import numpy as np
from mlx_gateloop.app.page.examples import FIRST

import mlx_gateloop as gl
from mlx_gateloop.io.tables import markdown_table

from . import corpus

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
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="+")
    rows = []
    for path in parser.parse_args().models:
        model, tokenizer = gl.load(path)
        chance = random.Random(1)
        scores = [
            np.array(
                [
                    confidence(model, tokenizer, chance.choice(corpus.WORDINGS).format(name))
                    for name in kind
                ]
            )
            for kind in names()
        ]
        threshold = round(float(np.quantile(scores[0][::2], FALSE_MARKS)), 2)
        held = [float((each < threshold).mean()) for each in (scores[0][1::2], scores[1])]
        rows.append([path, f"{threshold:.2f}", *(f"{share:.1%}" for share in held)])
    print(
        markdown_table(["model", "threshold", "learned names marked", "other names marked"], rows)
    )


if __name__ == "__main__":
    main()
