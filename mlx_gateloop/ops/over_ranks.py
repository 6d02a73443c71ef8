"""The operator over a sequence that is divided among ranks, exact with its gradient.

A part r alone is h -> A_r h + S_r: the product of its transitions, and its last state from zero.
The ranks gather these, and each folds those before it to the state with which its part begins,

    h_r = A_{r-1} h_{r-1} + S_{r-1},   h_0 = 0,

which it then scans again. With D_r the gradient of the loss by h_r within part r, the chain rule
gives the sum over all paths G_r, of S_r and of A_r in one more gathering:

    G_r = D_r + conj(A_r) G_{r+1},   dS_r = G_{r+1},   dA_r = conj(h_r) G_{r+1}.

So two arrays of the size of a state are exchanged forward and one backward, at any length.
"""

from collections.abc import Callable
from typing import Any

import mlx.core as mx

from mlx_gateloop.ops.backends import BackendName
from mlx_gateloop.ops.gate_loop import Result, gate_loop
from mlx_gateloop.ops.planes import conjugate, multiply, stack, unstack
from mlx_gateloop.ops.transition import Transition

Gather = Callable[[mx.array], mx.array]


def gate_loop_over_ranks(
    gather: Gather,
    position: int,
    q: mx.array,
    k: mx.array,
    v: mx.array,
    a: mx.array | Transition,
    h0: None = None,
    *,
    mask: mx.array | None = None,
    reverse: bool = False,
    backend: BackendName = "auto",
) -> Result:
    """Compute `gate_loop` over a sequence that is divided among ranks; all ranks call it.

    `gather` makes `[ranks, ...]` of an array `[...]` on each rank; `position` is this rank's.
    Parts may differ in length. The sequence begins from zero. Returns y of this part and the state
    after it.
    """
    if h0 is not None:
        raise ValueError("h0: expected None, as a sequence over ranks begins from zero")
    a = Transition.of(a)
    _, state = gate_loop(q, k, v, a, mask=mask, reverse=reverse, backend=backend)
    one = mx.ones_like(state[:, :1] if v.ndim == 3 else state[:, :1, ..., :1])
    start = one if state.shape[1] == 1 else mx.concatenate([one, mx.zeros_like(one)], 1)
    nothing = mx.zeros_like(k), mx.zeros_like(v if v.ndim == 3 else v[..., :1])
    product = gate_loop(
        mx.zeros_like(q), *nothing, a, start, mask=mask, reverse=reverse, backend=backend
    )[1]
    before = _exchange(gather, position, reverse)(product, state)[0]
    return gate_loop(q, k, v, a, before, mask=mask, reverse=reverse, backend=backend)


def _exchange(gather: Gather, position: int, reverse: bool) -> Callable[..., Any]:
    """Build the function from this part's A and S to the state before it, and all ranks' A.

    The graph must be the same on all ranks: MLX leaves out an exchange whose result is not used,
    and the others would wait for it. So every rank folds over all parts, and a mask selects.
    """

    @mx.custom_function
    def exchange(product: mx.array, state: mx.array) -> list[mx.array]:
        both = gather(mx.concatenate([product.reshape(-1), state.reshape(-1)]))
        products, states = (
            x.reshape(-1, *own.shape)
            for x, own in zip(mx.split(both, [product.size], 1), (product, state), strict=True)
        )
        h, parts = mx.zeros_like(state), range(len(both))
        for part in reversed(parts) if reverse else parts:
            before = mx.array(part > position if reverse else part < position)
            h = mx.where(before, _applied(products[part], h) + states[part], h)
        return [h, products]

    @exchange.vjp
    def gradient(
        primals: list[mx.array], cotangents: list[mx.array], results: list[mx.array]
    ) -> list[mx.array]:
        product, _ = primals
        h, products = results
        D = gather(cotangents[0])
        G, parts = mx.zeros_like(h), range(len(D))
        for part in parts if reverse else reversed(parts):
            after = mx.array(part < position if reverse else part > position)
            G = mx.where(after, D[part] + _applied(products[part], G, -1), G)
        dproduct = stack(multiply(conjugate(unstack(h)), unstack(G)))
        if dproduct.shape != product.shape:  # one product for all values of a head
            dproduct = dproduct.sum(-1, keepdims=True)
        return [dproduct, G]

    return exchange


def _applied(product: mx.array, h: mx.array, sign: int = 1) -> mx.array:
    """The product of states `[B, P, ...]`, with the conjugate of the first if `sign` is -1."""
    factors = unstack(product) if sign == 1 else conjugate(unstack(product))
    return stack(multiply(factors, unstack(h)))
