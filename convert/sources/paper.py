"""A plain PyTorch state dict in the paper's terms.

embedding.weight
layers.0.time_norm.{weight,bias}
layers.0.{q,k,v,gamma,theta}.{weight,bias}     linear layers; theta absent: real gates
layers.0.{gamma,theta}                         or vectors: a fixed transition
layers.0.{gate,out}.{weight,bias}              optional: y = out(SiLU(gate(x)) y)
layers.0.channel_norm.{weight,bias}
layers.0.fnn.{0,2}.{weight,bias}               Linear, GELU, Linear
norm.{weight,bias}                             optional: before the head
head.{weight,bias}                             absent: the embedding is the head
"""

import math
from collections.abc import Mapping
from typing import Any

import mlx.core as mx
import numpy as np

from mlx_gateloop.model.lm import Model, ModelArgs

from .base import Inference, Reference, Shapes, Tensor, check_settings, choice, depth, matrix
from .rules import Rule, linear, same

KIND = "paper"
ARGS = ModelArgs
SETTINGS = {
    "num_heads": "heads that the channels are split over (as many as channels: max-headed)",
    "norm_eps": "epsilon of the layer norms (1e-5)",
    "activation": "of the FNN: gelu or gelu_tanh (gelu)",
}
EMBEDDING = "embedding.weight"
ACTIVATIONS = {"gelu": "gelu", "gelu_tanh": "gelu_tanh"}
TOLD = (
    *("hidden_size", "intermediate_size", "num_hidden_layers", "transition", "gate"),
    *("output_gate", "final_norm", "tie_word_embeddings", "bias", "projection_bias"),
)
build = Model


def recognises(shapes: Shapes) -> bool:
    """Whether there are the embedding, a query and a transition."""
    transition = {"layers.0.gamma", "layers.0.gamma.weight"}
    return {EMBEDDING, "layers.0.q.weight"} <= shapes.keys() and not transition.isdisjoint(shapes)


def infer(shapes: Shapes, settings: Mapping[str, Any]) -> Inference:
    """The arguments; see `Source`."""
    check_settings(KIND, SETTINGS, settings)
    vocabulary, size = matrix(KIND, shapes, EMBEDDING)
    inner = matrix(KIND, shapes, "layers.0.fnn.0.weight")[0]
    width = matrix(KIND, shapes, "layers.0.q.weight")[0]
    is_fixed = "layers.0.gamma" in shapes
    is_real = {"layers.0.theta", "layers.0.theta.weight"}.isdisjoint(shapes)
    is_tied = "head.weight" not in shapes
    outputs = vocabulary if is_tied else matrix(KIND, shapes, "head.weight")[0]
    args = {
        "vocab_size": vocabulary,
        "hidden_size": size,
        "num_hidden_layers": depth(shapes, "layers.{}.q.weight"),
        "intermediate_size": inner,
        "num_heads": settings.get("num_heads", width),
        "mixing_size": width,
        "transition": "fixed" if is_fixed else "data_controlled",
        "gate": "real" if is_real else "polar",
        "output_gate": "layers.0.gate.weight" in shapes,
        "output_projection": "layers.0.out.weight" in shapes,
        "final_norm": "norm.weight" in shapes,
        "tie_word_embeddings": is_tied,
        "num_outputs": outputs,
        "activation": choice(KIND, settings, "activation", ACTIVATIONS, "gelu"),
        "bias": "layers.0.fnn.0.bias" in shapes,
        "projection_bias": "layers.0.q.bias" in shapes,
        "head_bias": "head.bias" in shapes,
        "layer_norm_eps": settings.get("norm_eps", 1e-5),
    }
    assumptions = {
        "num_heads": f"num_heads={width}: max-headed",
        "norm_eps": "norm_eps=1e-5",
        "activation": "activation=gelu",
    }
    assumed = [words for name, words in assumptions.items() if name not in settings]
    return Inference(args, [f"{name}={args[name]}" for name in TOLD], assumed)


def table(args: ModelArgs) -> list[Rule]:
    """The key table; see `Source`."""
    rules = [same(EMBEDDING, "model.embed_tokens.weight")]
    for layer in range(args.num_hidden_layers):
        rules += _layer(f"layers.{layer}", f"model.layers.{layer}", args)
    if args.final_norm:
        rules += linear("norm", "model.norm", bias=True)
    if not args.tie_word_embeddings:
        rules += linear("head", "lm_head", bool(args.head_bias))
    return rules


def _layer(source: str, ours: str, args: ModelArgs) -> list[Rule]:
    time, channel = f"{ours}.time_mixing", f"{ours}.channel_mixing"
    rules = [
        *linear(f"{source}.time_norm", f"{ours}.time_norm", bias=True),
        *linear(f"{source}.channel_norm", f"{ours}.channel_norm", bias=True),
        *linear(f"{source}.fnn.0", f"{channel}.up_proj", args.bias),
        *linear(f"{source}.fnn.2", f"{channel}.down_proj", args.bias),
    ]
    names = ["q", "k", "v"] + ["gate"] * args.output_gate + ["out"] * args.projects_output
    for name in names:
        rules += linear(f"{source}.{name}", f"{time}.{name}_proj", bool(args.projection_bias))
    for name in ("gamma",) if args.gate == "real" else ("gamma", "theta"):
        if args.transition == "fixed":
            rules.append(same(f"{source}.{name}", f"{time}.{name}"))
        else:
            rules += linear(f"{source}.{name}", f"{time}.{name}_proj", args.bias)
    return rules


def reference(args: ModelArgs, settings: Mapping[str, Any], tensor: Tensor) -> Reference | str:
    """The paper's equations in float64 NumPy, one token after the other; see `Source`."""
    weights = {
        name: np.array(tensor(name).astype(mx.float32), np.float64)
        for rule in table(args)
        for name in rule.source
    }
    return PaperReference(args, weights)


class PaperReference:
    """See `Reference`.

    Args:
        args: The model's shape.
        weights: Its state dict, float64.
    """

    def __init__(self, args: ModelArgs, weights: dict[str, np.ndarray]) -> None:
        self._args = args
        self._weights = weights

    def logits(self, tokens: np.ndarray) -> np.ndarray:
        """The last layer's output, normed and projected."""
        x = self.hidden_states(tokens)[-1]
        if self._args.final_norm:
            x = self._norm("norm", x)
        if self._args.tie_word_embeddings:
            return x @ self._weights[EMBEDDING].T
        return self._linear("head", x)

    def hidden_states(self, tokens: np.ndarray) -> list[np.ndarray]:
        """What each layer gives."""
        x = self._weights[EMBEDDING][tokens]
        states = []
        for layer in range(self._args.num_hidden_layers):
            name = f"layers.{layer}"
            x = x + self._mix_time(name, self._norm(f"{name}.time_norm", x))
            inner = self._linear(f"{name}.fnn.0", self._norm(f"{name}.channel_norm", x))
            x = x + self._linear(f"{name}.fnn.2", _gelu(inner, self._args.activation))
            states.append(x)
        return states

    def _mix_time(self, name: str, x: np.ndarray) -> np.ndarray:
        heads = (*x.shape[:2], self._args.heads, -1)
        q, k, v = (self._linear(f"{name}.{letter}", x).reshape(heads) for letter in "qkv")
        magnitude = _sigmoid(self._transition(f"{name}.gamma", x))
        phase = 0 if self._args.gate == "real" else self._transition(f"{name}.theta", x)
        a = (magnitude * np.exp(1j * phase)).reshape(heads)
        state = np.zeros((*k.shape[:1], *k.shape[2:], v.shape[-1]), complex)
        y = np.zeros_like(v)
        for n in range(x.shape[1]):
            state = a[:, n, :, :, None] * state + k[:, n, :, :, None] * v[:, n, :, None, :]
            y[:, n] = np.einsum("bhk,bhkv->bhv", q[:, n], state).real
        y = y.reshape(*x.shape[:2], -1)
        if self._args.output_gate:
            gate = self._linear(f"{name}.gate", x)
            y = y * gate * _sigmoid(gate)
        return self._linear(f"{name}.out", y) if self._args.projects_output else y

    def _transition(self, name: str, x: np.ndarray) -> np.ndarray:
        if name in self._weights:
            return np.broadcast_to(self._weights[name], (*x.shape[:2], self._args.width))
        return self._linear(name, x)

    def _linear(self, name: str, x: np.ndarray) -> np.ndarray:
        return x @ self._weights[f"{name}.weight"].T + self._weights.get(f"{name}.bias", 0)

    def _norm(self, name: str, x: np.ndarray) -> np.ndarray:
        deviation = np.sqrt(x.var(-1, keepdims=True) + self._args.layer_norm_eps)
        normed = (x - x.mean(-1, keepdims=True)) / deviation
        return normed * self._weights[f"{name}.weight"] + self._weights[f"{name}.bias"]


_erf = np.vectorize(math.erf, otypes=[float])


def _gelu(x: np.ndarray, kind: str) -> np.ndarray:
    if kind == "gelu_tanh":
        return x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    return x / 2 * (1 + _erf(x / math.sqrt(2)))


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))
