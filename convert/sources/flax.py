"""The paper's author's later language model: `GatedLinearRNNLM` of flax-gated-linear-rnn (1.0.3).

    h = forget h + input_gate f(input),   y = g(h) output_gate

with all four from one matrix. Tied gates have forget = 1 - input_gate: there the transition is
ours with the sign of the input gate turned, sigmoid(-x) = 1 - sigmoid(x).
"""

from typing import Any, ClassVar

import mlx.core as mx
import numpy as np
from mlx.utils import tree_unflatten

from mlx_gateloop.model.arguments import Activation
from mlx_gateloop.model.lm import ModelArgs

from .base import Inference, Reference, Settings, Shapes, Source, Tensor, depth, needing
from .rules import Rule, same, transposed

ASSUMED: dict[str, Any] = {
    "eps": 1e-5,
    "input_activation": "tanh",
    "hidden_activation": "tanh",
    # GateLoop has no other values of these
    "gate_activation": "sigmoid",
    "positional_encoding_mode": "none",
    "use_true_recurrence": False,
}
ACTIVATIONS: tuple[Activation, ...] = ("tanh", "sigmoid", "identity")  # the default first
EMBEDDING = "input_function.embedding"
MIXING, CHANNEL = "time_mixing_layers_{}", "channel_mixing_layers_{}"
PROJ, OUT = f"{MIXING}.model.proj", f"{MIXING}.model.out_proj"
# Our names for the parts of the matrix, in its order.
TIED = ("v_proj", "gamma_proj", "q_proj")
UNTIED = ("v_proj", "k_proj", "gamma_proj", "q_proj")


class Flax(Source[ModelArgs]):
    """Language models of flax-gated-linear-rnn."""

    kind = "flax"
    settings: ClassVar = {
        "eps": "epsilon of the layer norms (1e-5, that of the author's experiments)",
        "input_activation": "tanh, sigmoid or identity (tanh)",
        "hidden_activation": "tanh, sigmoid or identity (tanh)",
        "gate_activation": "only sigmoid (sigmoid)",
        "positional_encoding_mode": "only none (none)",
        "use_true_recurrence": "only false (false)",
    }

    def recognises(self, shapes: Shapes) -> bool:
        return f"{PROJ.format(0)}.kernel" in shapes

    def infer(self, shapes: Shapes, settings: Settings) -> Inference[ModelArgs]:
        """Infer the arguments; the columns of the gates' matrix show whether they are tied."""
        self._refuse(shapes)
        for name in ("gate_activation", "positional_encoding_mode", "use_true_recurrence"):
            if settings.get(name, ASSUMED[name]) != ASSUMED[name]:
                raise self.error(f"{name}: GateLoop has {ASSUMED[name]}, got {settings[name]}")
        columns = self.matrix(shapes, f"{PROJ.format(0)}.kernel")[1]
        width = self.matrix(shapes, f"{OUT.format(0)}.kernel")[0]
        if columns not in (3 * width, 4 * width):
            expected = f"3 or 4 times d_h = {width} columns, got {columns}"
            raise self.error(f"{PROJ.format(0)}.kernel must have {expected}")
        is_tied = columns == 3 * width
        args = ModelArgs(
            vocab_size=self.matrix(shapes, EMBEDDING)[0],
            num_outputs=self.matrix(shapes, "head.kernel")[1],
            hidden_size=self.matrix(shapes, EMBEDDING)[1],
            num_hidden_layers=depth(shapes, f"{PROJ}.kernel"),
            intermediate_size=self.matrix(shapes, f"{CHANNEL.format(0)}.dense_layers_0.kernel")[1],
            mixing_size=width,
            gate="real",
            input_gate="tied" if is_tied else "sigmoid",
            query_activation="sigmoid",
            value_activation=self.choice(settings, "input_activation", *ACTIVATIONS),
            state_activation=self.choice(settings, "hidden_activation", *ACTIVATIONS),
            output_projection=True,
            activation="gelu_tanh",
            final_norm=False,
            layer_norm_eps=settings.get("eps", ASSUMED["eps"]),
        )
        inferred = [
            f"n_layer {args.num_hidden_layers}, d_model {args.hidden_size}, d_h {width}, "
            f"{args.vocab_size} tokens",
            f"d_channel_mixing {args.intermediate_size}, use_tied_gates={is_tied}",
        ]
        assumed = [f"{name}={value}" for name, value in ASSUMED.items() if name not in settings]
        return Inference(args, inferred, assumed)

    def _refuse(self, shapes: Shapes) -> None:
        if f"{MIXING.format(0)}.model.model.recurrent_proj.kernel" in shapes:
            raise self.error(
                "use_true_recurrence=True is not supported: its gates read the state, so the "
                "recurrence is not linear; convert the associative checkpoint it was tuned from"
            )
        if "wpe.embedding" in shapes:
            raise self.error("positional_encoding_mode must be none: GateLoop adds no positions")
        if "input_function.kernel" in shapes:
            raise self.error("use_word_embedding=False is not supported: it reads no tokens")
        if "head.kernel" not in shapes:
            raise self.error("use_head=False is not supported: missing head.kernel")

    def table(self, args: ModelArgs) -> list[Rule]:
        rules = [same(EMBEDDING, "model.embed_tokens.weight")]
        for layer in range(args.num_hidden_layers):
            ours, channel = f"model.layers.{layer}", CHANNEL.format(layer)
            rules += [
                *_norm(f"{MIXING.format(layer)}.layer_norm_function", f"{ours}.time_norm"),
                *_gates(PROJ.format(layer), f"{ours}.time_mixing", args.input_gate == "tied"),
                *_dense(OUT.format(layer), f"{ours}.time_mixing.out_proj"),
                *_norm(f"{channel}.layer_norm", f"{ours}.channel_norm"),
                *_dense(f"{channel}.dense_layers_0", f"{ours}.channel_mixing.up_proj"),
                *_dense(f"{channel}.dense_layers_1", f"{ours}.channel_mixing.down_proj"),
            ]
        return [*rules, *_dense("head", "lm_head")]

    def reference(self, args: ModelArgs, tensor: Tensor) -> Reference:
        with needing("flax flax-gated-linear-rnn"):
            from flax import linen
            from flax_gated_linear_rnn import GatedLinearRNNLM
        activations = {"tanh": linen.tanh, "sigmoid": linen.sigmoid, "identity": lambda x: x}
        model = GatedLinearRNNLM(
            n_layer=args.num_hidden_layers,
            d_model=args.hidden_size,
            d_channel_mixing=args.intermediate_size,
            eps=args.layer_norm_eps,
            channel_mixing_dropout=0.0,
            time_mixing_dropout=0.0,
            input_vocab_size=args.vocab_size,
            output_vocab_size=args.outputs,
            max_seq_length=0,  # only positional encodings use it
            embedding_dropout=0.0,
            use_word_embedding=True,
            positional_encoding_mode="none",
            use_head=True,
            d_h=args.width,
            input_activation=activations[args.value_activation],
            hidden_activation=activations[args.state_activation],
            use_tied_gates=args.input_gate == "tied",
        )
        names = [rule.source for rule in self.table(args)]
        arrays = {name: np.array(tensor(name).astype(mx.float32)) for name in names}
        return FlaxReference(model, tree_unflatten(list(arrays.items())), args.num_hidden_layers)


def _norm(source: str, ours: str) -> list[Rule]:
    return [same(f"{source}.scale", f"{ours}.weight"), same(f"{source}.bias", f"{ours}.bias")]


def _dense(source: str, ours: str) -> list[Rule]:
    return [
        transposed(f"{source}.kernel", f"{ours}.weight"),
        same(f"{source}.bias", f"{ours}.bias"),
    ]


def _gates(source: str, ours: str, is_tied: bool) -> list[Rule]:
    names = TIED if is_tied else UNTIED

    def cut(array: mx.array) -> list[mx.array]:
        parts = mx.split(array.T, len(names))  # a bias is its own transpose
        return [
            -p if is_tied and n == "gamma_proj" else p for n, p in zip(names, parts, strict=True)
        ]

    return [
        Rule(f"{source}.{theirs}", tuple(f"{ours}.{name}.{kind}" for name in names), cut)
        for theirs, kind in (("kernel", "weight"), ("bias", "bias"))
    ]


class FlaxReference:
    """The package's GatedLinearRNNLM with its parameters and number of layers; see `Reference`."""

    def __init__(self, model: Any, parameters: dict[str, Any], layers: int) -> None:
        import jax

        blocks = [CHANNEL.format(layer) for layer in range(layers)]

        def apply(tokens: np.ndarray) -> Any:  # jitted: one compilation a length, not one an op
            (_, logits), recorded = model.apply(
                {"params": parameters},
                tokens,
                training=False,
                capture_intermediates=lambda module, _: module.name in blocks,
                mutable=["intermediates"],
            )
            return logits, [recorded["intermediates"][b]["__call__"][0] for b in blocks]

        self._apply = jax.jit(apply)

    def logits(self, tokens: np.ndarray) -> np.ndarray:
        return np.array(self._apply(tokens)[0])

    def hidden_states(self, tokens: np.ndarray) -> list[np.ndarray]:
        """Return the output of each channel mixing, the last part of a block."""
        return [np.array(state) for state in self._apply(tokens)[1]]
