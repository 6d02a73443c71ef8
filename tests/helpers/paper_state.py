"""Random state dicts of the `paper` source."""

import numpy as np


def paper_state(
    vocabulary, size=8, inner=20, depth=2, *, width=None, outputs=None,
    real=False, fixed=False, gated=False, tied=False, final_norm=True, bias=True,
):  # fmt: skip
    rng, width, state = np.random.default_rng(0), width or size, {}

    def linear(name, rows, columns, has_bias=bias):
        weight = rng.normal(size=(rows, columns)) * columns**-0.5
        state[f"{name}.weight"] = weight.astype(np.float32)
        if has_bias:
            state[f"{name}.bias"] = 0.3 * rng.normal(size=rows).astype(np.float32)

    def norm(name):
        for kind, middle in (("weight", 1), ("bias", 0)):
            state[f"{name}.{kind}"] = (middle + 0.1 * rng.normal(size=size)).astype(np.float32)

    linear("embedding", vocabulary, size, False)
    for layer in (f"layers.{n}" for n in range(depth)):
        norm(f"{layer}.time_norm")
        norm(f"{layer}.channel_norm")
        for name in ("q", "k", "v", *["gate"] * gated):
            linear(f"{layer}.{name}", width, size)
        for name in ("gamma",) if real else ("gamma", "theta"):
            if fixed:
                state[f"{layer}.{name}"] = rng.normal(size=width).astype(np.float32)
            else:
                linear(f"{layer}.{name}", width, size)
        if gated or width != size:
            linear(f"{layer}.out", size, width)
        linear(f"{layer}.fnn.0", inner, size)
        linear(f"{layer}.fnn.2", size, inner)
    if final_norm:
        norm("norm")
    if not tied:
        linear("head", outputs or vocabulary, size)
    return state
