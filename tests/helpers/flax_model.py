"""The author's Flax module with random parameters, and files as Flax writes them."""

import numpy as np
import pytest

VOCAB = 13


def flax_model(**options):
    package = pytest.importorskip("flax_gated_linear_rnn", reason="the source model's library")
    defaults = {
        "n_layer": 2, "d_model": 8, "d_channel_mixing": 20, "d_h": 12, "eps": 1e-5,
        "channel_mixing_dropout": 0.1, "time_mixing_dropout": 0.1, "embedding_dropout": 0.1,
        "input_vocab_size": VOCAB, "output_vocab_size": VOCAB, "max_seq_length": 512,
        "use_word_embedding": True, "positional_encoding_mode": "none", "use_head": True,
    }  # fmt: skip
    return package.GatedLinearRNNLM(**defaults | options)


def flax_state(model, seed=0):
    """Random parameters of the shapes that the module asks for, names joined by dots."""
    import jax

    shapes = jax.eval_shape(lambda: model.init(jax.random.key(0), np.zeros((1, 2), int), False))
    random = np.random.default_rng(seed)
    state = {}
    for path, shape in jax.tree_util.tree_leaves_with_path(shapes["params"]):
        name = ".".join(part.key for part in path)
        scale = 1.0 if name.endswith(("scale", "embedding")) else 0.5
        state[name] = scale * random.standard_normal(shape.shape, np.float32)
    return state


def packed(tree):
    """As flax.serialization.msgpack_serialize packs arrays; those of uint16 as bfloat16."""
    msgpack = pytest.importorskip("msgpack", reason="flax's files are written with msgpack")

    def pack(array):
        dtype = "bfloat16" if array.dtype == np.uint16 else array.dtype.name
        parts = (array.shape, dtype, array.tobytes())
        return msgpack.ExtType(1, msgpack.packb(parts, use_bin_type=True))

    return msgpack.packb(tree, default=pack, strict_types=True)
