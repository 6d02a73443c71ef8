"""A run that fits the time there is: its sizes, and a schedule that follows the clock."""

import math
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import Any

from mlx_gateloop.data.documents import text_files
from mlx_gateloop.distributed.world import ALONE
from mlx_gateloop.errors import InputError
from mlx_gateloop.train.config import TrainConfig
from mlx_gateloop.train.output import say
from mlx_gateloop.train.setup import Source, Trainer, large_cache, make_source, num_parameters

SHAPES = ((64, 2), (96, 2), (128, 3), (192, 3), (256, 4), (320, 5), (384, 6), (512, 8), (768, 12))
PIECES = 20  # per run; each is planned from the speed of the one before
WARM_UP = 0.05  # share of the time
RESERVE = 0.03  # share of the time for the last validation and files
SHORTEST = 0.1  # minutes
HELD_OUT = 400_000  # bytes of text at most
NAMED_SIZE = 10_000_000  # bytes of `python-source`; other names have parts of their own
VALIDATING = 0.1  # share of the time at most
READING = 0.2  # share of the time at most; the text is read twice
DECIDED = {"steps", "epochs", "weights", "optimizer.warmup_steps", "optimizer.knots"}
REPEATED = 15.4  # R*, passes after which a text teaches little more
TOO_OFTEN = 4 * REPEATED  # passes; more than 0.98 of what they teach is learned
FRESH, DROPOUT = 6.0, 0.12  # passes without dropout, and that of each doubling of them


class Pace:
    """The plan of a run that ends after some seconds, whatever else the machine does.

    The rate follows the share of the time that has passed: up, then half a cosine down to 0. It is
    linear by steps between knots, which the configuration stores, so that they repeat the run.
    """

    def __init__(self, seconds: float, now: Callable[[], float] = time.monotonic) -> None:
        self._now, self._end = now, now() + seconds * (1 - RESERVE)
        self._knots: list[tuple[int, float]] = [(0, 0.0)]

    def start(self, seconds_per_step: float, reserve: float = 0.0) -> None:
        """Begin with the first step; the speed and the seconds after the last one are guesses."""
        self._start = self._then = self._now()
        if (left := self._end - reserve - self._start) <= 0:
            raise InputError("--minutes: measuring and validating take all of the time; give more")
        self._each, self._length = seconds_per_step, max(1.0, left)

    def is_due(self, step: int) -> bool:
        """Tell if a piece has ended, or takes twice its time."""
        return step == self._knots[-1][0] or self._now() - self._then > 2 * self._length / PIECES

    def plan(self, config: TrainConfig, step: int) -> TrainConfig:
        """Return the configuration with the piece of the schedule that begins at `step`."""
        now, knots = self._now(), self._knots
        if step:
            (first, before), (last, after) = knots[-2:]
            self._each = (now - self._then) / (step - first)
            share = (step - first) / (last - first)
            knots[-1] = step, after if step == last else before + (after - before) * share
        passed, self._then = (now - self._start) / self._length, now
        target = min(1.0, passed + 1 / PIECES)
        count = round((target - passed) * self._length / self._each)
        least = round(self._length / self._each / 50)
        if target < 1 or step == 0 or knots[-1][1] > 0:  # the rate always falls to 0
            knots.append((step + max(1, count, least), _factor(target)))
        rest = max(0, round((1 - target) * self._length / self._each))
        total = knots[-1][0] + rest
        ahead = [*knots, *([(total, 0.0)] if rest else [])]
        return replace(config, steps=total, optimizer=replace(config.optimizer, knots=ahead))


def _factor(passed: float) -> float:
    fallen = min(1.0, max(0.0, (passed - WARM_UP) / (1 - WARM_UP)))
    return min(passed / WARM_UP, 0.5 + 0.5 * math.cos(math.pi * fallen))


def predicted_loss(parameters: float, tokens: float, unique: float) -> float:
    """Compute what a run leaves to learn: 406.4 / N^0.34 + 410.7 / D^0.28, nats.

    Source: Hoffmann et al., arXiv 2203.15556, equation 10; of a text that is read several times
    D is U + U R* (1 - exp(-(passes - 1) / R*)), Muennighoff et al., arXiv 2305.16264.
    """
    passes = max(0.0, tokens / unique - 1)
    useful = min(tokens, unique) + unique * REPEATED * (1 - math.exp(-passes / REPEATED))
    return float(406.4 * parameters**-0.34 + 410.7 * max(useful, 1.0) ** -0.28)


def choose(
    data: str, minutes: float, overrides: dict[str, Any], began: float
) -> tuple[TrainConfig, Pace]:
    """Choose a configuration for a text and a time since `began`; say in five lines what and why.

    Raises:
        InputError: Too little time or text.
    """
    if not SHORTEST <= minutes < 1e5:
        raise InputError(f"--minutes: expected {SHORTEST} to 100,000, got {minutes:g}")
    if given := DECIDED & overrides.keys():
        raise InputError(f"--minutes: decides {given.pop()}; leave it out")
    pace = Pace(60 * minutes - (time.monotonic() - began))
    size = NAMED_SIZE
    with suppress(InputError):  # a name, or a folder in another format
        size = sum(path.stat().st_size for path in text_files(Path(data))[0])
    held_out = min(0.1, HELD_OUT / max(1, size))  # each validation takes its time
    base: dict[str, Any] = {"tokenizer.vocab_size": 1024, "steps": 10}
    batch = max(1, min(8, size // 2048))  # a small text has a batch, too
    base |= {"data.validation_fraction": held_out, "data.batch_size": batch} | overrides
    config, start = shaped(base, *SHAPES[0]), time.monotonic()
    source = make_source(config, data)
    if (reading := time.monotonic() - start) > READING * 60 * minutes:
        raise InputError(f"--minutes: reading {data} takes {reading / 60:.1f} of them; give more")
    import_module("mlx_lm")  # takes seconds, which the first sample would take otherwise
    tried: list[tuple[float, tuple[int, int], float, float, float]] = []
    unique = source.batches.per_epoch * source.batches.targets
    targets = source.batches.targets * config.optimizer.accumulate  # of a step
    with large_cache():
        for shape in SHAPES:
            last, config = config, shaped(base, *shape)
            if tried and config == last:  # `overrides` decide the model
                continue
            seconds, parameters, validation = measured(config, source)
            tokens = targets * 60 * minutes * (1 - RESERVE) / seconds
            loss = predicted_loss(parameters, tokens, unique)
            tried.append((loss, shape, seconds, tokens, validation))
            if min(tried)[1] != shape or seconds * PIECES > 6 * minutes:
                break
    _, shape, seconds, tokens, validation = min(tried)
    passes = tokens / unique
    dropout, config = min(0.4, DROPOUT * math.log2(passes / FRESH)), shaped(base, *shape)
    if (dropout := round(20 * dropout) / 20) > 0 and "dropout" not in config.model:
        with suppress(InputError):  # carry_state and others need 0, the family has none
            config = shaped(base | {"model.dropout": dropout}, *shape)
    steps = max(1, round(60 * minutes / seconds))
    least = math.ceil(validation / seconds / VALIDATING)
    every = base.get("eval_every", max(1, steps // 8, min(steps, least)))
    config = replace(config, steps=steps, eval_every=every)
    model = config.model_args(vocab_size=1)
    regularized = f", dropout {config.model['dropout']}" if "dropout" in config.model else ""
    pace.start(seconds, 2 * validation)
    advice = "; give more text or less time" if passes > TOO_OFTEN else ""
    for line in (
        f"text: {source.summary}, a vocabulary of {source.vocab_size:,}",
        f"machine: {tokens / 60 / minutes:,.0f} tokens/s with the model below",
        f"model: width {model.hidden_size}, {model.num_hidden_layers} blocks, the best of "
        f"{len(tried)} by a law of scaling",
        f"steps: about {steps:,}, {passes:.1f} passes over the text{regularized}{advice}",
        f"time: {minutes:g} min; the rate falls with the clock, and config.yaml keeps it",
    ):
        say(line)
    return config, pace


def shaped(base: dict[str, Any], width: int, blocks: int) -> TrainConfig:
    """Configure a model of this width and number of blocks; `base` may change it."""
    width = base.get("model.hidden_size") or width
    model = {"hidden_size": width, "num_hidden_layers": blocks, "tie_word_embeddings": True}
    if type(width) is int:  # others are refused
        model["intermediate_size"] = 3 * width
    return TrainConfig.load(None, {"model": model} | base)


def measured(config: TrainConfig, source: Source) -> tuple[float, int, float]:
    """Measure seconds of a step after the first; count parameters; measure a validation."""
    trainer = Trainer(config, source)
    times = []
    for step in range(4):
        began = time.perf_counter()
        trainer.step(step)
        times.append(time.perf_counter() - began)
    began = time.perf_counter()
    source.evaluate(trainer.model, ALONE)
    source.glimpse(trainer.model)
    validation = time.perf_counter() - began
    return median(times[1:]), num_parameters(trainer.model), validation
