"""Evaluation of a model on a text: perplexity and bits per byte."""

import math
from dataclasses import dataclass
from itertools import islice

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx.utils import tree_flatten

from mlx_gateloop.data import Stream, in_order
from mlx_gateloop.data.packing import DocumentBatches
from mlx_gateloop.distributed.world import ALONE, World
from mlx_gateloop.errors import InputError
from mlx_gateloop.io.files import checksum
from mlx_gateloop.model.layers import evaluating
from mlx_gateloop.model.lm import require_readable
from mlx_gateloop.ops.pointwise import summed_cross_entropy


@dataclass(frozen=True)
class Evaluation:
    """The score of a model on a text."""

    loss_nats: float  # mean negative log-likelihood, nats per predicted token
    perplexity: float  # exp(loss_nats); it depends on the tokenizer
    bits_per_byte: float  # total nats / ln 2 / bytes of the text; comparable between tokenizers
    tokens: int  # predicted ones

    @property
    def others(self) -> dict[str, float]:
        return {"perplexity": self.perplexity, "bits_per_byte": self.bits_per_byte}


def evaluate(
    model: nn.Module,
    stream: Stream,
    num_bytes: int,
    length: int,
    batch_size: int,
    stride: int | None = None,
    carry: bool = False,
    world: World = ALONE,
    pieces: DocumentBatches | None = None,
) -> Evaluation:
    """Score every token of a stream but the first, once, or those that are asked.

    The protocol decides the context of a prediction, which begins at a document's start:

    windows  side by side, each from an empty state (the default): 1 to `length` tokens
    sliding  overlapping windows, each from an empty state: at least `length` - `stride` + 1 tokens
    carried  one after another, each from the final state of the one before: all tokens before

    Args:
        model: Tokens `[B, L]` to logits `[B, L, V]`; dropout is off meanwhile.
        stream: The tokens.
        num_bytes: UTF-8 bytes of the text of the tokens.
        length: Tokens per window; cut to the length of the stream.
        batch_size: Windows per batch; 1 in the carried protocol.
        stride: For the sliding protocol: tokens that a window scores, 1 to `length`.
        carry: Use the carried protocol, without `stride`; `model` must take a cache.
        world: The ranks; in the carried protocol one alone.
        pieces: The pieces of the stream's documents, in place of windows.

    Returns:
        The mean loss, and how many tokens it is over.

    Raises:
        InputError: Nothing to predict, a token beyond the embedding, or ranks that carry a text.
    """
    if (count := len(stream.tokens) - 1) < 1:
        raise InputError("the text to evaluate has fewer than two tokens; give a longer one")
    if carry and world.size > 1:
        raise InputError("the carried protocol reads a text in order; evaluate it on one rank")
    require_readable(model, int(stream.tokens.max()))
    length = min(length, count)
    stride = None if stride is None else min(stride, length)
    state = model.make_cache() if carry else None
    nats, asked = 0.0, 0
    batches = in_order(stream, 1 if carry else batch_size, length, stride)
    batches = batches if pieces is None else pieces.in_order()
    readers = world.size if world.sequence == 1 else 1  # sharing ranks must read the same batches
    part = slice(None), world.part_of_sequence(length)
    for batch in islice(batches, world.rank % readers, None, readers):
        inputs, targets, *starts = (mx.array(each[part]) for each in batch)
        with evaluating(model):
            logits = model(inputs, *([state, *starts] if carry or starts else []))
        with world.computing():
            nats += float(summed_cross_entropy(logits, targets))
        asked += int((targets >= 0).sum())
    nats, asked = (
        sum(world.gather(x, "evaluation")[: readers * world.sequence]) for x in (nats, asked)
    )
    if not asked or not num_bytes:
        raise InputError("the text to evaluate has no answer to score; give a longer one")
    loss = nats / asked
    perplexity = math.exp(loss) if loss < 700 else math.inf
    return Evaluation(loss, perplexity, nats / math.log(2) / num_bytes, asked)


def require_same(world: World, model: nn.Module, tokens: np.ndarray) -> None:
    if world.size == 1:
        return
    leaves: dict[str, mx.array] = dict(tree_flatten(model.parameters()))
    weights = checksum((n, np.asarray(x.reshape(-1).view(mx.uint8))) for n, x in leaves.items())
    world.assert_equal({"weights": weights, "text": checksum([("tokens", np.asarray(tokens))])})
