"""Recall of facts after 10 to 1,000,000 bytes of text, by a model trained to keep them.

`python benchmarks/remembering.py OUT` trains a model of bytes on the sources of Python's standard
library (20 minutes on one core), saves it in OUT/first and OUT/second after each stage, unless
it is there, and writes OUT/remembering.md and OUT/remembering.png.

Facts stand in the text: `=C7` says that C is 7, and after `?C` comes 7. Eight keys have a digit
each. In training a new digit replaces it after a time drawn evenly in its logarithm: up to 200
bytes for two keys, for the others up to a limit that grows from 64 to 30,000 bytes in the first
stage. There an event comes every 9 bytes or so, and an answer may renew what it repeats. In the
second stage one in a hundred follows a silence, drawn likewise, whose limit grows to 30,000 bytes.
Windows begin with the state after the one before, so gradients reach back one window at most. The
loss is that of answers and a twentieth of that of other bytes.
"""

import argparse
import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import mlx_gateloop as gl  # before MLX, for its BLAS

# isort: split
import mlx.core as mx
import mlx.nn as nn
import mlx.optimizers as optim
import numpy as np

from mlx_gateloop.data import load_corpus
from mlx_gateloop.data.documents import texts
from mlx_gateloop.io.models import load_model
from mlx_gateloop.io.tables import markdown_table
from mlx_gateloop.plots.style import FAINT, add_legend, new_figure, save_png
from mlx_gateloop.tokenizer import byte_tokenizer

KEYS = [b"A", b"B", b"C", b"D", b"E", b"F", b"G", b"H"]
DIGITS = slice(ord("0"), ord("9") + 1)
WARMUP = 100  # steps
RATE, TRANSITION_RATE, OTHER_BYTES = 3e-3, 7.5e-4, 0.05
GAP = 6  # bytes of text between two facts, on average
ASKED = 0.65  # share of questions where a digit is due to be replaced
SHORT, NEAR, FAR = 200, 64, 30_000  # limits of times in bytes


class Stage(NamedTuple):
    """A part of the training."""

    name: str
    steps: int
    batch: int
    length: int  # of a window, in bytes
    grows: tuple[float, float]  # shares of the steps between which a limit grows from NEAR to FAR
    silences: float  # share of events that follow one


STAGES = (
    Stage("first", 7_000, 8, 256, (0.6, 0.9), 0.0),
    Stage("second", 6_000, 4, 512, (0.0, 0.6), 0.01),
)
ROWS, PASSAGE, READ = 8, 512, 4096  # of the probe; READ bytes in one pass
DISTANCES = [10, 31, 100, 316, 1000, 3162, 10_000, 31_623, 100_000, 316_228, 1_000_000]


class Stream:
    """An endless text with facts and questions."""

    def __init__(self, text: bytes, seed: int, silences: float = 0.0) -> None:
        self.random, self.text, self.silences = np.random.default_rng(seed), text, silences
        self.at = int(self.random.integers(len(text)))
        self.bytes, self.answers, self.written = bytearray(), list[bool](), 0
        self.digit, self.until = [b""] * len(KEYS), [0] * len(KEYS)

    def take(self, count: int, limit: float) -> tuple[bytes, list[bool]]:
        """Return the next bytes, and which of them answer a question."""
        while len(self.bytes) < count:
            gap = int(self.random.integers(2 * GAP + 1))
            if self.silences and self.random.random() < self.silences:
                gap = self._time(2 * GAP, limit)
            self._add(self.plain(gap))
            due = [key for key, until in enumerate(self.until) if until <= self.written]
            known = [key for key in range(len(KEYS)) if key not in due]
            if due and (not known or self.random.random() > ASKED):
                self._state(int(self.random.choice(due)), FAR if self.silences else limit)
            else:
                key = int(self.random.choice(known))
                self._add(b"?" + KEYS[key])
                self._add(self.digit[key], True)
        taken = bytes(self.bytes[:count]), self.answers[:count]
        self.bytes, self.answers = self.bytes[count:], self.answers[count:]
        return taken

    def plain(self, count: int) -> bytes:
        """Return the next bytes of the text itself."""
        begin, self.at = self.at, (self.at + count) % len(self.text)
        end = begin + count
        return self.text[begin:end] + self.text[: max(0, end - len(self.text))]

    def _state(self, key: int, limit: float) -> None:
        self.digit[key] = b"%d" % self.random.integers(10)
        self.until[key] = self.written + self._time(8, SHORT if key % 4 == 3 else limit)
        self._add(b"=" + KEYS[key] + self.digit[key])

    def _time(self, least: float, limit: float) -> int:
        return int(math.exp(self.random.uniform(math.log(least), math.log(limit))))

    def _add(self, new: bytes, is_answer: bool = False) -> None:
        self.bytes += new
        self.answers += [is_answer] * len(new)
        self.written += len(new)


def corpora() -> tuple[bytes, bytes]:
    """Return the text for training and that of the probe, without question marks."""
    corpus = load_corpus("python-source", validation_fraction=0.05)
    parts = corpus.train, [*corpus.validation, *corpus.test]
    first, second = ("".join(texts(part)).encode().replace(b"?", b".") for part in parts)
    return first, second


def new_model() -> gl.Model:
    """Make a model of two layers with six heads."""
    mx.random.seed(0)
    return gl.Model(
        gl.ModelArgs(
            vocab_size=len(byte_tokenizer()),
            hidden_size=96,
            intermediate_size=192,
            num_hidden_layers=2,
            num_heads=6,
            gate="real",
            output_gate=True,
            longest_half_life=1000.0,
            tie_word_embeddings=True,
        )
    )


def train(model: gl.Model, text: bytes, stage: Stage) -> None:
    """Train the model; the same machine gives the same weights."""
    rates = [
        optim.join_schedules(
            [
                optim.linear_schedule(0, rate, WARMUP),
                optim.cosine_decay(rate, stage.steps - WARMUP, rate / 50),
            ],
            [WARMUP],
        )
        for rate in (TRANSITION_RATE, RATE)
    ]
    adam = [optim.Adam(rate, betas=[0.9, 0.98], bias_correction=True) for rate in rates]
    optimizer = optim.MultiOptimizer(adam, [lambda name, _: "gamma_proj" in name])

    def losses(
        inputs: mx.array, targets: mx.array, answers: mx.array, states: list[mx.array | None]
    ) -> tuple[mx.array, mx.array, list[mx.array]]:
        after = read(model, inputs, states)
        each = nn.losses.cross_entropy(after[0], targets)
        answer, other = (
            (each * mask).sum() / mx.maximum(mask.sum(), 1) for mask in (answers, ~answers)
        )
        return answer + OTHER_BYTES * other, answer, [mx.stop_gradient(s) for s in after[1]]

    step = nn.value_and_grad(model, losses)
    rows = [Stream(text, seed, stage.silences) for seed in range(stage.batch)]
    states: list[mx.array | None] = [None] * len(model.layers)
    last = [row.take(1, NEAR)[0] for row in rows]
    for number in range(stage.steps):
        grown = np.interp(number / stage.steps, stage.grows, (0, 1))
        taken = [row.take(stage.length, NEAR * (FAR / NEAR) ** grown) for row in rows]
        inputs = [[*begin, *new[:-1]] for begin, (new, _) in zip(last, taken, strict=True)]
        last = [new[-1:] for new, _ in taken]
        targets, answers = mx.array([[*new] for new, _ in taken]), mx.array([a for _, a in taken])
        (_, answer, states), gradients = step(mx.array(inputs), targets, answers, states)
        optimizer.update(model, optim.clip_grad_norm(gradients, 1.0)[0])
        mx.eval(model.parameters(), optimizer.state, states, answer)
        if (number + 1) % 250 == 0:
            print(f"step {number + 1}: loss of answers {answer.item():.3f}", flush=True)


def read(
    model: gl.Model, tokens: mx.array, states: Sequence[mx.array | None]
) -> tuple[mx.array, list[mx.array]]:
    """Return the logits `[B, L, vocabulary]` and the states after the tokens `[B, L]`."""
    cache = model.make_cache()
    for layer, state in zip(cache, states, strict=True):
        layer[0] = state
    logits: mx.array = model(tokens, cache=cache)
    return logits, [layer[0] for layer in cache]


def probe(model: gl.Model, text: bytes) -> list[tuple[int, float, float]]:
    """Return for each distance the share of recalled facts, and the bits that a passage saves."""
    rows = [Stream(text, 1000 + row) for row in range(ROWS)]
    digits = np.random.default_rng(0).integers(10, size=(ROWS, len(KEYS)))
    begins, passages = list[bytes](), list[bytes]()
    for row, values in zip(rows, digits, strict=True):
        facts = [b"=" + key + b"%d" % d for key, d in zip(KEYS, values, strict=True)]
        passages.append(row.plain(PASSAGE))
        begins.append(b"".join(row.plain(GAP) + fact for fact in facts) + passages[-1])
    _, states = read(model, _tokens(begins), [None] * len(model.layers))
    # the second half of the batch has read neither facts nor passage
    states = [mx.concatenate([state, mx.zeros_like(state)]) for state in states]
    done, found = 0, []
    for distance in DISTANCES:
        while done < distance:
            count = min(READ, distance - done)
            _, states = read(model, _tokens([row.plain(count) for row in rows] * 2), states)
            mx.eval(states)
            done += count
        found.append((distance, _recall(model, states, digits), _saved(model, states, passages)))
        print(*found[-1], flush=True)
    return found


def _recall(model: gl.Model, states: list[mx.array], digits: np.ndarray) -> float:
    """Return the share of facts whose digit is the likeliest of ten."""
    right = 0
    for key, values in zip(KEYS, digits.T, strict=True):
        question = _tokens([b"?" + key] * ROWS)
        logits, _ = read(model, question, [state[:ROWS] for state in states])
        right += int((np.array(logits[:, -1, DIGITS].argmax(-1)) == values).sum())
    return right / digits.size


def _saved(model: gl.Model, states: list[mx.array], passages: list[bytes]) -> float:
    """Return how many bits a byte of the passage takes less if it was read before."""
    tokens = _tokens(passages * 2)
    logits, _ = read(model, tokens, states)
    loss = nn.losses.cross_entropy(logits[:, :-1], tokens[:, 1:], reduction="none")
    return float(loss[ROWS:].mean() - loss[:ROWS].mean()) / math.log(2)


def _tokens(rows: list[bytes]) -> mx.array:
    return mx.array([[*row] for row in rows])


def half_lives(model: gl.Model, text: bytes) -> np.ndarray:
    """Return the half-life of every channel, in bytes of text, by its mean log|a|."""
    trace = gl.watch.trace_of(model, [*text[:READ]])
    rates = [trace.rate(layer).mean(0, np.float64) for layer in range(trace.layers)]
    return math.log(2) / np.maximum(np.concatenate(rates), 1e-12)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    out: Path = parser.parse_args().out
    train_text, probe_text = corpora()
    model = new_model()
    for stage in STAGES:
        if not (out / stage.name).exists():
            train(model, train_text, stage)
            gl.save(model, byte_tokenizer(), out / stage.name)
        model = load_model(out / stage.name)
    lives = half_lives(model, probe_text)
    distances, recalled, saved = zip(*probe(model, probe_text), strict=True)
    longer = [(lives > n).mean() for n in distances]
    rows = [
        [f"{n:,}", f"{recall:.3f}", f"{round(gain, 3) + 0:.3f}", f"{share:.3f}"]
        for n, recall, gain, share in zip(distances, recalled, saved, longer, strict=True)
    ]
    table = markdown_table(["bytes between", "recall", "gain", "channels"], rows)
    print(table)
    (out / "remembering.md").write_text(table)
    figure = new_figure(8, 4)
    axes = figure.add_subplot(xlabel="bytes of text after the facts", ylabel="share")
    axes.plot(distances, recalled, marker="o", label="facts recalled")
    axes.plot(distances, longer, label="channels with a longer half-life")
    axes.axhline(0.1, color="0.6", linestyle=":", label="chance")
    axes.axvline(FAR, color="0.6", label="longest distance in training")
    axes.set_xscale("log")
    axes.set_ylim(0, 1.02)
    axes.grid(alpha=FAINT)
    add_legend(figure)
    save_png(figure, out / "remembering.png")


if __name__ == "__main__":
    main()
