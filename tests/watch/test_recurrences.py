"""Edits of mlx-lm's recurrences, against a plain loop over the tokens of each."""

import mlx.core as mx
import numpy as np
import pytest
from helpers.errors import refusal
from helpers.models import close
from helpers.recurrent import parts, recurrent_model

import mlx_gateloop as gl
from mlx_gateloop.watch import Edit, Instrumented
from mlx_gateloop.watch.recurrences import EDITABLE

LENGTH = 6
TEXT = mx.array([[5, 6, 7, 8, 9, 3]])
GATED = ["qwen3_next", "olmo_hybrid", "mamba2", "granitemoehybrid", "recurrent_gemma", "rwkv7"]
GATED += ["kimi_linear", "bailing_moe_linear", "bailing_hybrid", "gla", "hgrn2", "hgrn"]
EDITS = {
    "wipe": [Edit(0, tokens=[3], keep=0)],
    "freeze a channel": [Edit(0, channels=[1], tokens=[2, 4], keep=1)],
    "half": [Edit(1, keep=0.5), Edit(1, channels=[0, 3], tokens=[1], keep=0.25)],
    "drop and amplify": [Edit(0, tokens=[1], write=0), Edit(0, tokens=[2, 3], write=3)],
    "set": [Edit(0, channels=[2], tokens=[0, 4], value=2.0), Edit(0, tokens=[2], value=0)],
}


def none(n, h):
    return 0


def steps(name, given):
    """Return the decays [L, ...], what each token writes, and the rest of step and output."""
    of = {k: np.array(v, np.float64) if isinstance(v, mx.array) else v for k, v in given.items()}
    if name == "rnn_scan":
        return of["a"][0], of["x"][0], none, lambda n, h: h
    q, k, v = (of.get(x) for x in "qkv")
    if name == "gate_loop_update" and q.ndim == 3:
        return np.exp(of["log_a"][0]), k[0] * v[0], none, lambda n, h: q[0, n] * h
    if name == "gate_loop_update":
        decay, written = np.exp(of["log_a"][0])[..., None], k[0, ..., None] * v[0, :, :, None]
        return decay, written, none, lambda n, h: np.einsum("hk,hkv->hv", q[0, n], h)
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
    softplus = np.logaddexp(of["a"] + of["dt_bias"], 0)[0]
    gate = np.exp(-np.exp(of["A_log"]) * softplus)
    beta = (1 + of["allow_neg_eigval"]) / (1 + np.exp(-of["b"][0]))
    q, k = (np.repeat(x[0], v.shape[2] // x.shape[2], 1) for x in (q, k))
    written = np.einsum("lh,lhv,lhk->lhvk", beta, v[0], k)
    erased = lambda n, h: -np.einsum("h,hvj,hj,hk->hvk", beta[n], h, k[n], k[n])  # noqa: E731
    decay = gate[..., None, None] if gate.ndim == 2 else gate[:, :, None]
    return decay, written, erased, lambda n, h: np.einsum("hvk,hk->hv", h, q[n])


def looped(name, edits):
    def run(function, hook, given):
        decays, written, rest, read = steps(name, given)
        shape, h, outputs = EDITABLE[name].decays(given), np.zeros(written.shape[1:]), []
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
                h = h if e.value is None else np.where(chosen, e.value, h)
        y = mx.array(np.stack(outputs, 0 if hook.axis == 1 else 1).astype(np.float32))[None]
        return y, mx.array(h.astype(np.float32))[None]

    return run


@pytest.mark.parametrize("name", GATED)
@pytest.mark.parametrize("kind", EDITS)
def test_edits_are_exact(name, kind):
    model, edits = recurrent_model(name), EDITS[kind]
    instrumented = Instrumented(model)
    layers = len(instrumented.names)
    edits = [Edit(**vars(e) | {"layer": e.layer % layers}) for e in edits]
    for layer, path in enumerate(instrumented.names):
        (function,) = instrumented.recurrences[layer]
        mine = [e for e in edits if e.layer == layer]
        instrumented.edited[path] = looped(function, mine)
    expected = model(TEXT, model.make_cache())
    instrumented.detach()
    before = parts(model)
    plain = model(TEXT, model.make_cache())
    with gl.watch.edit(model, *edits):
        close(model(TEXT, model.make_cache()), expected)
    cache = model.make_cache()
    with gl.watch.edit(model, *edits):
        pieces = [model(TEXT[:, a:b], cache) for a, b in ((0, 3), (3, 4), (4, LENGTH))]
    close(mx.concatenate(pieces, 1), expected)
    assert parts(model) == before
    assert mx.array_equal(model(TEXT, model.make_cache()), plain)


@pytest.mark.parametrize(
    ("name", "edit", "message"),
    [
        ("mamba", Edit(0), "edits: layer 0 computes its decays inside ssm_step"),
        ("llama", Edit(0), "model: it has no recurrent layer"),
        ("kimi_k3", Edit(0, keep=0), "keep: the gate of this layer has a lower bound"),
        ("kimi_linear", Edit(0, [1], write=0), "write: this layer writes whole heads"),
        ("mamba2", Edit(2), "edits[0].layer: expected 0 to 1, got 2"),
        ("mamba2", Edit(0, [4]), "edits[0].channels: expected 0 to 3, got 4"),
        ("mamba2", Edit(0, tokens=[6]), "edits[0].tokens: expected 0 to 5, got 6"),
    ],
)
def test_what_cannot_be_edited_is_one_line(name, edit, message):
    model = recurrent_model(name)
    before = parts(model)

    def run():
        with gl.watch.edit(model, edit):
            model(TEXT, model.make_cache())

    assert refusal(run).startswith(message)
    assert parts(model) == before
