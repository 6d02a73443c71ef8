"""Single layers of gateloop-transformer (0.2.5), for `--layers`."""

from mlx_gateloop.model.arguments import LayerArgs

from .base import Format, Inference, Settings, Shapes
from .lucidrains import mixing_args, mixing_rules
from .rules import Rule, linear, same, split

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
        rules = [Rule((QKVA,), tuple(f"time_mixing.{name}.weight" for name in names), split(3))]
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
