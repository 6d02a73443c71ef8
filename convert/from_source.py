"""From a checkpoint to a model directory: the whole way, one step a line."""

from argparse import Namespace
from typing import Any

import mlx.core as mx

from mlx_gateloop.errors import InputError
from mlx_gateloop.io.files import staged
from mlx_gateloop.io.models import save
from mlx_gateloop.model.arguments import LayerArgs

from .card import Card
from .options import read_settings
from .output import check_target
from .plan import Plan, first, make_plan
from .precision import cast, quantize
from .reading.find import find
from .tokenizer import load_tokenizer
from .verify import compare, logits, random_tokens, verify


def convert(options: Namespace) -> bool:
    """Convert a checkpoint to a model directory; False, and nothing written, if a proof failed."""
    plan, tokenizer, card = prepare(options)
    bits, group_size = options.q_bits or 4, options.q_group_size or 64
    if options.dry_run:
        if options.quantize:  # random weights will do: only widths matter
            quantize(plan.source.build(plan.args), bits, group_size, card.warn)
        if options.verify:
            print("dry run: nothing was verified")
        print(f"dry run: nothing was written to {options.out}")
        return True
    model, not_finite = plan.load()
    if not_finite:
        card.warn(f"NaN or infinity in {len(not_finite)} tensors: {first(not_finite)}")
    reference = plan.reference() if options.verify else None
    if reference:
        stored = model.parameters()
        model.set_dtype(mx.float32)
        report = verify(model, plan.args.vocab_size, reference, options.tolerance)
        card.prove(report)
        if not report.passed:
            return False
        model.update(stored)
    if options.dtype and (overflown := cast(model, options.dtype)):
        card.warn(f"values became infinite in {options.dtype}: {first(overflown)}")
    if options.quantize:
        quantize(model, bits, group_size, card.warn)
        card.stored = f"{bits} bits in groups of {group_size}"
    if isinstance(plan.args, LayerArgs):
        card.stored += ", state transitions float32"
    if reference and (options.dtype or options.quantize):  # shown, and no reason to fail
        tokens = random_tokens(plan.args.vocab_size, 64)
        both = logits(model, tokens), reference.logits(tokens)
        card.prove(compare("as written, length 64", *both))
    with staged(options.out) as directory:
        save(model, tokenizer, directory)
        (directory / "README.md").write_text(str(card), encoding="utf-8")
    print(f"wrote {options.out}")
    return True


def prepare(options: Namespace) -> tuple[Plan, Any, Card]:
    """Check and print all that a conversion needs; return the plan, the tokenizer and the card."""
    checkpoint = find(options.source, options.ema)
    check_target(options.out, checkpoint.files, options.force)
    settings, file = read_settings(options.settings, checkpoint.files[0], options.set)
    named = settings.pop("tokenizer", None)
    if named is not None and not isinstance(named, str):
        raise InputError(f"setting tokenizer: expected a name, got {named!r}")
    plan = make_plan(checkpoint, options.kind, settings)
    size = plan.args.vocab_size
    tokenizer, origin = load_tokenizer(options.tokenizer or named, checkpoint.directory, size)
    stored = options.dtype or ", ".join(sorted(set(checkpoint.dtypes.values())))
    notes = checkpoint.notes + ([f"settings from {file.name}"] if file else [])
    card = Card(options.out.name, options.source, plan, origin, stored, notes)
    print(card.summary())
    if len(tokenizer) < size:
        card.warn(f"the tokenizer has {len(tokenizer)} entries, the model {size}: is it the one?")
    return plan, tokenizer, card
