"""The paper's author's later language model: `GatedLinearRNNLM` of flax-gated-linear-rnn (1.0.3).

    h = forget h + input_gate f(input),   y = g(h) output_gate

with all four from one matrix. Tied gates have forget = 1 - input_gate: there the transition is
ours with the sign of the input gate turned, sigmoid(-x) = 1 - sigmoid(x).
"""

from collections.abc import Mapping
from typing import Any

import mlx.core as mx
import numpy as np

from mlx_gateloop.errors import InputError
from mlx_gateloop.model.lm import Model, ModelArgs

from .base import Inference, Reference, Shapes, Tensor, check_settings, choice, depth, flag, matrix
from .rules import TRANSPOSE, Rule, negate, same, split

KIND = "flax"
ARGS = ModelArgs
SETTINGS = {
    "eps": "epsilon of the layer norms (1e-5, that of the author's experiments)",
    "input_activation": "tanh, sigmoid or identity (tanh)",
    "hidden_activation": "tanh, sigmoid or identity (tanh)",
    "gate_activation": "only sigmoid (sigmoid)",
    "positional_encoding_mode": "only none (none)",
    "use_true_recurrence": "only false (false)",
}
ASSUMED: dict[str, Any] = {
    "eps": 1e-5,
    "input_activation": "tanh",
    "hidden_activation": "tanh",
    "gate_activation": "sigmoid",
    "positional_encoding_mode": "none",
    "use_true_recurrence": False,
}
ACTIVATIONS = {name: name for name in ("tanh", "sigmoid", "identity")}
EMBEDDING = "input_function.embedding"
MIXING, CHANNEL = "time_mixing_layers_{}", "channel_mixing_layers_{}"
PROJ, OUT = f"{MIXING}.model.proj", f"{MIXING}.model.out_proj"
# Our names of what the matrix holds, in its order.
TIED = ("v_proj", "gamma_proj", "q_proj")
UNTIED = ("v_proj", "k_proj", "gamma_proj", "q_proj")
build = Model


def recognises(shapes: Shapes) -> bool:
    """Whether there is the matrix of all gates."""
    return f"{PROJ.format(0)}.kernel" in shapes


def infer(shapes: Shapes, settings: Mapping[str, Any]) -> Inference:
    """The arguments; see `Source`."""
    check_settings(KIND, SETTINGS, settings)
    _refuse(shapes, settings)
    vocabulary, size = matrix(KIND, shapes, EMBEDDING)
    columns = matrix(KIND, shapes, f"{PROJ.format(0)}.kernel")[1]
    width = matrix(KIND, shapes, f"{OUT.format(0)}.kernel")[0]
    if columns not in (3 * width, 4 * width):
        raise InputError(
            f"{KIND}: {PROJ.format(0)}.kernel must have 3 or 4 times d_h = {width} columns, "
            f"got {columns}"
        )
    is_tied = columns == 3 * width
    layers = depth(shapes, f"{PROJ}.kernel")
    activations = {
        name: choice(KIND, settings, name, ACTIVATIONS, ASSUMED[name])
        for name in ("input_activation", "hidden_activation")
    }
    args = {
        "vocab_size": vocabulary,
        "num_outputs": matrix(KIND, shapes, "head.kernel")[1],
        "hidden_size": size,
        "num_hidden_layers": layers,
        "intermediate_size": matrix(KIND, shapes, f"{CHANNEL.format(0)}.dense_layers_0.kernel")[1],
        "mixing_size": width,
        "gate": "real",
        "input_gate": "tied" if is_tied else "sigmoid",
        "query_activation": "sigmoid",
        "value_activation": activations["input_activation"],
        "state_activation": activations["hidden_activation"],
        "output_projection": True,
        "activation": "gelu_tanh",
        "final_norm": False,
        "layer_norm_eps": settings.get("eps", ASSUMED["eps"]),
    }
    inferred = [
        f"n_layer {layers}, d_model {size}, d_h {width}, {vocabulary} tokens",
        f"d_channel_mixing {args['intermediate_size']}, use_tied_gates={is_tied}",
    ]
    assumed = [f"{name}={value}" for name, value in ASSUMED.items() if name not in settings]
    return Inference(args, inferred, assumed)


def _refuse(shapes: Shapes, settings: Mapping[str, Any]) -> None:
    recurrent = f"{MIXING.format(0)}.model.model.recurrent_proj.kernel" in shapes
    if recurrent or flag(KIND, settings, "use_true_recurrence"):
        raise InputError(
            f"{KIND}: use_true_recurrence=True is not supported: its gates read the state, so it "
            "is no linear recurrence; convert the associative checkpoint that it was tuned from"
        )
    mode = settings.get("positional_encoding_mode", "none")
    if "wpe.embedding" in shapes or mode != "none":
        raise InputError(
            f"{KIND}: positional_encoding_mode must be none: a GateLoop model adds no positions"
        )
    choice(KIND, settings, "gate_activation", {"sigmoid": "sigmoid"}, "sigmoid")
    if "input_function.kernel" in shapes:
        raise InputError(f"{KIND}: use_word_embedding=False is not supported: it reads no tokens")
    if "head.kernel" not in shapes:
        raise InputError(f"{KIND}: use_head=False is not supported: missing head.kernel")


def table(args: ModelArgs) -> list[Rule]:
    """The key table; see `Source`."""
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


def _norm(source: str, ours: str) -> list[Rule]:
    return [same(f"{source}.scale", f"{ours}.weight"), same(f"{source}.bias", f"{ours}.bias")]


def _dense(source: str, ours: str) -> list[Rule]:
    kernel = Rule((f"{source}.kernel",), (f"{ours}.weight",), TRANSPOSE)
    return [kernel, same(f"{source}.bias", f"{ours}.bias")]


def _gates(source: str, ours: str, is_tied: bool) -> list[Rule]:
    names = TIED if is_tied else UNTIED
    cut = split(len(names))
    if is_tied:
        cut = cut.then(negate(TIED.index("gamma_proj")))
    weights, biases = (
        tuple(f"{ours}.{name}.{kind}" for name in names) for kind in ("weight", "bias")
    )
    return [
        Rule((f"{source}.kernel",), weights, TRANSPOSE.then(cut)),
        Rule((f"{source}.bias",), biases, cut),
    ]


def reference(args: ModelArgs, settings: Mapping[str, Any], tensor: Tensor) -> Reference | str:
    """The package's own GatedLinearRNNLM; see `Source`."""
    try:
        from flax import linen
        from flax_gated_linear_rnn import GatedLinearRNNLM
    except ImportError as error:
        return f"needs {error.name}; `pip install flax flax-gated-linear-rnn`"
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
        max_seq_length=0,  # of positional encodings only
        embedding_dropout=0.0,
        use_word_embedding=True,
        positional_encoding_mode="none",
        use_head=True,
        d_h=args.width,
        input_activation=activations[args.value_activation],
        hidden_activation=activations[args.state_activation],
        use_tied_gates=args.input_gate == "tied",
    )
    parameters: dict[str, Any] = {}
    for rule in table(args):
        for name in rule.source:
            *path, last = name.split(".")
            place = parameters
            for part in path:
                place = place.setdefault(part, {})
            place[last] = np.array(tensor(name).astype(mx.float32))
    return FlaxReference(model, parameters, args.num_hidden_layers)


class FlaxReference:
    """See `Reference`.

    Args:
        model: A GatedLinearRNNLM.
        parameters: Its tree of parameters.
        layers: Their number.
    """

    def __init__(self, model: Any, parameters: dict[str, Any], layers: int) -> None:
        self._model = model
        self._parameters = {"params": parameters}
        self._blocks = [CHANNEL.format(layer) for layer in range(layers)]

    def logits(self, tokens: np.ndarray) -> np.ndarray:
        """What the module gives."""
        return self._run(tokens)[0]

    def hidden_states(self, tokens: np.ndarray) -> list[np.ndarray]:
        """What each channel mixing gives, the last part of a block."""
        return self._run(tokens)[1]

    def _run(self, tokens: np.ndarray) -> tuple[np.ndarray, list[np.ndarray]]:
        (_, logits), recorded = self._model.apply(
            self._parameters,
            tokens,
            training=False,
            capture_intermediates=lambda module, _: module.name in self._blocks,
            mutable=["intermediates"],
        )
        outputs = recorded["intermediates"]
        return np.array(logits), [np.array(outputs[b]["__call__"][0]) for b in self._blocks]
