"""What simple strategies would score on a task: the marks to read a model's accuracy against."""

import numpy as np

from mlx_gateloop.data.task import Samples


def majority(training: Samples, test: Samples) -> float:
    """Accuracy of always giving the commonest answer of the training samples."""
    asked = test.asked
    return float((test.targets[asked] == _commonest(training)).mean())


def last_inputs(training: Samples, test: Samples, count: int) -> float:
    """Accuracy of looking up the last `count` inputs among the training samples.

    The answer is the commonest one after the same inputs; after inputs never seen, the commonest
    of all. A sequence's first positions know that it has just begun.
    """
    outputs = int(training.targets.max()) + 1
    pairs = _contexts(training, count) * outputs + training.targets[training.asked]
    pairs, times = np.unique(pairs, return_counts=True)
    context, answer = np.divmod(pairs, outputs)
    order = np.lexsort((times, context))  # the commonest answer to a context comes last
    context, answer = context[order], answer[order]
    is_last = np.append(context[1:] != context[:-1], True)
    known, best = context[is_last], answer[is_last]
    asked = _contexts(test, count)
    place = np.searchsorted(known, asked).clip(max=len(known) - 1)
    guesses = np.where(known[place] == asked, best[place], _commonest(training))
    return float((test.targets[test.asked] == guesses).mean())


def exact_upto(training: Samples, test: Samples, span: int) -> float:
    """Accuracy of being right wherever that takes at most `span` inputs, else of the majority."""
    asked = test.asked
    right = test.targets[asked] == _commonest(training)
    return float((right | (test.span[asked] <= span)).mean())


def _commonest(samples: Samples) -> int:
    return int(np.bincount(samples.targets[samples.asked]).argmax())


def _contexts(samples: Samples, count: int) -> np.ndarray:
    """The last inputs at each asked position as one number, int64 `[asked]`."""
    base = int(samples.inputs.max()) + 2  # 0 stands before the start
    digits = np.pad(samples.inputs + 1, ((0, 0), (count - 1, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(digits, count, axis=1)
    return (windows @ base ** np.arange(count, dtype=np.int64))[samples.asked]
