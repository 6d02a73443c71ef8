"""From a checkpoint to our model by a source's table; all is checked before a tensor is read."""

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten
from tqdm import tqdm

from mlx_gateloop.errors import InputError
from mlx_gateloop.model.lm import is_state_transition

from .options import FLOATS
from .reading.find import Checkpoint
from .sources import detect
from .sources.base import Format, Inference, Reference, Source
from .sources.fla import Fla
from .sources.rules import Rule


@dataclass(frozen=True)
class Plan:
    """A conversion with checked names, dtypes and shapes."""

    checkpoint: Checkpoint  # weights; no tensor has been read yet
    source: Format[Any]
    settings: dict[str, Any]  # what they do not say
    inference: Inference[Any]  # our model's arguments, and their origin
    rules: list[Rule]  # the source's table for them

    @property
    def args(self) -> Any:
        """The model's own, ModelArgs for ours; LayerArgs of a single layer."""
        return self.inference.args

    def reference(self) -> Reference:
        """Build the source's own model with the checkpoint's weights."""
        assert isinstance(self.source, Source)  # a single layer has none
        return self.source.reference(self.args, self.checkpoint.tensor)

    @property
    def parameters(self) -> int:
        return sum(math.prod(shape) for shape in self.checkpoint.shapes.values())

    def load(self) -> tuple[nn.Module, list[str]]:
        """Read the weights into our model by shards; return it and names with NaN or infinity."""
        checkpoint, model = self.checkpoint, self.source.build(self.args)
        not_finite = []
        rules = sorted(self.rules, key=lambda rule: checkpoint.position(rule.source))
        for rule in tqdm(rules, "reading", unit="tensor", disable=None):  # on terminals only
            array = checkpoint.tensor(rule.source)
            if not mx.isfinite(array).all():
                not_finite.append(rule.source)
            weights = [
                (key, mx.contiguous(a.astype(mx.float32) if is_state_transition(key) else a))
                for key, a in zip(rule.ours, rule.forward(array), strict=True)
            ]
            mx.eval([array for _, array in weights])
            model.load_weights(weights, strict=False)
        return model, not_finite


@contextmanager
def _naming(checkpoint: Checkpoint) -> Iterator[None]:
    try:
        yield
    except InputError as error:
        raise InputError(f"{checkpoint.origin}: {error}") from error


def make_plan(checkpoint: Checkpoint, kind: str | None, settings: dict[str, object]) -> Plan:
    with _naming(checkpoint):
        source = detect(checkpoint.shapes, kind)
    if unknown := sorted(map(str, settings.keys() - source.settings.keys())):
        expected = ", ".join(source.settings) or "none"
        raise source.error(f"unknown setting {', '.join(unknown)}; expected {expected}")
    if isinstance(source, Fla):
        source = Fla(checkpoint.config, checkpoint.shapes)
    return plan_of(source, checkpoint, settings)


def plan_of(source: Format[Any], checkpoint: Checkpoint, settings: dict[str, object]) -> Plan:
    """Check the names, dtypes and shapes of a checkpoint of a known source."""
    with _naming(checkpoint):
        inference = source.infer(checkpoint.shapes, settings)
        plan = Plan(checkpoint, source, settings, inference, source.table(inference.args))
        _check_names(plan)
        if wrong := [f"{n} ({d})" for n, d in checkpoint.dtypes.items() if d not in FLOATS]:
            raise InputError(f"expected {', '.join(FLOATS)}, got {first(wrong)}; cast the weights")
        _check_shapes(plan)
    return plan


def first(names: Iterable[str], count: int = 10) -> str:
    """Join the first of many names, and say how many more there are."""
    names = [ascii(name)[1:-1][:120] for name in names]  # a hostile file may hold any characters
    more = f" and {len(names) - count} more" if len(names) > count else ""
    return ", ".join(names[:count]) + more


def _check_names(plan: Plan) -> None:
    expected = [rule.source for rule in plan.rules]
    present = plan.checkpoint.shapes
    differences = {
        "missing": [key for key in expected if key not in present],
        "surplus": sorted(present.keys() - expected),
    }
    problems = [f"{len(keys)} {word}: {first(keys)}" for word, keys in differences.items() if keys]
    if problems:
        raise InputError(f"not the keys of {plan.source.kind}: {'; '.join(problems)}")


def _check_shapes(plan: Plan) -> None:
    ours: dict[str, mx.array] = dict(tree_flatten(plan.source.build(plan.args).parameters()))
    for rule in plan.rules:
        shape = plan.checkpoint.shapes[rule.source]
        expected = {key: ours[key].shape for key in rule.ours}
        try:  # nothing is evaluated but shapes
            found = [array.shape for array in rule.forward(mx.zeros(shape))]
        except (ValueError, IndexError, OverflowError, RuntimeError):  # huge sizes, too
            found = []
        if found != [*expected.values()]:
            parts = ", ".join(f"{key} {size}" for key, size in expected.items())
            problem = f"{rule.source}: its shape {shape} does not make {parts}"
            raise InputError(f"{problem}; the model is another variant or is damaged")
