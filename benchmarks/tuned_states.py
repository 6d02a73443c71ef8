"""Compare a tuned state with LoRA, a prompt of its size, and nothing, on held-out texts.

    python benchmarks/tuned_states.py RECORDS TEXT... --model demo --seeds 3

A text's last tenth is held out. LoRA of rank 1 gets the processor time of tuning the state, with
the same shares for trials of its rate. "again" adds half the state before every BOUNDARY tokens
but the first, as for messages. A text and seed is a line of RECORDS, which is not computed again.
"""

import argparse
import itertools
import json
import math
import sys
import time
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import mlx_gateloop as gl  # before MLX, for its BLAS

# isort: split
import mlx.core as mx
import mlx.nn as nn
import mlx.optimizers as optim
import numpy as np
from embedded_models.arguments import errors_in_one_line
from mlx.utils import tree_flatten, tree_map
from mlx_lm.tuner.utils import linear_to_lora_layers
from mlx_lm.utils import dequantize_model

from mlx_gateloop.io.tables import markdown_table
from mlx_gateloop.ops.pointwise import cross_entropy
from mlx_gateloop.tokenizer import plain_ids
from mlx_gateloop.train.chunks import States, caches_of, zero_states
from mlx_gateloop.train.tune_state import TRIAL, VALIDATIONS, _Tuner

SIZES: dict[str, Any] = {"batch_size": 4, "length": 256, "steps": 40}  # of the state's training
LORA, RATES = {"rank": 1, "scale": 20.0, "dropout": 0.0}, (1e-3, 3e-3, 1e-2)
HELD, LENGTH, BOUNDARY, ROWS = 32, 512, 128, 8  # held-out pieces, tokens, and pieces of a batch
EDGES = (0, 8, 32, 128, 256, LENGTH)  # distances from the beginning


def nats(model: Any, ids: np.ndarray, states: States, again: float = 0.0) -> list[float]:
    """Compute the mean losses of the held-out pieces, of all and by distance."""
    rows, losses = np.arange(HELD)[:, None] * LENGTH + np.arange(LENGTH + 1), []
    for batch in np.split(ids[rows], HELD // ROWS):
        inputs, targets = mx.array(batch[:, :-1]), mx.array(batch[:, 1:])
        caches = caches_of(model, tree_map(lambda x: mx.repeat(x, ROWS, 0), states))
        for at in range(0, LENGTH, BOUNDARY):
            for cache, layer in zip(caches, states, strict=True):
                added = again if at else 0
                cache.cache = [x + added * y for x, y in zip(cache.cache, layer, strict=True)]
            part = slice(at, at + BOUNDARY)
            found = cross_entropy(model(inputs[:, part], caches), targets[:, part])
            losses.append(np.array(found).mean(0))
    by_distance = np.reshape(losses, (-1, LENGTH)).mean(0)
    parts = [slice(0, LENGTH), *map(slice, EDGES[:-1], EDGES[1:])]
    return [float(by_distance[part].mean()) for part in parts]


def tune_adapters(tuner: _Tuner, seconds: float) -> None:
    """Try the rates and tune a model's adapters, with the shares of `tune_state`."""
    model, training = tuner.model, tuner.training
    first, trial = tree_flatten(model.trainable_parameters()), VALIDATIONS // TRIAL
    unit = seconds / (len(RATES) * trial + VALIDATIONS)  # to train and validate once
    step = nn.value_and_grad(model, partial(tuner.loss, tuner.zero))

    def learn(rate: float, validations: int) -> tuple[float, Any]:
        """Return the lowest validation loss and its adapters."""
        model.load_weights(first, strict=False)
        optimizer, best, index = optim.Adam(rate, bias_correction=True), (math.inf, first), 0
        start = time.process_time()
        for part in range(1, validations + 1):
            while time.process_time() - start < part * unit:
                batch = training.batch(*divmod(index, training.per_epoch))
                optimizer.update(model, step(*map(mx.array, batch))[1])
                mx.eval(model.trainable_parameters(), optimizer.state)
                index += 1
            if (loss := tuner.validate(tuner.zero)) < best[0]:
                best = loss, tree_flatten(model.trainable_parameters())
        return best

    rate = min((learn(rate, trial)[0], rate) for rate in RATES)[1]
    model.load_weights(learn(rate, VALIDATIONS)[1], strict=False)


def compare(name: str, path: Path, seed: int, keys: list[str]) -> dict[str, list[float]]:
    """Return bytes, seconds and losses of each beginning."""
    model, tokenizer = gl.load(name)
    model, text = dequantize_model(model), path.read_text("utf-8")
    cut, zero = len(text) * 9 // 10, zero_states(model, 1)
    held = np.array(plain_ids(tokenizer, text[cut:]))
    if len(held) <= HELD * LENGTH:
        sys.exit(f"{path}: its last tenth has {len(held)} tokens, not {HELD * LENGTH}; give more")
    found = {"nothing": [0, 0, *nats(model, held, zero)]}
    nbytes = sum(x.nbytes for layer in zero for x in layer)
    at = int(np.random.default_rng(seed).integers(cut - nbytes))
    prompt, start = gl.State(model.make_cache()), time.process_time()
    prompt.read(model, plain_ids(tokenizer, text[at : at + nbytes]))
    spent = time.process_time() - start
    found["a prompt"] = [nbytes, spent, *nats(model, held, [c.cache for c in prompt.cache])]
    with TemporaryDirectory() as folder:
        data = f"{folder}/train.txt"
        Path(data).write_text(text[:cut], "utf-8")
        start = time.process_time()
        tuned = gl.tune_state(model, tokenizer, data, seed=seed, **SIZES)
        seconds, states = time.process_time() - start, [c.cache for c in tuned.state.cache]
        for again, label in ((0.0, "a tuned state"), (0.5, "the same, again")):
            found[label] = [nbytes, seconds, *nats(model, held, states, again)]
        for label, some in (("LoRA of one projection", {"keys": keys}), ("LoRA", {})):
            mx.random.seed(seed)
            model = dequantize_model(gl.load(name)[0])
            model.freeze()
            linear_to_lora_layers(model, len(model.layers), LORA | some)
            shape = SIZES["length"], SIZES["batch_size"]
            tune_adapters(_Tuner(model, tokenizer, data, *shape, False, seed), seconds)
            learned: Any = tree_flatten(model.trainable_parameters())
            nbytes = sum(x.nbytes for _, x in learned)
            found[label] = [nbytes, seconds, *nats(model, held, zero)]
    return found


def table(records: list[dict[str, Any]]) -> str:
    """Make the table of means and standard deviations over the seeds."""
    rows = []
    for text in dict.fromkeys(record["text"] for record in records):
        runs = [record["found"] for record in records if record["text"] == text]
        for label in runs[0]:
            values = np.array([run[label] for run in runs])
            mean, deviation = values.mean(0), values.std(0, ddof=len(runs) > 1)
            spread = [f" ± {s:.3f}" * (len(runs) > 1) for s in deviation]
            losses = [f"{m:.3f}{s}" for m, s in zip(mean[2:], spread[2:], strict=True)]
            rows.append([text, label, f"{mean[0]:,.0f}", f"{mean[1]:.0f}", *losses])
    distances = [f"{a + 1} to {b}" for a, b in itertools.pairwise(EDGES)]
    return markdown_table(["text", "begins with", "bytes", "seconds", "all", *distances], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("records", type=Path)
    parser.add_argument("texts", type=Path, nargs="*", help="none: only the table of the records")
    parser.add_argument("--model", default="demo")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--keys", nargs="+", default=["time_mixing.v_proj"])
    given = parser.parse_args()
    if len({text.stem for text in given.texts}) < len(given.texts):
        parser.error("two texts have the same name, by which RECORDS knows them; rename one")
    given.records.touch()  # before the long work
    for seed in range(given.seeds):
        for text in given.texts:
            records = read(given.records)
            record = {"text": text.stem, "seed": seed}
            if not any(record.items() <= each.items() for each in records):
                record |= {"found": compare(given.model, text, seed, given.keys)}
                with given.records.open("a") as file:
                    print(json.dumps(record), file=file)
    print(table(read(given.records)))


def read(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


if __name__ == "__main__":
    with errors_in_one_line():
        main()
