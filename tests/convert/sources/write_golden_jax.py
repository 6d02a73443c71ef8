"""Write golden/jax.npz: logits of the two JAX packages' own classes.

pip install gateloop==0.0.2 gateloop-transformer equinox flax
PYTHONPATH=tests python tests/convert/sources/write_golden_jax.py
"""

import jax
import numpy as np
from gateloop import GateLoopTransformer as FlaxModel
from gateloop_transformer.gateloop_transformer_jax import GateLoopTransformer as EquinoxModel
from helpers.family import random_tokens
from helpers.flax_model import GOLDEN, LENGTHS, SIZES, jax_weights
from mlx.utils import tree_unflatten

flax, weights = FlaxModel(**SIZES), jax_weights()
equinox = EquinoxModel(**SIZES, key=jax.random.PRNGKey(0))
leaves, tree = jax.tree_util.tree_flatten(equinox)
arrays = [jax.numpy.array(weights[name]) for name in weights]
assert [leaf.shape for leaf in leaves] == [array.shape for array in arrays]
equinox = jax.tree_util.tree_unflatten(tree, arrays)
logits = {}
for length in LENGTHS:
    tokens = random_tokens(length, batch=2) % SIZES["num_tokens"]
    logits[f"flax {length}"] = flax.apply({"params": tree_unflatten(list(weights.items()))}, tokens)
    logits[f"equinox {length}"] = equinox(tokens)
np.savez(GOLDEN, **logits)
print({name: float(np.abs(y).max()) for name, y in logits.items()})
