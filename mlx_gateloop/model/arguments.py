"""The shape of a layer, checked when it is made."""

from dataclasses import dataclass, fields
from typing import Any

from mlx_gateloop.errors import InputError

ACTIVATIONS = ("identity", "tanh", "sigmoid")
GATED = ("data_controlled", "fixed")
PLAIN = {  # what the fields that shape gates must be with the other transitions
    "transition_per": "channel",
    "gate": "polar",
    "ablation": "none",
    "longest_half_life": None,
}
CHOICES = {
    "model_type": ("gateloop",),
    "mixer": ("gate_loop", "softmax"),
    "transition": (
        *GATED,
        *("linear_attention", "retnet", "lru", "s4d_lin", "s4d_inv", "s5", "none"),
    ),
    "transition_per": ("channel", "head"),
    "gate": ("polar", "polar_abs", "real"),
    "ablation": ("none", "phase", "transition"),
    "input_gate": ("linear", "sigmoid", "tied", "none"),
    "query_activation": ACTIVATIONS,
    "value_activation": ACTIVATIONS,
    "state_activation": ACTIVATIONS,
    "activation": ("gelu", "gelu_tanh"),
    "norm": ("layer", "rms", "none"),
    "norm_position": ("pre", "post"),
}


@dataclass
class LayerArgs:
    """The shape of one layer. The defaults are those of the paper's WikiText-103 model.

    Args:
        hidden_size: Width of the model.
        intermediate_size: Inner width of channel mixing.
        num_heads: Heads of the operator; None means mixing_size (max-headed, the paper's model).
        mixing_size: Width of the operator, split evenly over the heads; None means hidden_size.
        mixer: "gate_loop", the operator, or "softmax", attention whose relative positions are the
            transitions (paper, section 3.4). Its cache grows with the text.
        transition: "data_controlled" (gamma and theta are projections of x) or "fixed" (learned
            per channel, the paper's baseline). What GateLoop generalises (section 3.1, details in
            `transitions.py`): "linear_attention", a = 1; "retnet", fixed decay a head and fixed
            angles; "lru", "s4d_lin", "s4d_inv" and "s5", learned, with an input factor. "none" is
            for softmax alone: plain causal attention.
        transition_per: One transition per "channel", or one that the channels of a "head" share;
            "data_controlled" and "fixed" only, as are gate, ablation and longest_half_life.
        gate: "polar", a = sigmoid(gamma) exp(i theta), the paper's; "polar_abs",
            |a| = sigmoid(|z|) and arg a = arg z of z = gamma + i theta (gateloop-transformer's);
            "real", without theta.
        longest_half_life: Of a channel's memory at the start, in tokens: the channels' half-lives
            are spread from 1 to it, evenly in their logarithm, and phases start near 0. None, the
            paper's start: |a| = sigmoid(normal), most of it forgotten after ten tokens.
        ablation: What the operator leaves out though its weights are there: "none"; "phase",
            theta = 0; "transition", a = 1.
        input_gate: The key: "linear", a projection of x (the paper's); "sigmoid" of one; "tied",
            1 - |a|; "none", 1.
        query_activation: On the query: "identity" (the paper's), "tanh" or "sigmoid".
        value_activation: On the value.
        state_activation: On the state that the query reads, y = q f(Re h); max-headed only.
        sub_norm: A layer norm on what the operator gives.
        output_gate: Multiply that by SiLU(Linear(x)).
        output_projection: Then a linear layer; None means with an output gate, or where
            mixing_size is not hidden_size.
        activation: Of channel mixing: "gelu", exact, or "gelu_tanh", its approximation.
        norm: "layer"; "rms", x / |x| sqrt(hidden_size) weight (gateloop-transformer's); "none".
        norm_position: "pre", x + f(norm(x)), or "post", norm(x + f(x)).
        bias: Whether linear layers have a bias.
        projection_bias: Whether those of time mixing have one, the transition's left aside; None
            means bias.
        dropout: Probability, on the embedding and on what each mixing adds.
        layer_norm_eps: Epsilon of the layer norms.

    Raises:
        InputError: A value that cannot be used.
    """

    hidden_size: int = 624
    intermediate_size: int = 1872
    num_heads: int | None = None
    mixing_size: int | None = None
    mixer: str = "gate_loop"
    transition: str = "data_controlled"
    transition_per: str = "channel"
    gate: str = "polar"
    longest_half_life: float | None = None
    ablation: str = "none"
    input_gate: str = "linear"
    query_activation: str = "identity"
    value_activation: str = "identity"
    state_activation: str = "identity"
    sub_norm: bool = False
    output_gate: bool = False
    output_projection: bool | None = None
    activation: str = "gelu"
    norm: str = "layer"
    norm_position: str = "pre"
    bias: bool = True
    projection_bias: bool | None = None
    dropout: float = 0.0
    layer_norm_eps: float = 1e-5

    def __post_init__(self) -> None:
        for field in fields(self):
            self._check(field.name, field.type, getattr(self, field.name))
        if self.width % self.heads:
            name = "hidden_size" if self.mixing_size is None else "mixing_size"
            raise self.invalid("num_heads", f"a divisor of {name} {self.width}")
        if self.state_activation != "identity" and self.heads != self.width:
            raise self.invalid("state_activation", f"'identity' with {self.heads} heads")
        if self.state_activation != "identity" and self.mixer == "softmax":
            raise self.invalid("state_activation", "'identity' with mixer 'softmax'")
        self._check_transition()
        if self.longest_half_life is not None and (self.gate == "polar_abs" or not self.bias):
            raise self.invalid("longest_half_life", "null with polar_abs or without bias")
        if self.output_projection is False and (self.output_gate or self.width != self.hidden_size):
            raise self.invalid("output_projection", "true with an output gate or a mixing_size")

    @property
    def width(self) -> int:
        return self.mixing_size or self.hidden_size

    @property
    def heads(self) -> int:
        return self.num_heads or self.width

    @property
    def state_size(self) -> int | None:
        """Numbers of a layer's state, complex where a is; None if it grows with the text."""
        return None if self.mixer == "softmax" else self.width**2 // self.heads

    @property
    def projects_output(self) -> bool:
        if self.output_projection is None:
            return self.output_gate or self.width != self.hidden_size
        return self.output_projection

    def _check_transition(self) -> None:
        # a = 1 has two names, so that a config says which model it is
        unit = "none" if self.mixer == "softmax" else "linear_attention"
        if self.transition in ("none", "linear_attention") and self.transition != unit:
            raise self.invalid("transition", f"{unit!r} for a = 1 with mixer {self.mixer!r}")
        if self.transition == "retnet" and (self.width // self.heads) % 2:
            raise self.invalid(
                "num_heads", "fewer, with an even number of channels each for 'retnet'"
            )
        if self.transition not in GATED:
            for name, plain in PLAIN.items():
                if getattr(self, name) != plain:
                    shown = "null" if plain is None else repr(plain)
                    raise self.invalid(name, f"{shown} with transition {self.transition!r}")
            if self.input_gate == "tied":
                raise self.invalid("input_gate", f"another with transition {self.transition!r}")
        elif self.input_gate == "tied" and (self.gate == "polar_abs" or self.ablation != "none"):
            raise self.invalid("input_gate", "another with polar_abs or an ablation")

    def _check(self, name: str, type_: Any, value: Any) -> None:
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if name in CHOICES:
            good, expected = value in CHOICES[name], " or ".join(map(repr, CHOICES[name]))
        elif type_ in (bool, bool | None):
            good, expected = isinstance(value, bool), "true or false"
        elif name == "dropout":
            good, expected = number and 0 <= value < 1, "a number in [0, 1)"
        elif name == "longest_half_life":
            good, expected = value is None or (number and value > 1), "a number above 1, or null"
        elif name == "layer_norm_eps":
            good, expected = number and 0 < value < 1, "a number in (0, 1)"
        else:
            good, expected = number and isinstance(value, int) and value > 0, "a positive integer"
        if type_ in (int | None, bool | None):
            good, expected = good or value is None, f"{expected} or null"
        if not good:
            raise self.invalid(name, expected)

    def invalid(self, name: str, expected: str) -> InputError:
        """The error of a field that must be something else."""
        return InputError(f"config: {name} must be {expected}, got {getattr(self, name)!r}")
