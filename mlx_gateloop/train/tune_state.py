"""State tuning: one learned initial state a layer, with frozen weights."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import mlx.core as mx
import mlx.nn as nn
import mlx.optimizers as optim
from mlx.utils import tree_map

from mlx_gateloop.data import load_corpus, pack
from mlx_gateloop.data.packing import DocumentBatches
from mlx_gateloop.errors import InputError, one_line
from mlx_gateloop.model.layers import evaluating
from mlx_gateloop.model.lm import require_readable
from mlx_gateloop.model.state import State
from mlx_gateloop.ops.pointwise import summed_cross_entropy
from mlx_gateloop.train.chunks import States, caches_of, zero_states

RATES = (0.03, 0.1, 0.3)  # Adam's, in units of the layer's own states
SCALES = (0.5, 0.75, 1.0, 1.5, 2.0, 3.0)  # factors of the state that was learned
TRIAL = 5  # a rate is tried for a fifth of the steps
MAX_PIECES, VALIDATIONS = 64, 10  # pieces per validation, validations per run


@dataclass(frozen=True)
class TunedState:
    """A learned initial state, and how it was found."""

    state: State
    loss: float  # on validation with the state, nats per target
    loss_before: float  # from the zero state
    rate: float  # Adam's, in units of the layer's own states
    scale: float  # factor of what was learned; 0 if nothing was better than the zero state


def tune_state(
    model: nn.Module,
    tokenizer: Any,
    data: str,
    *,
    length: int = 256,
    batch_size: int = 8,
    steps: int = 300,
    patience: int = 3,
    answers: bool = False,
    seed: int = 0,
    report: Callable[[str], None] = lambda _: None,
) -> TunedState:
    """Learn the initial state of each layer on some text; the weights stay as they are.

    Args:
        model: A recurrent model, ours, of the family or of mlx-lm.
        tokenizer: Its tokenizer.
        data: A source of texts, as for `gateloop train --data`.
        length: Tokens of a piece of text at most; each piece begins with the state.
        batch_size: Pieces per step.
        steps: Adam's steps at most, after a fifth as many with each of three rates.
        patience: Validations without improvement, of 10, before it stops.
        answers: Learn the answers of conversations alone.
        seed: Seed of the order of the pieces.
        report: Called with lines of progress.

    Returns:
        The state and its losses; rate and scale are those of the lowest validation loss.

    Raises:
        InputError: Unusable data or numbers, or a model with attention or without gradients.

    Examples:
        >>> import mlx_gateloop as gl
        >>> model, tokenizer = gl.load("demo")
        >>> gl.tune_state(model, tokenizer, "")
        Traceback (most recent call last):
        mlx_gateloop.errors.InputError: the name of the data is empty; give a path, \
`python-source` or `wikitext-103`
    """
    counts = {"length": length, "batch_size": batch_size, "steps": steps, "patience": patience}
    if wrong := [f"{name}: expected at least 1, got {n}" for name, n in counts.items() if n < 1]:
        raise InputError(wrong[0])
    if not 0 <= seed < 2**32:
        raise InputError(f"seed: expected 0 to {2**32 - 1}, got {seed}")
    tuner = _Tuner(model, tokenizer, data, length, batch_size, answers, seed)
    with evaluating(model):
        before, every = tuner.validate(tuner.zero), max(1, steps // VALIDATIONS)
        if not math.isfinite(before):
            raise InputError("the model's loss on the text is not finite; check its weights")
        report(f"validation loss {before:.4f} from the zero state")
        trials = [(tuner.learn(r, max(1, steps // TRIAL), every, patience)[0], r) for r in RATES]
        rate = min(trials)[1]
        _, states = tuner.learn(rate, steps, every, patience)
        found = [(before, 0.0), *((tuner.validate(scaled(s, states)), s) for s in SCALES)]
        loss, scale = min(found)
    report(f"validation loss {loss:.4f} with rate {rate} and scale {scale}")
    if not scale:
        report("no learned state is better than the zero state; give more text or steps")
    return TunedState(tuner.state_of(scaled(scale, states)), loss, before, rate, scale)


def scaled(factor: float, states: States) -> States:
    return cast(States, tree_map(lambda x: factor * x, states))


class _Tuner:
    """The model with its data, and the units in which states are learned."""

    def __init__(
        self, model: Any, tokenizer: Any, data: str, length: int, size: int, asked: bool, seed: int
    ) -> None:
        from mlx_lm.models.cache import ArraysCache, make_prompt_cache

        self.model = model
        if not all(isinstance(cache, ArraysCache) for cache in make_prompt_cache(model)):
            kind = getattr(model, "model_type", type(model).__name__)
            raise InputError(f"--state-only: {kind} has attention, which has no state; tune LoRA")
        corpus = load_corpus(data)
        streams = [pack(part, tokenizer, asked) for part in (corpus.train, corpus.validation)]
        require_readable(model, max(int(stream.tokens.max(initial=0)) for stream in streams))
        length = min(length, max(len(stream.tokens) for stream in streams))
        self.training, self.validation = (DocumentBatches(s, size, length, seed) for s in streams)
        self.zero = zero_states(model, 1)
        caches = model.make_cache()
        model(mx.array(self.training.batch(0, 0)[0][:1]), caches)
        after = [cache.cache for cache in caches]
        self._units = tree_map(lambda x: mx.sqrt(mx.mean(x.astype(mx.float32) ** 2)) + 1e-6, after)

    def state_of(self, states: States) -> State:
        states = tree_map(lambda x, zero: x.astype(zero.dtype), states, self.zero)
        caches = caches_of(self.model, states)
        mx.eval([cache.cache for cache in caches])
        return State(caches)

    def loss(self, states: States, inputs: mx.array, targets: mx.array) -> mx.array:
        """Sum the loss of some pieces that begin with these states."""
        states = tree_map(lambda x: mx.broadcast_to(x, (len(inputs), *x.shape[1:])), states)
        return summed_cross_entropy(self.model(inputs, caches_of(self.model, states)), targets)

    def validate(self, states: States) -> float:
        """Compute the mean loss on the validation part."""
        nats, count = 0.0, 0
        for batch in self.validation.in_order(MAX_PIECES):
            inputs, targets = map(mx.array, batch)
            nats += float(self.loss(states, inputs, targets))
            count += int((targets >= 0).sum())
        if not count:
            raise InputError("the validation part has nothing to learn; give more data")
        return nats / count

    def learn(self, rate: float, steps: int, every: int, patience: int) -> tuple[float, States]:
        """Take steps from the zero state; return the lowest validation loss and its states."""
        full = partial(tree_map, mx.multiply, self._units)

        @mx.compile
        @mx.value_and_grad
        def mean_loss(states: States, inputs: mx.array, targets: mx.array) -> mx.array:
            return self.loss(full(states), inputs, targets) / mx.maximum((targets >= 0).sum(), 1)

        optimizer = optim.Adam(rate, bias_correction=True)
        states: Any = tree_map(lambda x: x.astype(mx.float32), self.zero)
        best, stale = (float("inf"), states), 0
        for step in range(1, steps + 1):
            batch = self.training.batch(*divmod(step - 1, self.training.per_epoch))
            try:
                _, gradient = mean_loss(states, *map(mx.array, batch))
                mx.eval(gradient)
            except (RuntimeError, ValueError) as error:
                reason = f"this model has no gradient with respect to its state ({one_line(error)})"
                raise InputError(f"--state-only: {reason}; use another one") from error
            states = optimizer.apply_gradients({"states": gradient}, {"states": states})["states"]
            mx.eval(states)
            if step % every == 0 or step == steps:
                loss = self.validate(full(states))
                best, stale = ((loss, full(states)), 0) if loss < best[0] else (best, stale + 1)
            if stale >= patience:
                break
        return best
