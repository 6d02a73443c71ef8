"""Scores of models that write code: on files that they have not read, beside a 5-gram.

    python -m benchmarks.embedded_models.completions app/embedded_models/code

prints Markdown: the bits for each byte of the held-out files; how many of 200 function bodies
`ast.parse` accepts, with Wilson's 95% interval; how many questions about the documentation are
answered word for word, of those that come often in the text, and of 40 that come once; and the
first ten bodies. All models must have one tokenizer. Minutes per model; what is done meanwhile goes
to the standard error.
"""

import random
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from scipy.stats import binomtest

from mlx_gateloop.data import Stream, num_bytes, pack, texts
from mlx_gateloop.errors import InputError
from mlx_gateloop.generate import Sampling, Speed, stream
from mlx_gateloop.io.models import load
from mlx_gateloop.io.tables import markdown_table
from mlx_gateloop.model.lm import Model
from mlx_gateloop.tokenizer import TextStream
from mlx_gateloop.train.evaluate import evaluate

from . import library
from .arguments import errors_in_one_line, paths
from .bodies import Function, body, functions
from .corpus import other_questions, questions
from .kneser_ney import KneserNey

BODIES, SHOWN, SEED = 200, 10, 0
TEMPERATURE = 0.5
LIMIT = 400  # tokens of a body; a longer one counts as not accepted
ANSWER = 400  # tokens of an answer
OTHERS = 40  # questions that come once
SHORT = 10  # letters of a line that may stand anywhere
ORDER = 5
WINDOW = 512  # tokens read at once; the state is carried on

# From a prompt and a seed to the pieces of a text, and the tokens that it took.
Writer = Callable[[str, int, Speed], Iterator[str]]
HEADER = (
    "", "bits per byte", f"accepted of {BODIES}", "more than a docstring", "unfinished",
    "lines, median", "answers", "others",
)  # fmt: skip


@dataclass(frozen=True)
class Written:
    """A body that a model wrote; `finished` before the limit."""

    function: Function
    body: str
    finished: bool

    @property
    def accepted(self) -> bool:
        return self.finished and self.function.accepts(self.body)


def chosen(files: Sequence[str], count: int) -> list[Function]:
    """Draw functions of some files without replacement; the same ones every time."""
    found = [function for file in files for function in functions(file)]
    return random.Random(SEED).sample(found, min(count, len(found)))


def write(functions: Sequence[Function], writer: Writer) -> list[Written]:
    """Let a model write the bodies of functions, each with a seed of its own."""
    results = []
    for seed, function in enumerate(functions):
        speed = Speed()
        text, ended = body(function, writer(function.prompt, seed, speed))
        results.append(Written(function, text, ended or speed.tokens < LIMIT))
    return results


def model_writer(model: Model, tokenizer: Any) -> Writer:
    """Make the writer of a model; the end of a document ends its text."""

    def writer(prompt: str, seed: int, speed: Speed) -> Iterator[str]:
        sampling = Sampling(temperature=TEMPERATURE, seed=seed)
        return stream(model, tokenizer, prompt, sampling, max_tokens=LIMIT, speed=speed)

    return writer


def ngram_writer(ngram: KneserNey, tokenizer: Any) -> Writer:
    """Make the writer of an n-gram model; the end of a document ends its text."""

    def writer(prompt: str, seed: int, speed: Speed) -> Iterator[str]:
        chance = np.random.default_rng(seed)
        tokens = tokenizer.encode(prompt, add_special_tokens=False)
        text = TextStream(tokenizer, tokens)
        for _ in range(LIMIT):
            likely = ngram.probabilities(tokens[1 - ORDER :]) ** (1 / TEMPERATURE)
            token = int(chance.choice(len(likely), p=likely / likely.sum()))
            speed.tokens += 1
            if token == tokenizer.eos_token_id:
                speed.tokens = 0  # ended, not stopped
                break
            tokens.append(token)
            yield text.add(token)
        yield text.end()

    return writer


def own_body(function: Function, tokenizer: Any) -> Written:
    """Take a function's own body, under the limit of the others."""
    tokens = tokenizer.encode(function.body, add_special_tokens=False)
    is_short = len(tokens) < LIMIT
    text, ended = body(function, [function.body if is_short else tokenizer.decode(tokens[:LIMIT])])
    return Written(function, text, ended or is_short)


def answered(model: Model, tokenizer: Any, asked: Sequence[tuple[str, str]]) -> int:
    """Count the questions that a model answers word for word at temperature 0."""
    right = 0
    for question, answer in asked:
        chat = [{"role": "user", "content": question}]
        pieces = stream(model, tokenizer, chat, Sampling(temperature=0), max_tokens=ANSWER)
        right += "".join(pieces).strip() == answer.strip()
    return right


def row(name: str, bits: str, written: Sequence[Written], *answers: str) -> list[str]:
    """Make a line of the table."""
    accepted = [result for result in written if result.accepted]
    code = sum(not result.function.is_documentation(result.body) for result in accepted)
    low, high = binomtest(len(accepted), len(written)).proportion_ci(method="wilson")
    return [
        name,
        bits,
        f"{len(accepted)} ({low:.0%} to {high:.0%})",
        str(code),
        str(sum(not result.finished for result in written)),
        f"{median(result.body.count(chr(10)) for result in written):.0f}",
        *(answers or ("", "")),
    ]


def shown(written: Sequence[Written]) -> str:
    """Show functions with the bodies that a model wrote."""
    parts = []
    for number, result in enumerate(written, 1):
        text = result.function.header + result.body.rstrip("\n")
        fence = "`" * max(3, *(len(run) + 1 for run in re.findall("`+", text) or [""]))
        verdict = "accepted" if result.accepted else "refused" if result.finished else "unfinished"
        parts.append(f"{number}. {verdict}\n\n{fence}python\n{text}\n{fence}\n")
    return "\n".join(parts)


def report(directories: Sequence[str | Path]) -> Iterator[str]:
    """Yield the parts of the report."""
    models = [(Path(directory).name, *load(directory)) for directory in directories]
    tokenizer = models[0][2]
    vocabulary = tokenizer.get_vocab()
    for directory, (_, _, other) in zip(directories, models, strict=True):
        if other.get_vocab() != vocabulary:
            raise InputError(
                f"{directory}: another tokenizer than {directories[0]}'s; compare apart"
            )
    files = library.unread(*directories)
    once = other_questions()
    asked = questions(), random.Random(SEED).sample(once, min(OTHERS, len(once)))
    bodies, rows, shows, size = chosen(files, BODIES), [], [], num_bytes(files)
    tokens = pack(files, tokenizer).tokens
    for name, model, _ in models:
        say(f"{name}: {len(files)} held-out files")
        score = evaluate(model, Stream(tokens), size, WINDOW, 1, carry=True)
        say(f"{name}: {len(bodies)} bodies")
        written = write(bodies, model_writer(model, tokenizer))
        say(f"{name}: {sum(map(len, asked))} questions")
        answers = (f"{answered(model, tokenizer, part)} of {len(part)}" for part in asked)
        rows.append(row(name, f"{score.bits_per_byte:.3f}", written, *answers))
        shows.append(f"## The first {SHOWN} bodies of `{name}`\n\n{shown(written[:SHOWN])}")
    say(f"{ORDER}-gram")
    read = library.parts().train
    ngram = KneserNey(pack(read, tokenizer).tokens, ORDER, len(vocabulary))
    written = write(bodies, ngram_writer(ngram, tokenizer))
    rows.append(row(f"{ORDER}-gram", f"{ngram.bits(tokens) / size:.3f}", written))
    own = [own_body(function, tokenizer) for function in bodies]
    yield f"Held-out files: {len(files)}; bytes: {size:,}; tokens: {len(tokens):,}\n"
    share = known(files, texts(read))
    yield f"Lines above {SHORT} letters that were read elsewhere: {share:.0%}\n"
    yield markdown_table(HEADER, [row("the files themselves", "", own), *rows]) + "\n"
    yield from shows


def say(line: str) -> None:
    """Tell the user what is done now."""
    print(line, file=sys.stderr, flush=True)


def known(files: Sequence[str], read: Iterable[str]) -> float:
    """The share of the files' lines that stand in other texts too."""
    elsewhere = {line.strip() for text in read for line in text.splitlines()}
    lines = [line.strip() for file in files for line in file.splitlines()]
    long = [line for line in lines if len(line) > SHORT]
    return sum(line in elsewhere for line in long) / len(long)


if __name__ == "__main__":
    with errors_in_one_line():
        for part in report(paths(__doc__, last="models")):
            print(part)
