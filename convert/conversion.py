"""From a checkpoint to our model by a source's key table, and back.

shapes -> which source -> arguments -> key table, checked -> tensors, a shard at a time -> model
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten, tree_unflatten

from mlx_gateloop.errors import InputError
from mlx_gateloop.model.arguments import LayerArgs
from mlx_gateloop.model.lm import is_state_transition

from .reading.find import Checkpoint
from .sources import Inference, Rule, Source, detect

FLOATS = ("float32", "float16", "bfloat16")


@dataclass(frozen=True)
class Plan:
    """A conversion that is known to fit; no tensor has been read yet."""

    checkpoint: Checkpoint
    source: Source
    settings: dict[str, Any]
    inference: Inference
    args: LayerArgs
    rules: list[Rule]

    @property
    def parameters(self) -> int:
        """Their number."""
        return sum(math.prod(shape) for shape in self.checkpoint.shapes.values())


def make_plan(checkpoint: Checkpoint, kind: str | None, settings: dict[str, Any]) -> Plan:
    """Finds out what a checkpoint is and checks its names, dtypes and shapes.

    Args:
        checkpoint: The weights.
        kind: The name of a source; None detects it.
        settings: What the weights do not say.

    Raises:
        InputError: It is not known, incomplete, or not as the key table has it.
    """
    source = detect(checkpoint.shapes, kind)
    inference = source.infer(checkpoint.shapes, settings)
    args = source.ARGS(**inference.args)
    plan = Plan(checkpoint, source, settings, inference, args, source.table(args))
    _check_names(plan)
    _check_dtypes(plan)
    _check_shapes(plan)
    return plan


def first(names: Iterable[str], most: int = 10) -> str:
    """The first names of many, and how many more there are."""
    names = [ascii(name)[1:-1][:120] for name in names]  # a file may call them anything
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def _check_names(plan: Plan) -> None:
    expected = [key for rule in plan.rules for key in rule.source]
    present = plan.checkpoint.shapes
    missing = [key for key in expected if key not in present]
    surplus = sorted(present.keys() - set(expected))
    problems = [
        f"{len(keys)} {word}: {first(keys)}"
        for word, keys in (("missing", missing), ("surplus", surplus))
        if keys
    ]
    if problems:
        problem = "; ".join(problems)
        raise InputError(f"{plan.checkpoint.origin}: not the keys of {plan.source.KIND}: {problem}")


def _check_dtypes(plan: Plan) -> None:
    wrong = [f"{n} ({d})" for n, d in plan.checkpoint.dtypes.items() if d not in FLOATS]
    if wrong:
        raise InputError(
            f"{plan.checkpoint.origin}: expected weights in {', '.join(FLOATS)}, "
            f"got {first(wrong)}; cast them first"
        )


def _check_shapes(plan: Plan) -> None:
    ours: dict[str, Any] = dict(tree_flatten(plan.source.build(plan.args).parameters()))
    for rule in plan.rules:  # backwards and not evaluated: this is arithmetic with shapes
        expected = [array.shape for array in rule.backward([ours[key] for key in rule.ours])]
        for key, shape in zip(rule.source, expected, strict=True):
            if plan.checkpoint.shapes[key] != shape:
                raise InputError(
                    f"{plan.checkpoint.origin}: {key}: expected the shape {shape}, got "
                    f"{plan.checkpoint.shapes[key]}; the model has another variant or is damaged"
                )


def load(plan: Plan, done: Callable[[int], Any]) -> tuple[nn.Module, list[str]]:
    """Reads the weights, one shard at a time, into our model.

    Args:
        plan: What to read.
        done: Called with the bytes of each tensor read.

    Returns:
        The model in the dtypes of the checkpoint, state transitions in float32, and the names of
        the tensors that hold NaN or infinity.

    Raises:
        InputError: A file cannot be read.
    """
    checkpoint = plan.checkpoint
    model = plan.source.build(plan.args)
    model.eval()
    not_finite = []
    for rule in sorted(plan.rules, key=lambda rule: checkpoint.position(rule.source)):
        arrays = [checkpoint.tensor(key) for key in rule.source]
        for key, array in zip(rule.source, arrays, strict=True):
            if not mx.isfinite(array).all():
                not_finite.append(key)
            done(array.nbytes)
        weights = [
            (key, mx.contiguous(array.astype(mx.float32) if is_state_transition(key) else array))
            for key, array in zip(rule.ours, rule.forward(arrays), strict=True)
        ]
        mx.eval([array for _, array in weights])
        model.update(tree_unflatten(weights))
    return model, not_finite
