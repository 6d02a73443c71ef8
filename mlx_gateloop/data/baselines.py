"""Scores of simple strategies on a task, to compare a model's accuracy with."""

from collections.abc import Sequence

import numpy as np

from mlx_gateloop.data.task import Samples, Task


def mean_scores(tasks: Sequence[Task]) -> dict[str, float]:
    """The mean scores of the strategies over the draws of a task that all have."""
    each = [_scores(task) for task in tasks]
    return {
        name: float(np.mean([scores[name] for scores in each]))
        for name in each[0]
        if all(name in scores for scores in each)
    }


def majority(training: Samples, test: Samples) -> float:
    """Accuracy of always giving the commonest answer of the training samples."""
    return float((test.targets[test.asked] == _commonest(training)).mean())


def last_inputs(training: Samples, test: Samples, count: int) -> float:
    """Accuracy of the commonest answer after the last `count` inputs, or of all if new."""
    windows = [_windows(samples, count) for samples in (training, test)]
    rows = np.concatenate(windows)
    _, contexts = np.unique(rows.view(f"V{rows.itemsize * count}"), return_inverse=True)
    known, asked = np.split(contexts.ravel(), [len(windows[0])])  # equal windows, equal numbers
    outputs = int(training.targets.max()) + 1
    pairs = known * outputs + training.targets[training.asked]
    pairs, times = np.unique(pairs, return_counts=True)
    context, answer = np.divmod(pairs, outputs)
    best = np.full(max(known.max(), asked.max()) + 1, _commonest(training))
    order = np.argsort(times, kind="stable")  # the commonest answer to a context is written last
    best[context[order]] = answer[order]
    return float((test.targets[test.asked] == best[asked]).mean())


def exact_upto(training: Samples, test: Samples, span: int) -> float:
    """Accuracy of an answer that is right up to this span (0 too), and else the majority."""
    asked = test.asked
    right = test.targets[asked] == _commonest(training)
    return float((right | (test.span[asked] <= span)).mean())


def _scores(task: Task) -> dict[str, float]:
    training, test = task.training, task.test
    marks = {"the commonest answer": majority(training, test)}
    marks["lookup of the last 6 inputs"] = last_inputs(training, test, 6)
    if not task.is_exact:
        return marks
    for span in 2 ** np.arange(2, np.log2(max(test.span.max(), 4))).astype(int):
        marks[f"right up to a span of {span}"] = exact_upto(training, test, int(span))
    return marks


def _commonest(samples: Samples) -> int:
    return int(np.bincount(samples.targets[samples.asked]).argmax())


def _windows(samples: Samples, count: int) -> np.ndarray:
    """The last inputs plus 1 at each asked position, `[asked, count]`; 0 is before the start."""
    digits = np.pad(samples.inputs + 1, ((0, 0), (count - 1, 0)))
    return np.lib.stride_tricks.sliding_window_view(digits, count, axis=1)[samples.asked]
