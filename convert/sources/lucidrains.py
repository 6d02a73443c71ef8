"""`gateloop_transformer.Transformer` of PyPI's gateloop-transformer (0.2.5), GateLoop variants."""

from typing import Any, ClassVar, Literal

import mlx.core as mx
import numpy as np

from mlx_gateloop.errors import InputError
from mlx_gateloop.model.arguments import LayerArgs
from mlx_gateloop.model.lm import ModelArgs

from .base import Format, Inference, Reference, Settings, Shapes, Source, Tensor, depth, needing
from .rules import Rule, linear, same, split

EMBEDDING, MIXING, FEED_FORWARD = "token_emb.weight", "layers.{}.0", "layers.{}.1"
QKV = f"{MIXING}.fn.to_qkv.weight"
FULL_ATTENTION = f"{MIXING}.fn.to_qkv.0.weight"
# By our name of the ablation.
FLAG_OF: dict[Literal["none", "phase", "transition"], str] = {
    "phase": "ablate_complex",
    "transition": "ablate_state_transition",
}


class Lucidrains(Source[ModelArgs]):
    """Language models of gateloop-transformer."""

    kind = "lucidrains"
    settings: ClassVar = {
        "ablate_complex": "the transition is the real part, theta = 0 (false)",
        "ablate_state_transition": "the transition is 1 (false)",
        "frac_gradient_state_transition": "affects the gradient only, no output",
    }

    def recognises(self, shapes: Shapes) -> bool:
        first = {QKV.format(0), FULL_ATTENTION.format(0)}
        return EMBEDDING in shapes and not first.isdisjoint(shapes)

    def infer(self, shapes: Shapes, settings: Settings) -> Inference[ModelArgs]:
        """Infer the arguments; the names determine the constructor's flags."""
        if FULL_ATTENTION.format(0) in shapes:
            raise self.error(
                "use_gate_looped_attn=False is not supported: full attention keeps every "
                "token, a GateLoop model one state of constant size; train with GateLoop"
            )
        is_post = f"{MIXING.format(0)}.norm.bias" in shapes
        ablations = [ours for ours, flag in FLAG_OF.items() if self.flag(settings, flag)]
        args = ModelArgs(
            vocab_size=self.matrix(shapes, EMBEDDING)[0],
            hidden_size=self.matrix(shapes, EMBEDDING)[1],
            num_hidden_layers=depth(shapes, QKV),
            intermediate_size=self.matrix(shapes, f"{FEED_FORWARD.format(0)}.fn.0.weight")[0],
            ablation=ablations[-1] if ablations else "none",
            **mixing_args(self, shapes, f"{MIXING.format(0)}.fn."),
            norm="layer" if is_post else "rms",
            norm_position="post" if is_post else "pre",
            final_norm=not is_post,
            head_bias=False,
        )
        inferred = [
            f"depth {args.num_hidden_layers}, dim {args.hidden_size}, {args.vocab_size} tokens, "
            f"feed-forward {args.intermediate_size}",
            f"dim_gate_looped_attn {args.width}, {args.heads} heads",
            f"post_ln_norm={is_post}, sub_ln={args.sub_norm}, "
            f"attn_add_swish_gating={args.output_gate}",
        ]
        assumed = [f"{flag}=False" for flag in FLAG_OF.values() if flag not in settings]
        assumed += ["complex states, as since November 2023"] * (not ablations)
        return Inference(args, inferred, assumed)

    def table(self, args: ModelArgs) -> list[Rule]:
        rules = [same(EMBEDDING, "model.embed_tokens.weight")]
        for layer in range(args.num_hidden_layers):
            rules += _layer(layer, args)
        if args.final_norm:
            rules.append(same("to_logits.0.gamma", "model.norm.weight"))
        head = "to_logits.1.weight" if args.final_norm else "to_logits.weight"
        return [*rules, same(head, "lm_head.weight")]

    def reference(self, args: ModelArgs, tensor: Tensor) -> Reference:
        with needing("torch gateloop-transformer"):
            from gateloop_transformer import Transformer
        if args.intermediate_size % args.hidden_size:
            size = f"a multiple of dim {args.hidden_size}, got {args.intermediate_size}"
            raise InputError(f"--verify: {self.kind} needs a feed-forward of {size}")
        model = Transformer(
            args.hidden_size,
            num_tokens=args.vocab_size,
            depth=args.num_hidden_layers,
            ff_mult=args.intermediate_size // args.hidden_size,
            gate_loop_heads=args.heads,
            attn_add_swish_gating=args.output_gate,
            dim_gate_looped_attn=args.width,
            ablate_complex=args.ablation == "phase",
            ablate_state_transition=args.ablation == "transition",
            post_ln_norm=args.norm_position == "post",
            sub_ln=args.sub_norm,
        )
        return TorchReference(model, tensor)


def mixing_args(source: Format[Any], shapes: Shapes, path: str = "") -> dict[str, Any]:
    """Infer the arguments of time mixing from tensors below a path."""
    return {
        "num_heads": source.matrix(shapes, f"{path}to_a.0.weight")[0] // 2,
        "mixing_size": source.matrix(shapes, f"{path}to_qkv.weight")[0] // 3,
        "transition_per": "head",
        "gate": "polar_abs",
        "sub_norm": f"{path}maybe_sub_ln.weight" in shapes,
        "output_gate": f"{path}to_gates.0.weight" in shapes,
        "projection_bias": False,
    }


def mixing_rules(path: str, time: str, args: LayerArgs) -> list[Rule]:
    qkv = tuple(f"{time}.{name}_proj.weight" for name in "qkv")
    rules = [Rule(f"{path}to_qkv.weight", qkv, split(3))]
    for kind in ("weight", "bias"):
        transition = tuple(f"{time}.{name}_proj.{kind}" for name in ("gamma", "theta"))
        # real and imaginary parts are interleaved
        rules.append(Rule(f"{path}to_a.0.{kind}", transition, lambda a: [a[0::2], a[1::2]]))
    if args.sub_norm:
        rules += linear(f"{path}maybe_sub_ln", f"{time}.sub_norm", bias=True)
    if args.output_gate:
        rules.append(same(f"{path}to_gates.0.weight", f"{time}.gate_proj.weight"))
    if args.projects_output:
        rules.append(same(f"{path}to_out.weight", f"{time}.out_proj.weight"))
    return rules


def _layer(layer: int, args: ModelArgs) -> list[Rule]:
    ours, mixing = f"model.layers.{layer}", f"{MIXING.format(layer)}.fn"
    time, channel = f"{ours}.time_mixing", f"{ours}.channel_mixing"
    forward = f"{FEED_FORWARD.format(layer)}.fn"
    return [
        *_norm(MIXING.format(layer), f"{ours}.time_norm", args),
        *_norm(FEED_FORWARD.format(layer), f"{ours}.channel_norm", args),
        *mixing_rules(f"{mixing}.", time, args),
        *linear(f"{forward}.0", f"{channel}.up_proj", bias=True),
        *linear(f"{forward}.2", f"{channel}.down_proj", bias=True),
    ]


def _norm(source: str, ours: str, args: ModelArgs) -> list[Rule]:
    if args.norm == "rms":
        return [same(f"{source}.norm.gamma", f"{ours}.weight")]
    return linear(f"{source}.norm", ours, bias=True)


class TorchReference:
    """The package's Transformer with a checkpoint's weights in float32; see `Reference`."""

    def __init__(self, model: Any, tensor: Tensor) -> None:
        import torch

        state = {name: np.array(tensor(name).astype(mx.float32)) for name in model.state_dict()}
        model.load_state_dict({name: torch.from_numpy(array) for name, array in state.items()})
        self._model = model.eval()
        self._states: list[np.ndarray] = []
        for _, feed_forward in model.layers:
            feed_forward.register_forward_hook(lambda *call: self._states.append(call[-1].numpy()))

    def logits(self, tokens: np.ndarray) -> np.ndarray:
        import torch

        self._states.clear()
        with torch.no_grad():
            return self._model(torch.from_numpy(tokens)).numpy()

    def hidden_states(self, tokens: np.ndarray) -> list[np.ndarray]:
        self.logits(tokens)
        return [*self._states]


# --- single layers, for --layers

QKVA, NORM, POST_NORM = "to_qkva.0.weight", "norm.gamma", "maybe_post_ln.weight"


class Simple(Format[LayerArgs]):
    """`SimpleGateLoopLayer`, with real gates."""

    kind = "lucidrains-simple"

    def infer(self, shapes: Shapes, settings: Settings) -> Inference[LayerArgs]:
        args = LayerArgs(
            hidden_size=self.matrix(shapes, QKVA)[1],
            gate="real",
            input_gate="none",
            sub_norm=POST_NORM in shapes,
            norm="rms" if NORM in shapes else "none",
            bias=False,
        )
        return Inference(args, [], [])

    def table(self, args: LayerArgs) -> list[Rule]:
        """Pair the names; one matrix holds the query, the value and the gate."""
        names = ("q_proj", "v_proj", "gamma_proj")
        rules = [Rule(QKVA, tuple(f"time_mixing.{name}.weight" for name in names), split(3))]
        if args.norm == "rms":
            rules.append(same(NORM, "time_norm.weight"))
        if args.sub_norm:
            rules += linear("maybe_post_ln", "time_mixing.sub_norm", bias=True)
        return rules


class Full(Format[LayerArgs]):
    """`GateLoopedAttention`."""

    kind = "lucidrains-full"

    def infer(self, shapes: Shapes, settings: Settings) -> Inference[LayerArgs]:
        size = self.matrix(shapes, "to_qkv.weight")[1]
        args = LayerArgs(hidden_size=size, norm="none", **mixing_args(self, shapes))
        return Inference(args, [], [])

    def table(self, args: LayerArgs) -> list[Rule]:
        return mixing_rules("", "time_mixing", args)
