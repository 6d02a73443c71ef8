"""Data-independent transitions, of the models that GateLoop generalises (paper, section 3.1).

Only the transition differs from GateLoop. So LRU, S4D and S5 have real, data-controlled queries and
keys, where their publications have constant complex C and B, and RetNet lacks its scale; its gate
is `output_gate`, and `sub_norm: head` stands for its group norm, with a mean, a weight and a bias.

Each module holds one transition for all tokens, `[width]`: channel c is key channel c % K of head
c // K, with K channels per head. For the state-space models the max-headed form is one system of
`width` states, as the paper counts them.
"""

import math
from collections.abc import Callable
from functools import cache

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from mlx_gateloop.model.arguments import LayerArgs
from mlx_gateloop.ops import Transition

STEPS = (0.001, 0.1)  # range of Delta at the start, log-uniform: S4D and S5
DECAY = 0.5  # -Re A at the start, theirs


class ConstantTransition(nn.Module):
    """a = 1: linear attention without feature map and normaliser, y_n = q_n sum_m k_m^T v_m.

    Source: Katharopoulos et al., arXiv 2006.16236, section 3.3.
    """

    def __init__(self, args: LayerArgs) -> None:
        super().__init__()
        self._args = args

    def transition(self) -> Transition:
        """Return a, `[width]`."""
        return Transition.polar(mx.zeros((self._args.width,)))

    def input_factor(self) -> mx.array | None:
        """Return the factor of the key, `[width]`; None is 1."""
        return None


class RetNet(ConstantTransition):
    """a = (1 - 2^(-5 - h)) exp(i theta_j) in head h, theta_j = 10000^(-2 floor(j / 2) / K).

    Nothing is learned. Source: Sun et al., arXiv 2307.08621, equations 5 and 8; two key channels
    share an angle, as in xPos (arXiv 2212.10554). As in the paper, queries and keys are real
    vectors: y = Re((Q Theta)(K conj(Theta))^T * D) V. Implementations that pair two of them into
    one complex number have an additional sine term.
    """

    def transition(self) -> Transition:
        heads, size = self._args.heads, self._args.width // self._args.heads
        head = mx.arange(heads, dtype=mx.float32)[:, None]
        pair = mx.arange(size, dtype=mx.float32) // 2
        log_magnitude = mx.broadcast_to(mx.log1p(-(2 ** (-5 - head))), (heads, size))
        angle = mx.broadcast_to(10000 ** (-2 * pair / size), (heads, size))
        return Transition.polar(log_magnitude.reshape(-1), angle.reshape(-1))


class LRU(ConstantTransition):
    """a = exp(-exp(nu) + i exp(theta)), and the key times exp(log_scale); all three are learned.

    At the start a is uniform on the unit disk, or with a `longest_half_life` its half-lives are
    spread from 1 token to that; the scale is sqrt(1 - |a|^2).
    Source: Orvieto et al., arXiv 2303.06349, lemma 3.2, section 3.4 and the defaults of appendix A
    (r_min = 0, r_max = 1, max_phase = 6.28).
    """

    def __init__(self, args: LayerArgs) -> None:
        super().__init__(args)
        # Without the ends, whose logarithms are infinite.
        share, turn = mx.random.uniform(1e-6, 1 - 1e-6, (2, args.width))
        rate = -0.5 * mx.log(share)  # share = |a|^2
        if args.longest_half_life is not None:
            rate = math.log(2) / args.longest_half_life**share
        self.nu, self.theta = mx.log(rate), mx.log(6.28 * turn)
        self.log_scale = 0.5 * mx.log(-mx.expm1(-2 * rate))

    def transition(self) -> Transition:
        nu, theta = (x.astype(mx.float32) for x in (self.nu, self.theta))
        return Transition.polar(-mx.exp(nu), mx.exp(theta))

    def input_factor(self) -> mx.array:
        return mx.exp(self.log_scale.astype(mx.float32))


class StateSpace(ConstantTransition):
    """S4D and S5: a = exp(Delta A) and the key times (a - 1) / A, the zero-order hold.

    A = -exp(log_decay) + i frequency and Delta = exp(log_step) are learned; A starts as -1/2 + i
    times the published frequencies, and a `longest_half_life` moves Delta's range. S4D has one
    Delta per head, S5 one per state. Only the factor's magnitude is used: the published output
    Re(C h) has a free complex C, ours a real query, so C = q conj(phase of the factor). The factor
    2 of conjugate pairs is left to the query too.
    Source: Gu et al., arXiv 2206.11893 (S4D); Smith et al., arXiv 2208.04933 (S5).
    """

    def __init__(self, args: LayerArgs) -> None:
        super().__init__(args)
        systems = 1 if args.heads == args.width else args.heads  # max-headed: one system
        frequencies = FREQUENCIES[args.transition](args.width // systems)
        self.log_decay = mx.full((args.width,), math.log(DECAY))
        self.frequency = mx.tile(mx.array(frequencies, mx.float32), systems)
        steps = args.width if args.transition == "s5" else args.heads
        shortest, longest = STEPS
        if args.longest_half_life is not None:
            least = math.log(2) / (DECAY * args.longest_half_life)
            shortest, longest = least, least * longest / shortest
        self.log_step = mx.random.uniform(math.log(shortest), math.log(longest), (steps,))

    def transition(self) -> Transition:
        decay, frequency, step = self._continuous()
        return Transition.polar(-step * decay, step * frequency)

    def input_factor(self) -> mx.array:
        decay, frequency, step = self._continuous()
        # |exp(z) - 1| without cancellation for small z
        real, half_phase = -step * decay, 0.5 * step * frequency
        square = mx.expm1(real) ** 2 + 4 * mx.exp(real) * mx.sin(half_phase) ** 2
        return mx.sqrt(square / (decay**2 + frequency**2))

    def _continuous(self) -> tuple[mx.array, mx.array, mx.array]:
        """Return -Re A, Im A and Delta, `[width]`."""
        decay, frequency, step = (
            x.astype(mx.float32) for x in (self.log_decay, self.frequency, self.log_step)
        )
        return mx.exp(decay), frequency, mx.repeat(mx.exp(step), len(decay) // len(step))


@cache
def hippo(states: int) -> np.ndarray:
    """Compute the frequencies of HiPPO-N, the normal part of HiPPO-LegS; S5 keeps half of them."""
    root = np.sqrt(2 * np.arange(2 * states) + 1)
    lower = np.tril(np.outer(root, root) / 2, -1)
    return np.linalg.eigvalsh(1j * (lower.T - lower))[states:]


FREQUENCIES: dict[str, Callable[[int], np.ndarray]] = {  # Im A_n of N / 2 states
    "s4d_lin": lambda states: np.pi * np.arange(states),
    # N / pi (N / (2 n + 1) - 1)
    "s4d_inv": lambda states: 2 * states / np.pi * (states / (np.arange(states) + 0.5) - 1),
    "s5": hippo,
}
CONSTANT: dict[str, type[ConstantTransition]] = {
    "none": ConstantTransition,
    "linear_attention": ConstantTransition,
    "retnet": RetNet,
    "lru": LRU,
    **dict.fromkeys(FREQUENCIES, StateSpace),
}
