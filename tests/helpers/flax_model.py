"""Random parameters of the models in JAX, and files as Flax writes them."""

from pathlib import Path

import numpy as np
import pytest

from .family import random_weight

VOCAB = 13
GOLDEN = Path(__file__).parents[1] / "convert" / "sources" / "golden" / "jax.npz"
# of `GateLoopTransformer`
SIZES = {"num_tokens": 13, "dim": 8, "depth": 2, "ff_mult": 2}
LENGTHS = (1, 9, 61)
WIDTHS = {"wa": 2}  # over that of the other matrices


def flax_model(**options):
    package = pytest.importorskip("flax_gated_linear_rnn", reason="the source model's library")
    defaults = {
        "n_layer": 2, "d_model": 8, "d_channel_mixing": 20, "d_h": 12, "eps": 1e-5,
        "channel_mixing_dropout": 0.1, "time_mixing_dropout": 0.1, "embedding_dropout": 0.1,
        "input_vocab_size": VOCAB, "output_vocab_size": VOCAB, "max_seq_length": 512,
        "use_word_embedding": True, "positional_encoding_mode": "none", "use_head": True,
    }  # fmt: skip
    return package.GatedLinearRNNLM(**defaults | options)


def flax_state(model):
    """Random parameters of the shapes that the module asks for, names joined by dots."""
    import jax

    tree = jax.eval_shape(lambda: model.init(jax.random.key(0), np.zeros((1, 2), int), False))
    leaves = jax.tree_util.tree_leaves_with_path(tree["params"])
    shapes = {".".join(part.key for part in path): leaf.shape for path, leaf in leaves}
    return {name: random_weight(name, shape) for name, shape in shapes.items()}


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


def packed(tree):
    """As flax.serialization.msgpack_serialize packs arrays; those of uint16 as bfloat16."""
    msgpack = pytest.importorskip("msgpack", reason="flax's files are written with msgpack")

    def pack(array):
        dtype = "bfloat16" if array.dtype == np.uint16 else array.dtype.name
        parts = (array.shape, dtype, array.tobytes())
        return msgpack.ExtType(1, msgpack.packb(parts, use_bin_type=True))

    return msgpack.packb(tree, default=pack, strict_types=True)
