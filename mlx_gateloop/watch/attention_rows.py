"""Rows of attention and retention: the weight of each earlier token at a later one."""

from collections.abc import Iterator

import numpy as np

# CPUs are slow with subnormal numbers, which products of decays may reach.
LEAST, FLUSH_EVERY = 1e-30, 16


def full_row(
    rate: np.ndarray, phase: np.ndarray | None, reads: dict[str, np.ndarray], erases: bool
) -> np.ndarray:
    """Compute the weight of each token in the output of the last one, summed over heads.

        y_n = sum_m (q_n A_n ... A_{m+1} . gain_m k_m) v_m

    Backwards in m: w starts as q_n, the weight of m is w . gain_m k_m, then w becomes A_m^T w. A is
    the diagonal of the decays, times I - gain k k^T with the delta rule. rate is -log|a| `[tokens,
    heads, K or 1]`; `reads` are those of `hooks.Report`.
    """
    heads = rate.shape[1]
    one = np.ones((len(rate), heads, 1))
    query, key = (_of_heads(reads.get(name, one), heads) for name in ("query", "key"))
    key = key.astype(np.float64)
    written = key * reads.get("gain", one[..., 0])[..., None]
    decay = np.exp(-rate.astype(np.float64))
    reader = query[-1].astype(np.float64)
    if phase is not None:
        decay, reader = decay * np.exp(1j * phase), reader.astype(np.complex128)
    row = np.empty(len(rate), np.float32)
    for m in range(len(rate) - 1, -1, -1):
        row[m] = (reader * written[m]).real.sum()
        if erases:
            reader = reader - (reader * key[m]).sum(-1, keepdims=True) * written[m]
        moved = (
            reads["u"][m] * (reader * reads["w"][m]).sum(-1, keepdims=True) if "u" in reads else 0
        )
        reader = decay[m] * reader + moved
    return row


def sums_from(rows: np.ndarray) -> np.ndarray:
    """Sum the rows from each one to the last; differences of prefix sums would lose precision."""
    sums = rows[::-1].astype(np.float64).cumsum(0)[::-1]
    return np.concatenate([sums, np.zeros((1, *rows.shape[1:]))])


def state_norms(rate: np.ndarray, reads: dict[str, np.ndarray]) -> np.ndarray:
    """Compute the norm of each token's remaining contribution to the state.

        w_m = |A_{m+1} ... A_n gain_m k_m| |v_m|

    A is the diagonal of the decays; the result is float64 `[tokens]`.
    """
    left = np.exp(-sums_from(rate[1:]).astype(np.float32)) * _written(rate, reads)
    return np.sqrt(np.einsum("mhk,mhk->m", left, left).astype(np.float64))


def shares_from(rate: np.ndarray, reads: dict[str, np.ndarray], start: int) -> Iterator[np.ndarray]:
    """Yield w_m / sqrt(w_0^2 + ... + w_n^2) of `state_norms`, m = start to n, for n from start."""
    left = _written(rate, reads).astype(np.float32) ** 2
    decay = np.broadcast_to(np.exp(-2 * rate.astype(np.float32)), left.shape)
    left, decay = (values.reshape(len(values), -1) for values in (left, decay))
    before = np.zeros_like(left[0])  # sum over tokens before `start`
    for m in range(start):
        before = before * decay[m] + left[m]
    for n in range(start, len(left)):
        before *= decay[n]
        earlier = left[start:n]
        earlier *= decay[n]
        if n % FLUSH_EVERY == 0:
            earlier[earlier < LEAST] = 0
        norms = left[start : n + 1].sum(1)
        total = max(float(norms.sum(dtype=np.float64) + before.sum()), np.finfo(np.float64).tiny)
        yield np.sqrt(norms / total)


def _written(rate: np.ndarray, reads: dict[str, np.ndarray]) -> np.ndarray:
    """Compute gain_m k_m |v_m| for all heads `[tokens, heads, K]`."""
    one = np.ones(rate.shape[:2])
    key = _of_heads(reads.get("key", one[..., None]), rate.shape[1])
    written: np.ndarray = key * (reads.get("gain", one) * reads.get("value", one))[..., None]
    return np.broadcast_to(written, np.broadcast_shapes(written.shape, rate.shape))


def _of_heads(values: np.ndarray, heads: int) -> np.ndarray:
    """Repeat groups `[tokens, groups, K]` for the heads that share them."""
    return np.repeat(values, heads // values.shape[1], 1)
