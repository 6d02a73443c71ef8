"""The two ways of the command: weights in, and back."""

import contextlib
import math
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import mlx.nn as nn
from tqdm import tqdm

from mlx_gateloop.errors import InputError
from mlx_gateloop.io import HUB_ID
from mlx_gateloop.model.lm import Model, ModelArgs

from .card import Card
from .conversion import Plan, first, load, make_plan
from .options import Options
from .output import can_push, cast, check_target, push, quantize, staged, write_layer, write_model
from .reading.find import Checkpoint, find
from .settings import read_settings
from .sources import Reference
from .to_lucidrains import convert_back
from .tokenizer import load_tokenizer
from .verify import compare, in_float32, outputs, random_inputs, verify


def convert(options: Options) -> bool:
    """Converts a checkpoint to a model directory.

    Returns:
        Whether the proof passed, or none was asked for.

    Raises:
        InputError: The input cannot be used; the output is as it was.
    """
    if options.push is not None and not HUB_ID.fullmatch(options.push):
        raise InputError(f"--push {options.push}: expected USER/NAME")
    checkpoint = find(options.source, options.ema)
    check_target(options.out, checkpoint.files, options.force)
    settings, file = read_settings(options.settings, checkpoint, options.set)
    named = settings.pop("tokenizer", None)
    if named is not None and not isinstance(named, str):
        raise InputError(f"setting tokenizer: expected a name, got {named!r}")
    name = options.tokenizer or _beside(file, named)
    plan = make_plan(checkpoint, options.kind, settings)
    tokenizer, origin = _tokenizer(name, plan, options)
    card = _card(plan, options, file, origin)
    print(card.summary())
    if isinstance(plan.args, ModelArgs) and len(tokenizer) < plan.args.vocab_size:
        most = plan.args.vocab_size
        _warn(card, f"the tokenizer has {len(tokenizer)} entries, the model {most}: is it the one?")
    if options.dry_run:
        if options.quantize:  # on the weights it begins with: only widths matter
            new = plan.source.build(plan.args)
            for left in quantize(new, options.q_bits, options.q_group_size):
                _warn(card, left)
        print("dry run: no proof was made\n" if options.verify else "", end="")
        print(f"dry run: nothing was written to {options.out}")
        print(f"dry run: nothing was pushed to {options.push}" if options.push else "", end="")
        return True
    if options.push:
        can_push(options.push)
    with _progress(checkpoint) as done:
        model, not_finite = load(plan, done)
    if not_finite:
        _warn(card, f"NaN or infinity in {len(not_finite)} tensors: {first(not_finite)}")
    reference = _reference(plan, options)
    if reference and not _verify(plan, model, reference, options.tolerance, card):
        return False
    if _narrow(model, options, card) and reference:
        _measure(plan, model, reference, card)
    with staged(options.out) as place:
        card.hashes = checkpoint.hashes()
        if isinstance(model, Model):
            write_model(model, tokenizer, str(card), place)
        else:
            write_layer(model, plan.args, str(card), place)
        if options.push:
            print(f"pushed to {push(place, options.push)}")
    print(f"wrote {options.out}")
    return True


def _beside(file: Path | None, tokenizer: str | None) -> str | None:
    """A tokenizer that a YAML file names: a path there starts where that file lies."""
    if file and tokenizer and (file.parent / tokenizer).exists():
        return str(file.parent / tokenizer)
    return tokenizer


def _tokenizer(name: str | None, plan: Plan, options: Options) -> tuple[Any, str]:
    if isinstance(plan.args, ModelArgs):
        return load_tokenizer(name, plan.checkpoint.directory, plan.args.vocab_size)
    for flag, value in (("--tokenizer", name), ("-q", options.quantize)):
        if value:
            raise InputError(f"{flag}: {plan.source.KIND} is a layer, no language model")
    return None, "none, this is a layer"


def _card(plan: Plan, options: Options, settings: Path | None, tokenizer: str) -> Card:
    is_path = Path(options.source).expanduser().exists()
    dtypes = sorted(set(plan.checkpoint.dtypes.values()))
    given = [f"settings from {settings.name}"] if settings else []
    return Card(
        name=options.out.name,
        # a path of somebody's disk says nothing to others
        origin=Path(options.source).name if is_path else options.source,
        from_hub=not is_path,
        kind=plan.source.KIND,
        is_layer=not isinstance(plan.args, ModelArgs),
        parameters=plan.parameters,
        stored=options.dtype or ", ".join(dtypes),
        tokenizer=tokenizer,
        inferred=plan.inference.inferred,
        assumed=[*plan.inference.assumed, *(f"{k}={v}, set" for k, v in plan.settings.items())],
        notes=[*plan.checkpoint.notes, *given],
    )


def _warn(card: Card, warning: str) -> None:
    print(f"warning: {warning}", file=sys.stderr)
    card.notes.append(f"warning: {warning}")


@contextlib.contextmanager
def _progress(checkpoint: Checkpoint) -> Iterator[Callable[[int], Any]]:
    total = sum(
        math.prod(shape) * (4 if checkpoint.dtypes[name] == "float32" else 2)
        for name, shape in checkpoint.shapes.items()
    )
    # None: only on a terminal
    with tqdm(total=total, unit="B", unit_scale=True, desc="reading", disable=None) as bar:
        yield bar.update


def _narrow(model: nn.Module, options: Options, card: Card) -> bool:
    """Casts and quantizes as asked; whether the numbers changed."""
    if options.dtype and (overflown := cast(model, options.dtype)):
        _warn(card, f"values became infinite in {options.dtype}: {first(overflown)}")
    if options.quantize:
        for left in quantize(model, options.q_bits, options.q_group_size):
            _warn(card, left)
        card.stored = f"{options.q_bits} bits in groups of {options.q_group_size}"
    card.stored += ", state transitions float32"
    return bool(options.dtype or options.quantize)


def _reference(plan: Plan, options: Options) -> Reference | None:
    """The source's own model, if the proof is wanted."""
    if not options.verify:
        return None
    reference = plan.source.reference(plan.args, plan.settings, plan.checkpoint.tensor)
    if isinstance(reference, str):
        raise InputError(f"--verify: {reference}")
    return reference


def _verify(
    plan: Plan, model: nn.Module, reference: Reference, tolerance: float, card: Card
) -> bool:
    exact = in_float32(model, plan.source.build(plan.args))
    report = verify(exact, plan.args, reference, tolerance)
    print(report)
    card.parity = str(report)
    if not report.passed:
        print("error: the logits differ; nothing was written", file=sys.stderr)
    return report.passed


def _measure(plan: Plan, model: nn.Module, reference: Reference, card: Card) -> None:
    """What casting and quantizing cost; nothing depends on it."""
    inputs = random_inputs(plan.args, 64)
    line = compare("as written, length 64", outputs(model, inputs), reference.logits(inputs))
    print(line)
    card.parity += f"\n{line}"


def to_pytorch(options: Options) -> bool:
    """Converts a model directory to a source's state dict; see `convert_back`."""
    assert options.to is not None
    for flag in ("kind", "ema", "settings", "set", "tokenizer", "quantize", "push", "verify"):
        if getattr(options, flag):
            raise InputError(f"--to: goes without --{'from' if flag == 'kind' else flag}")
    print(*convert_back(options), sep="\n")
    return True
