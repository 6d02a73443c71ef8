"""Compare what `gateloop train --minutes` chooses with configurations made by hand.

    python benchmarks/minutes.py RECORDS [TEXT...] --minutes 1 5

A configuration gets as many steps as fit the time, at the processor time that a step takes. Run it
with one BLAS thread (OPENBLAS_NUM_THREADS=1), or the time of several counts. A line of RECORDS is
not computed again.
"""

import argparse
import itertools
import json
import math
import time
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from mlx_gateloop.commands.parser import Parser
from mlx_gateloop.errors import InputError
from mlx_gateloop.io.tables import markdown_table
from mlx_gateloop.train import TrainConfig, train
from mlx_gateloop.train.minutes import choose, shaped
from mlx_gateloop.train.setup import Trainer, large_cache, make_source, num_parameters

RULE, STEPS = "--minutes", 9
SHAPES = ((96, 2), (128, 3), (192, 3), (256, 4), (320, 5))
CHANGES: dict[str, dict[str, Any]] = {  # of 128 x 3
    "a convolution": {"model.conv_size": 4},
    "published start": {"start": "published"},
    "batches of 4": {"data.batch_size": 4},
    "4,096 pieces": {"tokenizer.vocab_size": 4096},
    "twice the rate": {"optimizer.learning_rate": 3 / 128},
}
BY_HAND: dict[str, tuple[tuple[int, int], dict[str, Any]]] = {
    f"{width} x {blocks}": ((width, blocks), {}) for width, blocks in SHAPES
} | {f"128 x 3, {name}": ((128, 3), changes) for name, changes in CHANGES.items()}


def candidates(text: Path, minutes: float) -> dict[str, TrainConfig]:
    """Return the rule's configuration and those by hand; their steps are still to be found."""
    chosen, _ = choose(str(text), minutes, {}, time.monotonic())
    base = {
        "steps": 1,
        "data.validation_fraction": chosen.data.validation_fraction,
        "tokenizer.vocab_size": chosen.tokenizer.vocab_size,
    }
    return {RULE: chosen} | {
        name: shaped(base | changes, *shape) for name, (shape, changes) in BY_HAND.items()
    }


def seconds(trainer: Trainer) -> float:
    """Measure the processor time of a step; other work on the machine changes it little."""
    found = []
    for step in range(STEPS):
        began = time.process_time()
        trainer.step(step)
        found.append(time.process_time() - began)
    return sorted(found)[STEPS // 2]


def run(text: Path, minutes: float, name: str, config: TrainConfig) -> dict[str, Any]:
    """Train for the steps that fit the time; return what came of it."""
    source = make_source(config, str(text))
    with large_cache():
        trainer = Trainer(config, source)
        each, parameters = seconds(trainer), num_parameters(trainer.model)
    steps = max(1, round(60 * minutes / each))
    tokens, unique = (source.batches.targets * n for n in (steps, source.batches.per_epoch))
    with TemporaryDirectory() as folder:
        config = replace(config, steps=steps, eval_every=max(1, steps // 2), checkpoint_every=steps)
        out = train(config, str(text), Path(folder) / "model").out
        lines = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    return {
        "text": text.stem,
        "minutes": minutes,
        "configuration": name,
        "shape": [config.model["hidden_size"], config.model["num_hidden_layers"]],
        "parameters": parameters,
        "steps": steps,
        "tokens": tokens,
        "unique": unique,
        "seconds_per_step": round(each, 4),
        "bits_per_byte": round(min(x.get("bits_per_byte", math.inf) for x in lines), 4),
    }


def table(records: list[dict[str, Any]]) -> str:
    """Format bits per byte, and how far each is from the best one by hand."""
    found: dict[str, dict[str, float]] = {}
    for record in records:
        column = f"{record['text']}, {record['minutes']:g} min"
        found.setdefault(column, {})[record["configuration"]] = record["bits_per_byte"]
    best = {
        column: min(
            (bits for name, bits in by.items() if not name.startswith(RULE)), default=math.nan
        )
        for column, by in found.items()
    }
    rows = [
        [
            name,
            *(
                f"{by[name]:.3f} ({by[name] - best[column]:+.3f})" if name in by else ""
                for column, by in found.items()
            ),
        ]
        for name in dict.fromkeys(record["configuration"] for record in records)
    ]
    return markdown_table(["width x blocks", *found], rows)


def compare(file: Path, texts: list[Path], times: list[float]) -> list[dict[str, Any]]:
    """Make the runs that the file of records lacks, and add them to it; return all records."""
    records = [json.loads(line) for line in file.open()] if file.exists() else []
    known = {(x["text"], x["minutes"], x["configuration"]) for x in records}
    for minutes, text in itertools.product(times, texts):
        if all((text.stem, minutes, name) in known for name in (RULE, *BY_HAND)):
            continue
        for name, config in candidates(text, minutes).items():
            if (text.stem, minutes, name) not in known:
                records.append(run(text, minutes, name, config))
                with file.open("a") as out:
                    out.write(json.dumps(records[-1]) + "\n")
    return records


def main() -> None:
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("records", type=Path, metavar="RECORDS")
    parser.add_argument("texts", nargs="*", type=Path, metavar="TEXT")
    parser.add_argument("--minutes", nargs="+", type=float, default=[1.0, 5.0], metavar="N")
    given = parser.parse_args()
    try:
        print(table(compare(given.records, given.texts, given.minutes)))
    except InputError as error:
        parser.exit(2, f"error: {error}\n")


if __name__ == "__main__":
    main()
