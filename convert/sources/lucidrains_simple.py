"""`SimpleGateLoopLayer` of gateloop-transformer (0.2.5): one layer with real gates."""

from typing import ClassVar

from mlx_gateloop.model.arguments import LayerArgs

from .base import Inference, Reference, Settings, Shapes, Source, Tensor, needing
from .pytorch import TorchReference, load_weights
from .rules import Rule, linear, same, split

QKVA, NORM, POST_NORM = "to_qkva.0.weight", "norm.gamma", "maybe_post_ln.weight"


class LucidrainsSimple(Source[LayerArgs]):
    """Single layers of gateloop-transformer."""

    kind = "lucidrains-simple"
    settings: ClassVar = {"reverse": "only false: a reversed layer sees the future (false)"}

    def recognises(self, shapes: Shapes) -> bool:
        return QKVA in shapes

    def infer(self, shapes: Shapes, settings: Settings) -> Inference[LayerArgs]:
        self.check_settings(settings)
        if self.flag(settings, "reverse"):
            raise self.error("reverse=True is not supported: such a layer sees the future")
        args = LayerArgs(
            hidden_size=self.matrix(shapes, QKVA)[1],
            gate="real",
            input_gate="none",
            sub_norm=POST_NORM in shapes,
            norm="rms" if NORM in shapes else "none",
            bias=False,
        )
        inferred = f"dim {args.hidden_size}, prenorm={NORM in shapes}, post_ln={args.sub_norm}"
        return Inference(args, [inferred], [] if "reverse" in settings else ["reverse=False"])

    def table(self, args: LayerArgs) -> list[Rule]:
        """Pair the names; one matrix holds the query, the value and the gate."""
        names = ("q_proj", "v_proj", "gamma_proj")
        rules = [Rule((QKVA,), tuple(f"time_mixing.{name}.weight" for name in names), split(3))]
        if args.norm == "rms":
            rules.append(same(NORM, "time_norm.weight"))
        if args.sub_norm:
            rules += linear("maybe_post_ln", "time_mixing.sub_norm", bias=True)
        return rules

    def reference(self, args: LayerArgs, settings: Settings, tensor: Tensor) -> Reference:
        with needing("torch gateloop-transformer"):
            from gateloop_transformer import SimpleGateLoopLayer
        layer = SimpleGateLoopLayer(
            args.hidden_size, prenorm=args.norm == "rms", post_ln=args.sub_norm
        )
        load_weights(layer, tensor)
        return TorchReference(layer, [layer])
