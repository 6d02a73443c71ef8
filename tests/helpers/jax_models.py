"""Random weights of `GateLoopTransformer` in JAX, which names and shapes determine."""

from pathlib import Path

from .family import random_weight

GOLDEN = Path(__file__).parents[1] / "convert" / "sources" / "golden" / "jax.npz"
SIZES = {"num_tokens": 13, "dim": 8, "depth": 2, "ff_mult": 2}
LENGTHS = (1, 9, 61)
WIDTHS = {"wa": 2}  # over that of the other matrices


def jax_weights(num_tokens=SIZES["num_tokens"]):
    """The arrays by Flax's names, in Equinox's order."""
    dim, inner = SIZES["dim"], SIZES["dim"] * SIZES["ff_mult"]
    shapes = {"embedding": (num_tokens, dim), "norm.scale": (dim,)}
    for layer in range(SIZES["depth"]):
        gates, forward = (f"layers_{layer}_{part}" for part in (0, 1))
        shapes[f"{gates}.norm.scale"] = (dim,)
        for letter in "qkvago":
            shapes[f"{gates}.w{letter}"] = (dim, WIDTHS.get(f"w{letter}", 1) * dim)
        shapes[f"{forward}.norm.scale"] = (dim,)
        for name, sizes in (("proj_in", (dim, inner)), ("proj_out", (inner, dim))):
            shapes[f"{forward}.{name}.kernel"] = sizes
            shapes[f"{forward}.{name}.bias"] = sizes[1:]
    weights = {name: random_weight(name, shape) for name, shape in shapes.items()}
    weights["embedding"] *= 0.02  # small, as published: the norms' epsilons show
    return weights
