"""Compare what `gateloop train --minutes` chooses with configurations made by hand.

    python benchmarks/minutes.py RECORDS [TEXT...] --minutes 1 5

A configuration gets as many steps as fit the time, at the processor time that a step takes. Run it
with one BLAS thread (OPENBLAS_NUM_THREADS=1), or the time of several counts. RECORDS gets the steps
of all first, then their results; the same command again continues.
"""

import argparse
import itertools
import json
import math
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from embedded_models.arguments import errors_in_one_line

from mlx_gateloop.commands.parser import Parser
from mlx_gateloop.configuration import read_json_lines
from mlx_gateloop.io.files import write_text
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
    "dropout 0.2": {"model.dropout": 0.2},
}
Choice = tuple[Sequence[int], dict[str, Any]]  # width and blocks, and what else differs
BY_HAND: dict[str, Choice] = {
    f"{width} x {blocks}": ((width, blocks), {}) for width, blocks in SHAPES
} | {f"128 x 3, {name}": ((128, 3), changes) for name, changes in CHANGES.items()}


def configured(shape: Sequence[int], changes: dict[str, Any], held_out: float) -> TrainConfig:
    """Configure a model by hand, or the rule's; its steps are still to be found."""
    base = {"steps": 1, "data.validation_fraction": held_out, "tokenizer.vocab_size": 1024}
    return shaped(base | changes, *shape)


def planned(text: Path, minutes: float) -> list[dict[str, Any]]:
    """Time the configurations; return the record of each, whose bits per byte are to be found.

    They take their steps in turn, so that other work on the machine slows all alike.
    """
    rule, _ = choose(str(text), minutes, {}, time.monotonic())
    held_out = rule.data.validation_fraction
    best = rule.model["hidden_size"], rule.model["num_hidden_layers"]
    chosen, changes = f"{best[0]} x {best[1]}", {}
    if dropout := rule.model.get("dropout"):
        chosen, changes = f"{chosen}, dropout {dropout}", {"model.dropout": dropout}
    choices: dict[str, Choice] = {chosen: (best, changes)} | BY_HAND
    trainers = {}
    for name, choice in choices.items():
        config = configured(*choice, held_out)
        trainers[name] = Trainer(config, make_source(config, str(text)))
    times: dict[str, list[float]] = {name: [] for name in choices}
    with large_cache():
        for step in range(STEPS):
            for name, trainer in trainers.items():
                began = time.process_time()
                trainer.step(step)
                times[name].append(time.process_time() - began)
    records = []
    for name, (shape, changes) in choices.items():
        each, batches = median(times[name]), trainers[name].source.batches
        steps = max(1, round(60 * minutes / each))
        record = {
            "text": text.stem,
            "minutes": minutes,
            "configuration": name,
            "chosen": name == chosen,
            "shape": shape,
            "changes": changes,
            "held_out": held_out,
            "parameters": num_parameters(trainers[name].model),
            "steps": steps,
            "tokens": batches.targets * steps,
            "unique": batches.targets * batches.per_epoch,
            "seconds_per_step": round(each, 4),
            "bits_per_byte": None,
        }
        records.append(record)
    return records


def bits_per_byte(record: dict[str, Any], text: Path) -> float:
    """Train as planned; return the best of the held-out text."""
    config = configured(record["shape"], record["changes"], record["held_out"])
    steps = record["steps"]
    config = replace(config, steps=steps, eval_every=max(1, steps // 8), checkpoint_every=steps)
    with TemporaryDirectory() as folder:
        out = train(config, str(text), Path(folder) / "model").out
        lines = read_json_lines(out / "log.jsonl")
    return round(float(min(x.get("bits_per_byte", math.inf) for x in lines)), 4)


def names(record: dict[str, Any]) -> list[str]:
    """Name the rows that a record fills: the rule's may be one by hand, too."""
    name, chosen = record["configuration"], record.get("chosen", False)
    return [RULE] * chosen + [name] * (not chosen or name in BY_HAND)


def table(records: list[dict[str, Any]]) -> str:
    """Format bits per byte, and how far each is from the best one by hand."""
    found: dict[str, dict[str, float]] = {}
    for record in records:
        if record["bits_per_byte"] is None:
            continue
        column = f"{record['text']}, {record['minutes']:g} min"
        found.setdefault(column, {}).update(dict.fromkeys(names(record), record["bits_per_byte"]))
    cells = []
    for by in found.values():
        by_hand = [bits for name, bits in by.items() if not name.startswith(RULE)]
        best = min(by_hand, default=math.nan)
        cells.append({name: f"{bits:.3f} ({bits - best:+.3f})" for name, bits in by.items()})
    rows = [
        [name, *(column.get(name, "") for column in cells)]
        for name in dict.fromkeys([RULE, *itertools.chain(*found.values())])
    ]
    return markdown_table(["width x blocks", *found], rows)


def compare(file: Path, texts: list[Path], times: list[float]) -> list[dict[str, Any]]:
    """Make the runs that the file of records lacks, and add them to it; return all records."""
    records = read_json_lines(file) if file.exists() else []
    for minutes, text in itertools.product(times, texts):
        mine = [x for x in records if (x["text"], x["minutes"]) == (text.stem, minutes)]
        if not mine:
            records += (mine := planned(text, minutes))
            save(file, records)
        for record in mine:
            if record["bits_per_byte"] is None:
                record["bits_per_byte"] = bits_per_byte(record, text)
                save(file, records)
    return records


def save(file: Path, records: list[dict[str, Any]]) -> None:
    write_text(file, "".join(json.dumps(record) + "\n" for record in records))


def main() -> None:
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("records", type=Path, metavar="RECORDS")
    parser.add_argument("texts", nargs="*", type=Path, metavar="TEXT")
    parser.add_argument("--minutes", nargs="+", type=float, default=[1.0, 5.0], metavar="N")
    given = parser.parse_args()
    if len({text.stem for text in given.texts}) < len(given.texts):
        parser.error("two texts have the same name, by which RECORDS knows them; rename one")
    print(table(compare(given.records, given.texts, given.minutes)))


if __name__ == "__main__":
    with errors_in_one_line():
        main()
