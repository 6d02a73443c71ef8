"""The Memory Horizon task (paper section 5.1 and appendix "Memory Horizon dataset details").

The answer after each input is a function of the numbers since the last reset, or the start.
Choices that the paper leaves open: the answer is taken modulo `max_output + 1`; the answer at a
reset is 0, scored unless it is unasked; resets are at distinct uniform positions; the middle of an
odd list is not squared.
"""

import numpy as np

from mlx_gateloop.data.task import UNASKED, Samples, Task, draw_splits
from mlx_gateloop.errors import InputError


def memory_horizon(
    length: int = 1024,
    resets: int = 3,
    max_input: int = 4,  # inputs are uniform in 0 to this; the reset is the next token
    max_output: int = 50,  # answers are 0 to this
    function: str = "alternating_products",  # a name of `FUNCTIONS`
    at_resets: str = "zero",  # the answer there, or "unasked"
    samples: int = 2000,
    held_out: int = 200,  # validation sequences, and the same number of test sequences
    seed: int = 0,
) -> Task:
    """Draw the task; the defaults are the paper's parameters (appendix A, table 2)."""
    if not 0 <= resets <= length:
        raise InputError(f"task.resets must lie in 0 to task.length {length}, got {resets}")
    if function not in FUNCTIONS:
        raise InputError(f"unknown task.function {function!r}; allowed: {', '.join(FUNCTIONS)}")
    if at_resets not in ("zero", "unasked"):
        raise InputError(f"task.at_resets: expected zero or unasked, got {at_resets!r}")
    reset = max_input + 1

    def draw(generator: np.random.Generator, count: int) -> Samples:
        inputs = generator.integers(0, reset, (count, length), np.int32)
        positions = generator.random((count, length)).argpartition(resets - 1)[:, :resets]
        np.put_along_axis(inputs, positions, np.int32(reset), 1)
        targets, span = answers(inputs, reset, max_output + 1, function)
        if at_resets == "unasked":
            targets[inputs == reset] = UNASKED
        return Samples(inputs, targets, span)

    splits = draw_splits(draw, (samples, held_out, held_out), seed)
    return Task(reset + 1, max_output + 1, *splits, marker=reset)


def answers(
    inputs: np.ndarray, reset: int, modulus: int, function: str
) -> tuple[np.ndarray, np.ndarray]:
    """Compute the answer after each input and the length of its list, int32 `[N, L]` each."""
    count, length = inputs.shape
    is_reset = inputs == reset
    last_reset = np.maximum.accumulate(np.where(is_reset, np.arange(length), -1), 1)
    span = np.arange(length) - last_reset
    # One row per list, padded with zeros at its end; the longest lists come first.
    which = np.cumsum(is_reset, 1) + (length + 1) * np.arange(count)[:, None]
    _, rows, sizes = np.unique(which[~is_reset], return_inverse=True, return_counts=True)
    by_size = np.argsort(-sizes, kind="stable")
    rank = np.empty_like(by_size)
    rank[by_size] = np.arange(len(by_size))
    index = rank[rows], span[~is_reset] - 1
    lists = np.zeros((len(sizes), sizes.max(initial=0)), np.int64)
    lists[index] = inputs[~is_reset]
    targets = np.zeros(inputs.shape, np.int32)
    targets[~is_reset] = FUNCTIONS[function](lists, sizes[by_size])[index] % modulus
    return targets, span.astype(np.int32)


def _alternating_products(lists: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Sum (-1)^i x_i x_(m-i) over i < m - i for each m; even m add (-1)^(m/2) x_(m/2)."""
    longest = lists.shape[1]
    signed = lists * np.where(np.arange(longest) % 2, -1, 1)
    backwards = np.ascontiguousarray(lists[:, ::-1])
    sums = np.zeros_like(lists)
    for m in range(longest):
        live, half = np.searchsorted(-sizes, -m), (m + 1) // 2  # lists of more than m numbers
        ends = backwards[:live, longest - 1 - m :][:, :half]
        sums[:live, m] = np.einsum("li,li->l", signed[:live, :half], ends)
        if m % 2 == 0:
            sums[:live, m] += signed[:live, half]
    return sums


def _running_sum(lists: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    return np.cumsum(lists, 1)


FUNCTIONS = {"alternating_products": _alternating_products, "running_sum": _running_sum}
