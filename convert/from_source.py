"""From a checkpoint to a model directory: the whole way, one step a line."""

from typing import Any

import mlx.core as mx
import mlx.nn as nn

from mlx_gateloop.errors import InputError
from mlx_gateloop.io.files import staged
from mlx_gateloop.io.models import HUB_ID
from mlx_gateloop.model.lm import ModelArgs

from .card import Card
from .hub import check_login, push
from .options import Options
from .output import check_target, write
from .plan import Plan, first, make_plan
from .precision import cast, quantize
from .reading.find import find
from .settings import read_settings
from .tokenizer import load_tokenizer
from .verify import compare_at, verify


def convert(options: Options) -> bool:
    """Convert a checkpoint to a model directory; False if a proof failed: nothing is written."""
    plan, tokenizer, card = prepare(options)
    if options.dry_run:
        _say_the_rest(plan, options, card)
        return True
    if options.push:
        check_login(options.push)
    model, not_finite = plan.load()
    if not_finite:
        card.warn(f"NaN or infinity in {len(not_finite)} tensors: {first(not_finite)}")
    reference = plan.reference() if options.verify else None
    if reference:
        stored = model.parameters()
        model.set_dtype(mx.float32)
        report = verify(model, plan.args, reference, options.tolerance)
        card.prove(report)
        if not report.passed:
            return False
        model.update(stored)
    is_changed = _change_precision(model, options, card)
    if reference and is_changed:  # told, and no reason to refuse
        card.prove(compare_at(64, "as written, length 64", model, plan.args, reference))
    with staged(options.out) as directory:
        write(model, plan.args, tokenizer, str(card), directory)
        if options.push:
            print(f"pushed to {push(directory, options.push)}")
    print(f"wrote {options.out}")
    return True


def prepare(options: Options) -> tuple[Plan, Any, Card]:
    """Find and check everything that a conversion needs, and print it, before a tensor is read.

    Returns:
        The plan, the tokenizer (None for a single layer), and the model card.
    """
    if options.push is not None and not HUB_ID.fullmatch(options.push):
        raise InputError(f"--push {options.push}: expected USER/NAME")
    checkpoint = find(options.source, options.ema)
    check_target(options.out, checkpoint.files, options.force)
    settings, file = read_settings(options.settings, checkpoint.files[0], options.set)
    named = settings.pop("tokenizer", None)
    if named is not None and not isinstance(named, str):
        raise InputError(f"setting tokenizer: expected a name, got {named!r}")
    plan = make_plan(checkpoint, options.kind, settings)
    tokenizer, origin = _tokenizer(options.tokenizer or named, plan, options.quantize)
    stored = options.dtype or ", ".join(sorted(set(checkpoint.dtypes.values())))
    notes = checkpoint.notes + ([f"settings from {file.name}"] if file else [])
    card = Card(options.out.name, options.source, plan, origin, stored, notes)
    print(card.summary())
    if isinstance(plan.args, ModelArgs) and len(tokenizer) < plan.args.vocab_size:
        most = plan.args.vocab_size
        card.warn(f"the tokenizer has {len(tokenizer)} entries, the model {most}: is it the one?")
    return plan, tokenizer, card


def _tokenizer(name: str | None, plan: Plan, is_quantized: bool) -> tuple[Any, str]:
    if isinstance(plan.args, ModelArgs):
        return load_tokenizer(name, plan.checkpoint.directory, plan.args.vocab_size)
    for flag, value in (("--tokenizer", name), ("-q", is_quantized)):
        if value:
            raise InputError(f"{flag}: {plan.source.kind} is a layer, not a language model")
    return None, "none, this is a layer"


def _change_precision(model: nn.Module, options: Options, card: Card) -> bool:
    """Cast and quantize as asked; False if neither was."""
    if options.dtype and (overflown := cast(model, options.dtype)):
        card.warn(f"values became infinite in {options.dtype}: {first(overflown)}")
    if options.quantize:
        for left in quantize(model, options.q_bits, options.q_group_size):
            card.warn(left)
        card.stored = f"{options.q_bits} bits in groups of {options.q_group_size}"
    card.stored += ", state transitions float32"
    return bool(options.dtype or options.quantize)


def _say_the_rest(plan: Plan, options: Options, card: Card) -> None:
    """End a dry run."""
    if options.quantize:  # random weights will do: only widths matter
        for left in quantize(plan.build(), options.q_bits, options.q_group_size):
            card.warn(left)
    if options.verify:
        print("dry run: nothing was verified")
    print(f"dry run: nothing was written to {options.out}")
    if options.push:
        print(f"dry run: nothing was pushed to {options.push}")
