"""The shape of a layer, validated on construction."""

from typing import Annotated, Literal

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

from mlx_gateloop.configuration import raises_input_error
from mlx_gateloop.errors import InputError

STRICT = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)
Count = Annotated[int, Field(gt=0, lt=2**31)]  # MLX counts in 32 bits
Activation = Literal["identity", "tanh", "sigmoid"]
GATED = ("data_controlled", "fixed")
# The values of fields that shape gates, with all other transitions.
UNGATED = {"transition_per": "channel", "gate": "polar", "ablation": "none", "input_scale": False}
# The transitions whose memories at the start are chosen; the others learn none.
SPREAD = (*GATED, "lru", "s4d_lin", "s4d_inv", "s5")


@raises_input_error
@dataclass(config=STRICT)
class LayerArgs:
    """The shape of one layer. The defaults are those of the paper's WikiText-103 model.

    The fields come in three groups: the paper's (hidden_size to dropout), variants for training
    (gate to conv_size), and those that only converted models need (mixing_size to
    rms_norm_eps).

    Args:
        hidden_size: Width of the model.
        intermediate_size: Inner width of channel mixing.
        num_heads: Heads of the operator; None means mixing_size (max-headed, the paper's model).
        mixer: "gate_loop", the operator, or "softmax", attention whose relative positions are the
            transitions (paper, section 3.4). Its cache grows with the text.
        transition: "data_controlled" (gamma and theta are projections of x) or "fixed" (learned
            per channel, the paper's baseline). The models that GateLoop generalises (section 3.1,
            details in `constant_transitions.py`): "linear_attention", a = 1; "retnet", fixed decay
            per head and fixed angles; "lru", "s4d_lin", "s4d_inv" and "s5", learned, with an input
            factor. "none" is for softmax only: plain causal attention.
        dropout: Probability, on the embedding and on the output of each mixing.
        gate: "polar", a = sigmoid(gamma) exp(i theta), the paper's; "polar_abs",
            |a| = sigmoid(|z|) and arg a = arg z of z = gamma + i theta (gateloop-transformer's);
            "real", without theta. This field, transition_per and ablation are for
            "data_controlled" and "fixed" only.
        longest_half_life: Half-life of a channel's memory at the start, in tokens: the channels'
            half-lives are spread from 1 to it (S4D's and S5's from a hundredth), evenly in their
            logarithm, as are gates' phases from 0.01 to pi, and the text changes gates little.
            None, as published: |a| = sigmoid(normal) in GateLoop, mostly forgotten after ten
            tokens. For transitions with learned magnitudes.
        input_scale: Multiply the key by sqrt(1 - |a_n|^2), which keeps the state's variance that of
            one input (arXiv 2402.19427, section 2.4). For bounded |a|; a tied key ignores it.
        query: "linear", a projection of x (the paper's), or "constant", one learned number a
            channel, as in the published LRU, S4D and S5, where it is complex.
        rope_theta: Base of the rotary positions (arXiv 2104.09864, 10,000 there) that turn query
            and key in pairs of channels; None is without. For softmax with transition "none" only.
        output_gate: Multiply the operator's output by SiLU(Linear(x)).
        conv_size: Length of a causal convolution of x before all projections, one filter a channel;
            None is without. For mixer "gate_loop" in a language model.
        mixing_size: Width of the operator, split evenly over the heads; None means hidden_size.
        transition_per: One transition per "channel", or one shared by the channels of a "head".
        ablation: The part of the transition that is ignored although its weights exist: "none";
            "phase", theta = 0; "transition", a = 1.
        input_gate: The key: "linear", a projection of x (the paper's); "sigmoid" of one; "tied",
            1 - |a|; "none", 1.
        query_activation: Applied to the query: "identity" (the paper's), "tanh" or "sigmoid".
        value_activation: Applied to the value.
        state_activation: Applied to the state that the query reads, y = q f(Re h); max-headed only.
        sub_norm: A layer norm on the operator's output, before the output gate; "head", one over
            each head, as RetNet's, with one weight for all heads.
        output_projection: A linear layer after the output gate; None means with an output gate, or
            if mixing_size is not hidden_size.
        activation: In channel mixing: "gelu", exact, or "gelu_tanh", its approximation.
        norm: "layer"; "rms", x / |x| sqrt(hidden_size) weight (gateloop-transformer's); "none".
        norm_position: "pre", x + f(norm(x)), or "post", norm(x + f(x)).
        bias: Linear layers have a bias.
        projection_bias: Those of time mixing have one, except the transition's; None means bias.
        layer_norm_eps: Epsilon of the layer norms.
        rms_norm_eps: Epsilon of norm "rms", added to the mean square; None is 1e-24 / hidden_size.

    Raises:
        InputError: A value that cannot be used.
    """

    hidden_size: Count = 624
    intermediate_size: Count = 1872
    num_heads: Count | None = None
    mixer: Literal["gate_loop", "softmax"] = "gate_loop"
    transition: Literal[
        "data_controlled", "fixed", "linear_attention", "retnet", "lru", "s4d_lin", "s4d_inv", "s5",
        "none",
    ] = "data_controlled"  # fmt: skip
    dropout: float = Field(default=0.0, ge=0, lt=1)
    # Variants.
    gate: Literal["polar", "polar_abs", "real"] = "polar"
    longest_half_life: float | None = Field(default=None, gt=1, le=1e9)
    input_scale: bool = False
    query: Literal["linear", "constant"] = "linear"
    rope_theta: float | None = Field(default=None, gt=1)
    output_gate: bool = False
    conv_size: Count | None = Field(default=None, le=256)
    # For converted models only.
    mixing_size: Count | None = None
    transition_per: Literal["channel", "head"] = "channel"
    ablation: Literal["none", "phase", "transition"] = "none"
    input_gate: Literal["linear", "sigmoid", "tied", "none"] = "linear"
    query_activation: Activation = "identity"
    value_activation: Activation = "identity"
    state_activation: Activation = "identity"
    sub_norm: Literal[False, True, "head"] = False
    output_projection: bool | None = None
    activation: Literal["gelu", "gelu_tanh"] = "gelu"
    norm: Literal["layer", "rms", "none"] = "layer"
    norm_position: Literal["pre", "post"] = "pre"
    bias: bool = True
    projection_bias: bool | None = None
    layer_norm_eps: float = Field(default=1e-5, gt=0, lt=1)
    rms_norm_eps: float | None = Field(default=None, gt=0, lt=1)

    def __post_init__(self) -> None:
        if self.width % self.heads:
            name = "hidden_size" if self.mixing_size is None else "mixing_size"
            raise self.invalid("num_heads", f"a divisor of {name} {self.width}")
        if self.state_activation != "identity" and self.heads != self.width:
            raise self.invalid("state_activation", f"'identity' with {self.heads} heads")
        if self.state_activation != "identity" and self.mixer == "softmax":
            raise self.invalid("state_activation", "'identity' with mixer 'softmax'")
        self._check_transition()
        if self.longest_half_life is not None:
            if self.transition not in SPREAD:
                raise self.invalid("longest_half_life", f"null with transition {self.transition!r}")
            if self.transition in GATED and (self.gate == "polar_abs" or not self.bias):
                raise self.invalid("longest_half_life", "null with polar_abs or without bias")
        if self.input_scale and (self.gate == "polar_abs" or self.ablation == "transition"):
            raise self.invalid("input_scale", "false with polar_abs or without a transition")
        if self.conv_size and self.mixer == "softmax":
            raise self.invalid("conv_size", "null with mixer 'softmax'")
        if self.sub_norm == "head" and self.heads == self.width:
            raise self.invalid("sub_norm", f"a boolean with {self.heads} heads of one channel")
        if self.output_projection is False and (self.output_gate or self.width != self.hidden_size):
            raise self.invalid("output_projection", "true with an output gate or a mixing_size")

    @property
    def width(self) -> int:
        return self.mixing_size or self.hidden_size

    @property
    def heads(self) -> int:
        return self.num_heads or self.width

    @property
    def transitions(self) -> int:
        return self.width if self.transition_per == "channel" else self.heads

    @property
    def state_size(self) -> int | None:
        """The numbers in a layer's state, complex if a is; None if it grows with the text."""
        return None if self.mixer == "softmax" else self.width**2 // self.heads

    @property
    def can_spread(self) -> bool:
        """True if half-lives and phases can be spread at the start, and the input scaled."""
        is_bounded = self.gate != "polar_abs" and self.ablation != "transition"
        is_gated = self.transition in GATED and self.mixer == "gate_loop"
        return is_gated and is_bounded and self.bias

    @property
    def projects_output(self) -> bool:
        if self.output_projection is None:
            return self.output_gate or self.width != self.hidden_size
        return self.output_projection

    def _check_transition(self) -> None:
        # a = 1 has two names, so that a config shows which model it is.
        unit = "none" if self.mixer == "softmax" else "linear_attention"
        if self.transition in ("none", "linear_attention") and self.transition != unit:
            raise self.invalid("transition", f"{unit!r} for a = 1 with mixer {self.mixer!r}")
        if self.rope_theta is not None and self.transition != "none":
            raise self.invalid("rope_theta", f"null with transition {self.transition!r}")
        turns_pairs = self.transition == "retnet" or self.rope_theta is not None
        if turns_pairs and (self.width // self.heads) % 2:
            whose = "rope_theta" if self.rope_theta is not None else "'retnet'"
            raise self.invalid("num_heads", f"fewer, with even numbers of channels for {whose}")
        if self.transition not in GATED:
            for name, value in UNGATED.items():
                if getattr(self, name) != value:
                    raise self.invalid(name, f"{value!r} with transition {self.transition!r}")
            if self.input_gate == "tied":
                raise self.invalid("input_gate", f"another with transition {self.transition!r}")
        elif self.input_gate == "tied" and (self.gate == "polar_abs" or self.ablation != "none"):
            raise self.invalid("input_gate", "another with polar_abs or an ablation")

    def invalid(self, name: str, expected: str) -> InputError:
        return InputError(f"{name} must be {expected}, got {getattr(self, name)!r}")
