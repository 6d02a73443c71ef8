"""Measures of what is left of a token, against what predictions lose without it.

`python benchmarks/retention.py [OUT]` trains two small models (some minutes), takes the two that
come with the app, and writes OUT/retention.md (default: benchmarks/results).

A case is a position n in a text. There each measure ranks the tokens before n. So do two exact
effects: the Kullback-Leibler divergence of the next prediction without the token from the one
with it, and the sum of |loss| of all predictions that follow in the text. Spearman's correlation of
both rankings is averaged over the cases; its interval is a bootstrap over texts.
"""

import argparse
import tempfile
import warnings
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import mlx_gateloop as gl  # before MLX, for its BLAS

# isort: split
import mlx.core as mx
import numpy as np
from embedded_models import pydocs
from embedded_models.corpus import write
from scipy.stats import ConstantInputWarning, spearmanr

from mlx_gateloop.commands.parser import Parser
from mlx_gateloop.data.corpus import split
from mlx_gateloop.experiments.presets import PRESETS
from mlx_gateloop.io.models import load_model
from mlx_gateloop.io.tables import markdown_table
from mlx_gateloop.train import TrainConfig, train
from mlx_gateloop.watch.ablation import predictions
from mlx_gateloop.watch.attention_rows import state_norms
from mlx_gateloop.watch.trace import Trace

ROOT = Path(__file__).parents[1]
EMBEDDED = ROOT / "app" / "embedded_models"
NAMES = (
    "str.split", "re.sub", "json.dumps", "os.path.join", "random.shuffle", "str.join", "dict.get",
    "math.sqrt", "list.append", "os.listdir", "json.loads", "str.upper", "shutil.copy",
    "str.strip", "math.floor", "list.sort", "os.getcwd", "re.match", "random.choice",
    "time.sleep",
)  # fmt: skip
TEXTS, PLACES, NEAR, ANSWER = 20, 10, 5, 40
FIRST = 12  # tokens before the first position
BEST = 0.05  # share of the channels
TEXT = {
    "model": {"hidden_size": 128, "num_hidden_layers": 3, "intermediate_size": 256},
    "start": "published",
    "model.longest_half_life": 60.0,
    "tokenizer.vocab_size": 1024,
    "data.length": 128,
    "data.batch_size": 8,
    "optimizer.learning_rate": 0.005,
    "optimizer.weight_decay": 0.05,
    "steps": 700,
    "eval_every": 700,
}
DEFAULT = "share of the state, \\|k v\\|"
Measure = Callable[[np.ndarray, np.ndarray, dict[str, np.ndarray]], np.ndarray]


def _channels(rate: np.ndarray) -> np.ndarray:
    """Return the products of |a| from after each token to the last, `[tokens, channels]`."""
    since = rate[::-1].cumsum(0)[::-1] - rate
    return np.exp(-since.reshape(len(rate), -1))


def _share(norm: np.ndarray) -> np.ndarray:
    return norm / np.sqrt((norm**2).sum())


def _best(rate: np.ndarray, _: np.ndarray, __: Any) -> np.ndarray:
    left = np.sort(_channels(rate), 1)
    return left[:, -max(1, int(BEST * left.shape[1])) :].mean(1)


def _energy(rate: np.ndarray, _: np.ndarray, reads: dict[str, np.ndarray]) -> np.ndarray:
    written = np.abs(reads["key"][..., 0]) * reads["value"]
    return state_norms(rate, reads) ** 2 / (written**2).sum(1)


def _read(rate: np.ndarray, phase: np.ndarray, reads: dict[str, np.ndarray]) -> np.ndarray:
    turn = np.cos(phase[::-1].cumsum(0)[::-1] - phase).reshape(len(rate), -1)
    weight = reads["query"][-1, :, 0] * _channels(rate) * turn * reads["key"][..., 0]
    return _share(np.sqrt(((weight * reads["value"]) ** 2).sum(1)))


MEASURES: dict[str, Measure] = {
    "recency": lambda rate, _, __: np.arange(len(rate)) / len(rate),
    "mean of the products of \\|a\\|": lambda rate, _, __: _channels(rate).mean(1),
    "best 5% of the channels": _best,
    "share of its own energy \\|k v\\|² that is left": _energy,
    "share of the state, \\|k\\| alone": lambda rate, _, reads: _share(
        state_norms(rate, {"key": reads["key"]})
    ),
    DEFAULT: lambda rate, _, reads: _share(state_norms(rate, reads)),
    "what the query reads": _read,
}


def measured(trace: Trace, token: int) -> dict[str, np.ndarray]:
    """Compute all measures at a token, each averaged over layers."""
    near = [trace._near(layer, token) for layer in trace._layers]
    of = [(rate, np.zeros_like(rate) if p is None else p, reads) for rate, p, reads in near]
    return {name: np.mean([m(*layer) for layer in of], 0) for name, m in MEASURES.items()}


def effects(model: Any, ids: np.ndarray, targets: np.ndarray) -> dict[str, np.ndarray]:
    """Compute what leaving token m out changes at n, `[m, n]`: exact."""
    positions, following = len(ids) - 1, np.zeros((len(ids), len(ids) - 1))
    divergence = np.zeros_like(following)
    whole = _logs(model(mx.array(ids[None, :-1])))[0]
    groups = [np.array([m]) for m in range(len(ids))]
    for rows, at, logits in filter(None, predictions(model, ids, groups)):
        for row, here, logs in zip(rows, at, _logs(logits), strict=True):
            read = (here > row) & (here < positions)
            now, then = logs[read], whole[here[read]]
            divergence[row, here[read]] = (np.exp(then) * (then - now)).sum(1)
            chosen = np.arange(len(now)), targets[here[read]]
            following[row, here[read]] = np.abs(then[chosen] - now[chosen])
    rest = following[:, ::-1].cumsum(1)[:, ::-1]
    return {"next prediction": divergence, "all that follow": rest}


def _logs(logits: mx.array) -> np.ndarray:
    return np.array(logits - mx.logsumexp(logits, -1, keepdims=True)).astype(np.float64)


def correlation(left: np.ndarray, right: np.ndarray) -> float:
    """Compute Spearman's rank correlation; NaN where all values of one are the same."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConstantInputWarning)
        return float(spearmanr(left, right).statistic)


def correlations(model: Any, ids: np.ndarray, targets: np.ndarray) -> dict[Any, np.ndarray]:
    """Correlate every measure with every effect at some positions of a text, near and far."""
    with gl.watch.recording(model, window=len(ids)) as recorder:
        mx.eval(model(mx.array(ids[None])))
    true, found = effects(model, ids, targets), {}
    for n in np.linspace(FIRST, len(ids) - 2, PLACES).astype(int):
        for name, measure in measured(recorder.trace, n).items():
            for effect, values in true.items():
                for span, stop in (("all tokens", n), (f"beyond {NEAR}", n - NEAR)):
                    key = name, effect, span
                    found.setdefault(key, []).append(correlation(measure[:stop], values[:stop, n]))
    return {key: np.array(values) for key, values in found.items()}


def answers(name: str) -> Iterator[tuple[Any, np.ndarray, np.ndarray]]:
    """Yield a model of the app with questions and its answers."""
    model, tokenizer = gl.load(str(EMBEDDED / name))
    for asked in NAMES[:TEXTS]:
        message = {"role": "user", "content": f"What does `{asked}` do?"}
        ids = list(tokenizer.apply_chat_template([message], add_generation_prompt=True))
        cache, new = model.make_cache(), ids
        for _ in range(ANSWER):
            token = int(model(mx.array([new]), cache)[0, -1].argmax())
            if token in tokenizer.eos_token_ids:
                break
            new = [token]
            ids.append(token)
        yield model, np.array(ids), np.array(ids[1:])


def text(folder: Path) -> Iterator[tuple[Any, np.ndarray, np.ndarray]]:
    """Train on Python's documentation; yield the model with texts that it has not seen."""
    config = TrainConfig.load(None, TEXT)
    parts = split(pydocs.groups(), config.data.validation_fraction)  # no group is in both
    texts = folder.with_name("documentation")
    for name, groups in (("train", parts.train), ("valid", parts.validation)):
        write(texts / f"{name}.jsonl", chain.from_iterable(groups))
    train(config, str(texts), folder)
    model, tokenizer = gl.load(str(folder))
    held_out = chain.from_iterable(parts.validation)
    documents = (tokenizer.encode(document) for document in held_out if isinstance(document, str))
    for ids in [np.array(ids[:64]) for ids in documents if len(ids) >= 64][:TEXTS]:
        yield model, ids, ids[1:]


def memory_horizon(folder: Path) -> Iterator[tuple[Any, np.ndarray, np.ndarray]]:
    """Train on Memory Horizon; yield the model with test sequences and their answers."""
    experiment = PRESETS["memory-horizon"]["running_sum"].changed_by({"steps": 800})
    task = experiment.make_task()
    train(experiment.config(task, "data_controlled", 0), task, folder)
    model = load_model(folder)
    for ids, targets in list(zip(task.test.inputs, task.test.targets, strict=True))[:TEXTS]:
        yield model, ids.astype(np.int64), targets.astype(np.int64)


def interval(texts: list[np.ndarray]) -> str:
    """Write a mean over cases with the 95% interval of a bootstrap over texts."""
    draws = np.random.default_rng(0).integers(0, len(texts), (2000, len(texts)))
    sums = np.array([np.nansum(cases) for cases in texts])
    counts = np.array([np.isfinite(cases).sum() for cases in texts])
    low, high = np.quantile(sums[draws].sum(1) / counts[draws].sum(1), (0.025, 0.975))
    return f"{sums.sum() / counts.sum():.3f} ({low:.3f} to {high:.3f})"


def table(results: list[dict[Any, np.ndarray]]) -> str:
    columns = [key[1:] for key in results[0] if key[0] == "recency"]
    rows = []
    for name in MEASURES:
        cells = [interval([text[(name, *column)] for text in results]) for column in columns]
        rows.append([f"**{name}**" if name == DEFAULT else name, *cells])
    more = [
        [text[(DEFAULT, *column)] - text[("recency", *column)] for text in results]
        for column in columns
    ]
    rows.append(["its lead over recency", *map(interval, more)])
    return markdown_table(["measure", *(", ".join(column) for column in columns)], rows)


def main(out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        models = {
            "demo": answers("demo"),
            "demo-fixed": answers("demo-fixed"),
            "trained on Python's documentation": text(Path(folder) / "text"),
            "trained on Memory Horizon": memory_horizon(Path(folder) / "horizon"),
        }
        for name, cases in models.items():
            results[name] = [correlations(*case) for case in cases]
            print(f"\n{name}\n{table(results[name])}", flush=True)
    together = [text for texts in results.values() for text in texts]
    lines = [INTRODUCTION.format(cases=PLACES * len(together), texts=len(together))]
    for name, texts in {"all four models": together, **results}.items():
        lines += [f"## {name[0].upper()}{name[1:]}", f"{PLACES * len(texts)} cases.", table(texts)]
    (out / "retention.md").write_text("\n\n".join(lines) + "\n", "utf-8")


INTRODUCTION = f"""\
# Measures of what is left of a token

Written by `python benchmarks/retention.py`: {{cases}} positions in {{texts}} texts of four models.
At each position a measure ranks the earlier tokens by what is left of them. It is compared with the
exact effect of leaving each of them out: on the next prediction (Kullback-Leibler divergence) and
on all predictions that follow in the text (sum of \\|loss\\|). Mean of Spearman's correlation, with
95% intervals of a bootstrap over texts; also for tokens more than {NEAR} before the position alone.

Bold: `Trace.retention`, as [forgetting](../../docs/forgetting.md)
defines them."""

if __name__ == "__main__":
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, nargs="?", default=ROOT / "benchmarks" / "results")
    main(parser.parse_args().out)
