"""GLA, HGRN2, HGRN and the transformer of flash-linear-attention; config.json names which."""

from dataclasses import asdict
from typing import Any, Literal

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx.utils import tree_flatten
from pydantic.dataclasses import dataclass

from mlx_gateloop.configuration import raises_input_error
from mlx_gateloop.errors import InputError, shown
from mlx_gateloop.family.layers import FamilyArgs
from mlx_gateloop.model.arguments import STRICT, Count
from mlx_gateloop.model.registered import module, register

from .base import Inference, Reference, Settings, Shapes, Source, Tensor
from .fla_reference import FlaReference
from .rules import Rule, same, split

TYPES = ("gla", "hgrn2", "hgrn", "transformer")
# Parts of names: mlx-lm's llama, and flash-linear-attention.
RENAMED = (
    ("model.embed_tokens", "model.embeddings"),
    (".self_attn.", ".attn."),
    (".input_layernorm.", ".attn_norm."),
    (".post_attention_layernorm.", ".mlp_norm."),
)


@raises_input_error
@dataclass(config=STRICT)
class TransformerArgs(FamilyArgs):
    """The shape of a transformer, as config.json has it."""

    model_type: Literal["transformer"] = "transformer"
    num_heads: Count = 32
    num_kv_heads: Count | None = None
    rope_theta: float = 10000.0
    max_position_embeddings: Count = 2048
    qkv_bias: Literal[False] = False
    qk_norm: Literal[False] = False
    window_size: None = None

    def __post_init__(self) -> None:
        if self.hidden_size % (2 * self.num_heads) or self.num_heads % self.kv_heads:
            expected = f"a divisor of hidden_size / 2 = {self.hidden_size / 2:g} and a multiple of"
            got = f"{self.num_heads} and {self.kv_heads}"
            raise InputError(f"num_heads: expected {expected} num_kv_heads, got {got}")

    @property
    def kv_heads(self) -> int:
        return self.num_kv_heads or self.num_heads


class Fla(Source[Any]):
    """Language models of flash-linear-attention, by config.json and the shapes of the tensors."""

    kind = "fla"

    def __init__(self, config: dict[str, Any], shapes: Shapes) -> None:
        self.config, self.shapes = config, shapes

    def recognises(self, shapes: Shapes) -> bool:
        return {"model.embeddings.weight", "model.layers.0.attn_norm.weight"} <= shapes.keys()

    def infer(self, shapes: Shapes, settings: Settings) -> Inference[Any]:
        if not self.config:
            raise self.error("config.json: expected beside the weights, found none")
        kind = self.config.get("model_type")
        if kind not in TYPES:
            expected = ", ".join(TYPES)
            raise self.error(f"config.json: model_type: expected {expected}, got {shown(kind)}")
        register(kind)  # or transformers warns when it loads the tokenizer beside the weights
        try:
            kind_args = TransformerArgs if kind == "transformer" else module(kind).ModelArgs
            args = kind_args.from_dict(self.config)
        except InputError as error:
            raise self.error(f"config.json: {str(error).removeprefix('config: ')}") from None
        if args.num_hidden_layers > len(shapes):  # so many would be built
            raise self.error("config.json: num_hidden_layers: more than the weights have")
        sizes = f"depth {args.num_hidden_layers}, dim {args.hidden_size}, {args.vocab_size} tokens"
        return Inference(args, [f"config.json: {kind}, {sizes}, inner width {args.inner_size}"], [])

    def build(self, args: Any) -> nn.Module:
        if args.model_type != "transformer":
            return module(args.model_type).Model(args).eval()
        from mlx_lm.models import llama

        names = {"num_attention_heads": args.num_heads, "num_key_value_heads": args.kv_heads}
        names |= {"intermediate_size": args.inner_size, "rms_norm_eps": args.norm_eps}
        config = asdict(args) | names | {"model_type": "llama"}  # the others have one name in both
        return llama.Model(llama.ModelArgs.from_dict(config)).eval()

    def table(self, args: Any) -> list[Rule]:
        rules = []
        names: dict[str, mx.array] = dict(tree_flatten(self.build(args).parameters()))
        for name in names:
            key = _newest(name)
            gate = key.replace("up_proj", "gate_proj")
            fused = (2 * args.inner_size, args.hidden_size)
            if ".mlp." in key and self.shapes.get(gate) == fused and "down_proj" not in key:
                if key == gate:
                    rules.append(Rule(key, (name, name.replace("gate_proj", "up_proj")), split(2)))
                continue
            fused_norm = key.replace("g_norm", "g_norm_swish_gate")
            rules.append(same(fused_norm if fused_norm in self.shapes else key, name))
        for key in self.shapes:
            tied = key == "lm_head.weight" and args.tie_word_embeddings
            if tied or key.endswith(".rotary.inv_freq"):
                rules.append(Rule(key, (), lambda _: []))  # not used
        return rules

    def reference(self, args: Any, tensor: Tensor) -> Reference:
        def weight(name: str) -> np.ndarray:  # as it is in the file, so that `table` is verified
            former = name.replace("g_norm", "g_norm_swish_gate")
            array = tensor(former if former in self.shapes else name)
            return np.array(array.astype(mx.float32)).astype(np.float64)

        return FlaReference(args, weight)


def _newest(name: str) -> str:
    """Return the name in the newest flash-linear-attention of a parameter of ours or of llama."""
    for ours, theirs in RENAMED:
        name = name.replace(ours, theirs)
    return name
