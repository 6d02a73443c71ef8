"""`GateLoopTransformer` in JAX: of `gateloop` (0.0.2, Flax) and gateloop-transformer (Equinox).

    x / sqrt(mean(x^2) + eps) weight,   a = sigmoid(|z|) exp(i arg z),   y = (q Re(h) silu(g)) wo

Equinox's files hold arrays in the order of `_names`. Without a batch it would scan the channels.
"""

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np

from mlx_gateloop.model.lm import ModelArgs

from .base import Inference, Reference, Settings, Shapes, Source, Tensor, depth
from .fla_reference import recurrence
from .paper import gelu, sigmoid
from .rules import Rule, same, transposed

Floats = Any  # a float64 array
GATES, FORWARD = "layers_{}_0", "layers_{}_1"
MATRICES = {"wq": "q_proj", "wk": "k_proj", "wv": "v_proj", "wg": "gate_proj", "wo": "out_proj"}
TRANSITION = ("gamma_proj.weight", "theta_proj.weight", "gamma_proj.bias", "theta_proj.bias")
IN_LAYER = (
    *("0.norm.scale", "0.wq", "0.wk", "0.wv", "0.wa", "0.wg", "0.wo", "1.norm.scale"),
    *("1.proj_in.kernel", "1.proj_in.bias", "1.proj_out.kernel", "1.proj_out.bias"),
)


class Jax(Source[ModelArgs]):
    """Language models of the two JAX versions."""

    kind = "jax"

    def recognises(self, shapes: Shapes) -> bool:
        if f"{GATES.format(0)}.wa" in shapes:
            return True
        size = shapes.get("1", ())
        return shapes.get("2") == size and shapes.get("6") == (*size, 2 * sum(size))

    def infer(self, shapes: Shapes, settings: Settings) -> Inference[ModelArgs]:
        named = _by_name(shapes)
        vocabulary, size = self.matrix(named, "embedding")
        args = ModelArgs(
            vocab_size=vocabulary,
            hidden_size=size,
            num_hidden_layers=depth(named, f"{GATES}.wa"),
            intermediate_size=self.matrix(named, f"{FORWARD.format(0)}.proj_in.kernel")[1],
            gate="polar_abs",
            output_gate=True,
            activation="gelu_tanh",
            norm="rms",
            rms_norm_eps=1e-6 if "embedding" in shapes else 1e-5 / size,
            projection_bias=False,
            tie_word_embeddings=True,
        )
        package = "gateloop (Flax)" if "embedding" in shapes else "gateloop-transformer (Equinox)"
        sizes = f"depth {args.num_hidden_layers}, dim {size}, {vocabulary} tokens"
        return Inference(args, [f"{package}, {sizes}, feed-forward {args.intermediate_size}"], [])

    def table(self, args: ModelArgs) -> list[Rule]:
        """Pair the names; matrices are transposed, and there are no biases of transitions."""
        name = _source_name(args)
        rules = [same(name("embedding"), "model.embed_tokens.weight")]
        rules.append(same(name("norm.scale"), "model.norm.weight"))

        def with_biases(array: mx.array) -> list[mx.array]:
            return [*mx.split(array.T, 2), *(mx.zeros(args.hidden_size) for _ in range(2))]

        for layer in range(args.num_hidden_layers):
            gates, forward = GATES.format(layer), FORWARD.format(layer)
            ours = f"model.layers.{layer}"
            time, channel = f"{ours}.time_mixing", f"{ours}.channel_mixing"
            rules.append(same(name(f"{gates}.norm.scale"), f"{ours}.time_norm.weight"))
            rules.append(same(name(f"{forward}.norm.scale"), f"{ours}.channel_norm.weight"))
            pairs = {f"{gates}.{key}": f"{time}.{value}" for key, value in MATRICES.items()}
            for key, value in {"proj_in": "up_proj", "proj_out": "down_proj"}.items():
                pairs[f"{forward}.{key}.kernel"] = f"{channel}.{value}"
                rules.append(same(name(f"{forward}.{key}.bias"), f"{channel}.{value}.bias"))
            rules += [transposed(name(k), f"{v}.weight") for k, v in pairs.items()]
            transition = tuple(f"{time}.{part}" for part in TRANSITION)
            rules.append(Rule(name(f"{gates}.wa"), transition, with_biases))
        return rules

    def reference(self, args: ModelArgs, tensor: Tensor) -> Reference:
        name = _source_name(args)
        return JaxReference(
            args, lambda key: np.array(tensor(name(key)).astype(mx.float32), np.float64)
        )


def _names(layers: int) -> list[str]:
    """Flax's names, in the order of Equinox's arrays."""
    parts = [f"layers_{layer}_{part}" for layer in range(layers) for part in IN_LAYER]
    return ["embedding", "norm.scale", *parts]


def _by_name(shapes: Shapes) -> Shapes:
    if "embedding" in shapes:
        return shapes
    names = _names(len(shapes) // len(IN_LAYER))
    return {name: shapes[str(i)] for i, name in enumerate(names) if str(i) in shapes}


def _source_name(args: ModelArgs) -> Callable[[str], str]:
    """Return the function from Flax's names to the checkpoint's."""
    if args.rms_norm_eps == 1e-6:
        return lambda name: name
    numbers = {name: str(i) for i, name in enumerate(_names(args.num_hidden_layers))}
    return numbers.__getitem__


class JaxReference:
    """The model on float64 weights by Flax's names; see `Reference`."""

    def __init__(self, args: ModelArgs, weight: Callable[[str], Floats]) -> None:
        self._args, self._weight = args, weight

    def logits(self, tokens: np.ndarray) -> Floats:
        return self._norm("norm", self.hidden_states(tokens)[-1]) @ self._weight("embedding").T

    def hidden_states(self, tokens: np.ndarray) -> list[Floats]:
        x, states = self._weight("embedding")[tokens], []
        for layer in range(self._args.num_hidden_layers):
            x = x + self._mix(GATES.format(layer), x)
            path = FORWARD.format(layer)
            h = self._dense(f"{path}.proj_in", self._norm(f"{path}.norm", x))
            x = x + self._dense(f"{path}.proj_out", gelu(h, "gelu_tanh"))
            states.append(x)
        return states

    def _mix(self, path: str, x: Floats) -> Floats:
        x = self._norm(f"{path}.norm", x)
        q, k, v, z, gate = (x @ self._weight(f"{path}.w{letter}") for letter in "qkvag")
        real, imaginary = np.split(z, 2, -1)
        z = real + 1j * imaginary
        a = np.exp(1j * np.angle(z)) * sigmoid(np.abs(z))
        y = recurrence(*(t[..., None] for t in (q, k, v, a))).real[..., 0]  # a channel is a head
        return (y * gate * sigmoid(gate)) @ self._weight(f"{path}.wo")

    def _dense(self, path: str, x: Floats) -> Floats:
        return x @ self._weight(f"{path}.kernel") + self._weight(f"{path}.bias")

    def _norm(self, path: str, x: Floats) -> Floats:
        mean = (x * x).mean(-1, keepdims=True)
        return x / np.sqrt(mean + self._args.rms_norm_eps) * self._weight(f"{path}.scale")
