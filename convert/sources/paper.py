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
from typing import Any, ClassVar

import mlx.core as mx
import numpy as np

from mlx_gateloop.model.lm import ModelArgs

from .base import Inference, Reference, Settings, Shapes, Source, Tensor, depth
from .fla_reference import recurrence
from .rules import Rule, linear, same

Floats = Any  # a float64 array: to NumPy's types, products and means of arrays are Any
EMBEDDING = "embedding.weight"
INFERRED = (
    *("hidden_size", "intermediate_size", "num_hidden_layers", "transition", "gate"),
    *("output_gate", "final_norm", "tie_word_embeddings", "bias"),
)


class Paper(Source[ModelArgs]):
    """State dicts in the paper's terms."""

    kind = "paper"
    settings: ClassVar = {
        "num_heads": "heads that the channels are split over (as many as channels: max-headed)",
        "norm_eps": "epsilon of the layer norms (1e-5)",
        "activation": "of the FNN: gelu or gelu_tanh (gelu)",
    }

    def recognises(self, shapes: Shapes) -> bool:
        return {EMBEDDING, "layers.0.q.weight"} <= shapes.keys() and _has(shapes, "layers.0.gamma")

    def infer(self, shapes: Shapes, settings: Settings) -> Inference[ModelArgs]:
        """Infer the arguments; heads leave no trace in the shapes."""
        vocabulary, size = self.matrix(shapes, EMBEDDING)
        width = self.matrix(shapes, "layers.0.q.weight")[0]
        is_tied = "head.weight" not in shapes
        has_bias, projects_bias = (f"layers.0.{n}.bias" in shapes for n in ("fnn.0", "q"))
        args = ModelArgs(
            vocab_size=vocabulary,
            hidden_size=size,
            num_hidden_layers=depth(shapes, "layers.{}.q.weight"),
            intermediate_size=self.matrix(shapes, "layers.0.fnn.0.weight")[0],
            num_heads=settings.get("num_heads", width),
            mixing_size=None if width == size else width,  # those set need our package to run
            transition="fixed" if "layers.0.gamma" in shapes else "data_controlled",
            gate="polar" if _has(shapes, "layers.0.theta") else "real",
            output_gate="layers.0.gate.weight" in shapes,
            output_projection="layers.0.out.weight" in shapes,
            final_norm="norm.weight" in shapes,
            tie_word_embeddings=is_tied,
            num_outputs=vocabulary if is_tied else self.matrix(shapes, "head.weight")[0],
            activation=self.choice(settings, "activation", "gelu", "gelu_tanh"),
            bias=has_bias,
            projection_bias=None if projects_bias == has_bias else projects_bias,
            head_bias="head.bias" in shapes,
            layer_norm_eps=settings.get("norm_eps", 1e-5),
        )
        assumptions = {
            "num_heads": f"num_heads={width}: max-headed",
            "norm_eps": "norm_eps=1e-5",
            "activation": "activation=gelu",
        }
        assumed = [words for name, words in assumptions.items() if name not in settings]
        return Inference(args, [f"{n}={getattr(args, n)}" for n in INFERRED], assumed)

    def table(self, args: ModelArgs) -> list[Rule]:
        rules = [same(EMBEDDING, "model.embed_tokens.weight")]
        for layer in range(args.num_hidden_layers):
            rules += _layer(f"layers.{layer}", f"model.layers.{layer}", args)
        if args.final_norm:
            rules += linear("norm", "model.norm", bias=True)
        if not args.tie_word_embeddings:
            rules += linear("head", "lm_head", bool(args.head_bias))
        return rules

    def reference(self, args: ModelArgs, tensor: Tensor) -> Reference:
        """Build the paper's equations in float64 NumPy, one token after the other."""
        weights = {
            rule.source: np.array(tensor(rule.source).astype(mx.float32), np.float64)
            for rule in self.table(args)
        }
        return PaperReference(args, weights)


def _has(shapes: Shapes, name: str) -> bool:
    """True if there is a vector or a linear layer of this name."""
    return name in shapes or f"{name}.weight" in shapes


def _layer(source: str, ours: str, args: ModelArgs) -> list[Rule]:
    time, channel = f"{ours}.time_mixing", f"{ours}.channel_mixing"
    rules = [
        *linear(f"{source}.time_norm", f"{ours}.time_norm", bias=True),
        *linear(f"{source}.channel_norm", f"{ours}.channel_norm", bias=True),
        *linear(f"{source}.fnn.0", f"{channel}.up_proj", args.bias),
        *linear(f"{source}.fnn.2", f"{channel}.down_proj", args.bias),
    ]
    names = ["q", "k", "v"] + ["gate"] * args.output_gate + ["out"] * args.projects_output
    bias = args.bias if args.projection_bias is None else args.projection_bias
    for name in names:
        rules += linear(f"{source}.{name}", f"{time}.{name}_proj", bias)
    for name in ("gamma",) if args.gate == "real" else ("gamma", "theta"):
        if args.transition == "fixed":
            rules.append(same(f"{source}.{name}", f"{time}.{name}"))
        else:
            rules += linear(f"{source}.{name}", f"{time}.{name}_proj", args.bias)
    return rules


class PaperReference:
    """The paper's model on its own float64 weights; see `Reference`."""

    def __init__(self, args: ModelArgs, weights: dict[str, Floats]) -> None:
        self._args, self._weights = args, weights

    def logits(self, tokens: np.ndarray) -> Floats:
        x = self.hidden_states(tokens)[-1]
        if self._args.final_norm:
            x = self._norm("norm", x)
        if self._args.tie_word_embeddings:
            return x @ self._weights[EMBEDDING].T
        return self._linear("head", x)

    def hidden_states(self, tokens: np.ndarray) -> list[Floats]:
        x, states = self._weights[EMBEDDING][tokens], []
        for layer in range(self._args.num_hidden_layers):
            name = f"layers.{layer}"
            x = x + self._mix_time(name, self._norm(f"{name}.time_norm", x))
            inner = self._linear(f"{name}.fnn.0", self._norm(f"{name}.channel_norm", x))
            x = x + self._linear(f"{name}.fnn.2", gelu(inner, self._args.activation))
            states.append(x)
        return states

    def _mix_time(self, name: str, x: Floats) -> Floats:
        heads = (*x.shape[:2], self._args.heads, -1)
        q, k, v = (self._linear(f"{name}.{letter}", x).reshape(heads) for letter in "qkv")
        magnitude = sigmoid(self._transition(f"{name}.gamma", x))
        phase = 0 if self._args.gate == "real" else self._transition(f"{name}.theta", x)
        a = (magnitude * np.exp(1j * phase)).reshape(heads)
        y = recurrence(q, k, v, a).real.reshape(*x.shape[:2], -1)
        if self._args.output_gate:
            gate = self._linear(f"{name}.gate", x)
            y = y * gate * sigmoid(gate)
        return self._linear(f"{name}.out", y) if self._args.projects_output else y

    def _transition(self, name: str, x: Floats) -> Floats:
        if name in self._weights:
            return np.broadcast_to(self._weights[name], (*x.shape[:2], self._args.width))
        return self._linear(name, x)

    def _linear(self, name: str, x: Floats) -> Floats:
        return x @ self._weights[f"{name}.weight"].T + self._weights.get(f"{name}.bias", 0)

    def _norm(self, name: str, x: Floats) -> Floats:
        deviation = np.sqrt(x.var(-1, keepdims=True) + self._args.layer_norm_eps)
        normed = (x - x.mean(-1, keepdims=True)) / deviation
        return normed * self._weights[f"{name}.weight"] + self._weights[f"{name}.bias"]


_erf = np.vectorize(math.erf, otypes=[float])


def gelu(x: Floats, kind: str) -> Floats:
    if kind == "gelu_tanh":
        return x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    return x / 2 * (1 + _erf(x / math.sqrt(2)))


def sigmoid(x: Floats) -> Floats:
    return 1 / (1 + np.exp(-x))
