"""Edits of recurrences in NumPy, in a plain loop over the tokens of each."""

import mlx.core as mx
import numpy as np

from mlx_gateloop.watch.recurrences import EDITABLE


def none(n, h):
    return 0


def steps(name, given):
    """Return the decays [L, ...], what each token writes, and the rest of step and output."""
    of = {k: np.array(v, np.float64) if isinstance(v, mx.array) else v for k, v in given.items()}
    if name == "rnn_scan":
        return of["a"][0], of["x"][0], none, lambda n, h: h
    q, k, v = (of.get(x) for x in "qkv")
    if name.startswith("gate_loop"):
        if name == "gate_loop":
            decay, *imaginary = (np.array(mx.broadcast_to(p, q.shape))[0] for p in of["a"].planes())
            decay = decay + 1j * imaginary[0] if imaginary else decay
        else:
            decay = np.exp(of["log_a"][0])
        if q.ndim == 3:
            return decay, k[0] * v[0], none, lambda n, h: (q[0, n] * h).real
        read = lambda n, h: np.einsum("hk,hkv->hv", q[0, n], h).real  # noqa: E731
        return decay[..., None], k[0, ..., None] * v[0, :, :, None], none, read
    if name == "recurrent_gla":
        decay = np.broadcast_to(np.exp(of["g"])[:, None, None], (q.shape[2], q.shape[1], 1, 1))
        written = np.einsum("hlk,hlv->lhkv", k[0], v[0])
        q = of["scale"] * q[0].swapaxes(0, 1)
        return decay, written, none, lambda n, h: np.einsum("hk,hkv->hv", q[n], h)
    if name == "_wkv7":
        a, b, r = of["a"][0], of["b"][0], of["r"][0]
        moved = lambda n, h: np.einsum("hvk,hk,hj->hvj", h, a[n], b[n])  # noqa: E731
        written = np.einsum("lhv,lhk->lhvk", v[0], k[0])
        return of["w"][0][:, :, None], written, moved, lambda n, h: h @ r[n][..., None]
    if name == "ssm_update":
        x, heads = of["hidden_states"][0], len(of["A_log"])
        step = np.clip(np.logaddexp(of["dt"] + of["dt_bias"], 0)[0], *of["time_step_limit"])
        B, C = (np.repeat(of[n][0], heads // of[n].shape[2], 1) for n in "BC")
        written = np.einsum("lh,lhd,lhs->lhds", step, x, B)
        decay = np.exp(-np.exp(of["A_log"]) * step)[..., None, None]
        skip = of["D"][:, None] * x
        return decay, written, none, lambda n, h: np.einsum("hds,hs->hd", h, C[n]) + skip[n]
    gate = np.exp(-np.exp(of["A_log"]) * np.logaddexp(of["a"] + of["dt_bias"], 0)[0])
    beta = (1 + of["allow_neg_eigval"]) / (1 + np.exp(-of["b"][0]))
    q, k = (np.repeat(x[0], v.shape[2] // x.shape[2], 1) for x in (q, k))
    written = np.einsum("lh,lhv,lhk->lhvk", beta, v[0], k)
    erased = lambda n, h: -np.einsum("h,hvj,hj,hk->hvk", beta[n], h, k[n], k[n])  # noqa: E731
    decay = gate[..., None, None] if gate.ndim == 2 else gate[:, :, None]
    return decay, written, erased, lambda n, h: np.einsum("hvk,hk->hv", h, q[n])


def looped(name, edits):
    def run(function, hook, given):
        decays, written, rest, read = steps(name, given)
        shape, h, outputs = EDITABLE[name].decays(given), 0 * (decays * written)[0], []
        for n in range(len(written)):
            here = [e for e in edits if e.tokens is None or n in e.tokens]
            decay, new = decays[n].copy(), written[n].copy()
            at = [mx.full(shape, e.channels is None).reshape(-1) for e in here]
            for e, chosen in zip(here, at, strict=True):
                if e.channels is not None:
                    chosen[mx.array(e.channels)] = True
            at = [np.array(EDITABLE[name].held(chosen.reshape(shape))) for chosen in at]
            for e, chosen in zip(here, at, strict=True):
                decay = decay if e.keep is None else np.where(chosen, e.keep, decay)
                new = np.where(chosen, e.write * new, new)
            kept = decay * h
            h = kept + rest(n, h if name == "_wkv7" else kept) + new
            outputs.append(read(n, h))
            for e, chosen in zip(here, at, strict=True):
                value = (1 + 1j) * (e.value or 0) if np.iscomplexobj(h) else e.value
                h = h if e.value is None else np.where(chosen, value, h)
        y = mx.array(np.stack(outputs, 0 if hook.axis == 1 else 1).astype(np.float32))[None]
        return y, mx.array(h.real.astype(np.float32))[None]

    return run
