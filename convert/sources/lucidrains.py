"""`gateloop_transformer.Transformer` of PyPI's gateloop-transformer (0.2.5), GateLoop variants.

The full-attention variant is no GateLoop: it keeps the key and value of every token.
"""

from collections.abc import Mapping
from typing import Any

from mlx_gateloop.errors import InputError
from mlx_gateloop.model.lm import Model, ModelArgs

from .base import Inference, Reference, Shapes, Tensor, check_settings, depth, flag, matrix
from .pytorch import TorchReference, load_weights
from .rules import INTERLEAVE, Rule, linear, same, split

KIND = "lucidrains"
ARGS = ModelArgs
SETTINGS = {
    "ablate_complex": "the transition is the real part, theta = 0 (false)",
    "ablate_state_transition": "the transition is 1 (false)",
    "frac_gradient_state_transition": "concerns the gradient only; changes no output",
}
EMBEDDING, MIXING, FEED_FORWARD = "token_emb.weight", "layers.{}.0", "layers.{}.1"
QKV = f"{MIXING}.fn.to_qkv.weight"
FULL_ATTENTION = f"{MIXING}.fn.to_qkv.0.weight"
build = Model


def recognises(shapes: Shapes) -> bool:
    """Whether there are the embedding and the first layer, of either attention."""
    first = {QKV.format(0), FULL_ATTENTION.format(0)}
    return EMBEDDING in shapes and not first.isdisjoint(shapes)


def infer(shapes: Shapes, settings: Mapping[str, Any]) -> Inference:
    """The arguments; see `Source`."""
    check_settings(KIND, SETTINGS, settings)
    if FULL_ATTENTION.format(0) in shapes:
        raise InputError(
            f"{KIND}: use_gate_looped_attn=False is not supported: full attention keeps every "
            "token, a GateLoop model one state of constant size; train with GateLoop"
        )
    vocabulary, size = matrix(KIND, shapes, EMBEDDING)
    mixing = f"{MIXING.format(0)}.fn"
    width = matrix(KIND, shapes, f"{mixing}.to_qkv.weight")[0] // 3
    heads = matrix(KIND, shapes, f"{mixing}.to_a.0.weight")[0] // 2
    inner = matrix(KIND, shapes, f"{FEED_FORWARD.format(0)}.fn.0.weight")[0]
    layers = depth(shapes, QKV)
    is_post = f"{MIXING.format(0)}.norm.bias" in shapes
    has_gate = f"{mixing}.to_gates.0.weight" in shapes
    has_sub_norm = f"{mixing}.maybe_sub_ln.weight" in shapes
    ablation = _ablation(settings)
    args = {
        "vocab_size": vocabulary,
        "hidden_size": size,
        "num_hidden_layers": layers,
        "intermediate_size": inner,
        "num_heads": heads,
        "mixing_size": width,
        "transition_per": "head",
        "gate": "polar_abs",
        "ablation": ablation,
        "sub_norm": has_sub_norm,
        "output_gate": has_gate,
        "norm": "layer" if is_post else "rms",
        "norm_position": "post" if is_post else "pre",
        "final_norm": not is_post,
        "projection_bias": False,
        "head_bias": False,
    }
    inferred = [
        f"depth {layers}, dim {size}, {vocabulary} tokens, feed-forward {inner}",
        f"dim_gate_looped_attn {width}, {heads} heads",
        f"post_ln_norm={is_post}, sub_ln={has_sub_norm}, attn_add_swish_gating={has_gate}",
    ]
    ablations = ("ablate_complex", "ablate_state_transition")
    assumed = [f"{name}=False" for name in ablations if name not in settings]
    return Inference(args, inferred, assumed)


def _ablation(settings: Mapping[str, Any]) -> str:
    if flag(KIND, settings, "ablate_state_transition"):
        return "transition"
    return "phase" if flag(KIND, settings, "ablate_complex") else "none"


def table(args: ModelArgs) -> list[Rule]:
    """The key table; see `Source`."""
    rules = [same(EMBEDDING, "model.embed_tokens.weight")]
    for layer in range(args.num_hidden_layers):
        rules += _layer(layer, args)
    if args.final_norm:
        rules.append(same("to_logits.0.gamma", "model.norm.weight"))
    return [*rules, same(_head(args), "lm_head.weight")]


def _head(args: ModelArgs) -> str:
    # a Sequential of one module is that module
    return "to_logits.1.weight" if args.final_norm else "to_logits.weight"


def _layer(layer: int, args: ModelArgs) -> list[Rule]:
    ours, mixing = f"model.layers.{layer}", f"{MIXING.format(layer)}.fn"
    time, channel = f"{ours}.time_mixing", f"{ours}.channel_mixing"
    forward = f"{FEED_FORWARD.format(layer)}.fn"
    qkv = tuple(f"{time}.{name}_proj.weight" for name in "qkv")
    rules = [
        *_norm(MIXING.format(layer), f"{ours}.time_norm", args),
        *_norm(FEED_FORWARD.format(layer), f"{ours}.channel_norm", args),
        Rule((f"{mixing}.to_qkv.weight",), qkv, split(3)),
        *linear(f"{forward}.0", f"{channel}.up_proj", bias=True),
        *linear(f"{forward}.2", f"{channel}.down_proj", bias=True),
    ]
    for kind in ("weight", "bias"):
        transition = tuple(f"{time}.{name}_proj.{kind}" for name in ("gamma", "theta"))
        rules.append(Rule((f"{mixing}.to_a.0.{kind}",), transition, INTERLEAVE))
    if args.sub_norm:
        rules += linear(f"{mixing}.maybe_sub_ln", f"{time}.sub_norm", bias=True)
    if args.output_gate:
        rules.append(same(f"{mixing}.to_gates.0.weight", f"{time}.gate_proj.weight"))
    if args.projects_output:
        rules.append(same(f"{mixing}.to_out.weight", f"{time}.out_proj.weight"))
    return rules


def _norm(source: str, ours: str, args: ModelArgs) -> list[Rule]:
    if args.norm == "rms":
        return [same(f"{source}.norm.gamma", f"{ours}.weight")]
    return linear(f"{source}.norm", ours, bias=True)


def expressible(args: ModelArgs) -> str | None:
    """In one line why gateloop-transformer has no such model; None if it has."""
    is_post = args.norm_position == "post"
    is_max_headed = args.heads == args.width
    required = {
        "mixer": "gate_loop",
        "transition": "data_controlled",
        "transition_per": args.transition_per if is_max_headed else "head",
        "gate": "polar_abs",
        "input_gate": "linear",
        "query_activation": "identity",
        "value_activation": "identity",
        "state_activation": "identity",
        "activation": "gelu",
        "norm": "layer" if is_post else "rms",
        "final_norm": not is_post,
        "bias": True,
        "projection_bias": False,
        "head_bias": False,
        "tie_word_embeddings": False,
        "layer_norm_eps": 1e-5,
        "outputs": args.vocab_size,
        "projects_output": args.output_gate or args.width != args.hidden_size,
    }
    for name, value in required.items():
        if (got := getattr(args, name)) != value:
            return f"{KIND} has {name} {value!r} only, this model {got!r}"
    if args.intermediate_size % args.hidden_size:
        return f"{KIND}: intermediate_size must be a multiple of hidden_size {args.hidden_size}"
    return None


def reference(args: ModelArgs, settings: Mapping[str, Any], tensor: Tensor) -> Reference | str:
    """The package's own Transformer; see `Source`."""
    try:
        from gateloop_transformer import Transformer
    except ImportError as error:
        return f"needs {error.name}; `pip install torch gateloop-transformer`"
    if problem := expressible(args):
        return problem
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
    load_weights(model, tensor)
    return TorchReference(model, [feed_forward for _, feed_forward in model.layers])
