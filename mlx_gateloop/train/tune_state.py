"""State tuning: one learned initial state a layer, with frozen weights."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import mlx.optimizers as optim
from mlx.utils import tree_map

from mlx_gateloop.data import Stream, load_corpus, pack
from mlx_gateloop.data.packing import DocumentBatches
from mlx_gateloop.errors import InputError, one_line
from mlx_gateloop.model.lm import require_readable
from mlx_gateloop.model.state import State
from mlx_gateloop.ops.pointwise import cross_entropy
from mlx_gateloop.train.chunks import States, zero_states
from mlx_gateloop.train.step import number

RATES = (0.01, 0.03, 0.1)  # Adam's, in units of the layer's own states
SCALES = (0.25, 0.5, 0.75, 1.0, 1.25, 1.5)  # factors of the state that was learned
TRIAL = 5  # a rate is tried for a fifth of the steps
MAX_BATCHES = 32  # of a validation


@dataclass(frozen=True)
class TunedState:
    """A learned initial state and how it was found.

    Args:
        state: The state, for `gl.write_state` and generation.
        loss: Validation loss with it, nats per target.
        loss_before: Validation loss from the zero state.
        rate: The learning rate, in units of the layer's own states.
        scale: The factor of the state, found on validation.
        steps: Steps to the best state.
    """

    state: State
    loss: float
    loss_before: float
    rate: float
    scale: float
    steps: int


def tune_state(
    model: nn.Module,
    tokenizer: Any,
    data: str | Path,
    *,
    length: int = 256,
    batch_size: int = 8,
    steps: int = 300,
    patience: int = 5,
    answers: bool = False,
    seed: int = 0,
    report: Callable[[str], None] = lambda _: None,
) -> TunedState:
    """Learn the initial state of each layer on some text; the weights stay as they are.

    Texts are cut into pieces of `length` tokens, and each piece begins with the state. Rate and
    scale are found on the validation part.

    Args:
        model: A recurrent model, ours, of the family or of mlx-lm.
        tokenizer: Its tokenizer.
        data: A source of texts, as for `gateloop train --data`.
        length: Tokens of a piece at most.
        batch_size: Pieces per step.
        steps: Adam's steps at most.
        patience: Validations without improvement, of 20, before it stops.
        answers: Learn the answers of conversations alone.
        seed: Seed of the order of the pieces.
        report: Called with a line of progress.

    Returns:
        The state and its losses.

    Raises:
        InputError: Unusable data, or a model with attention or without gradients.

    Examples:
        >>> import mlx_gateloop as gl
        >>> model, tokenizer = gl.load("demo")
        >>> gl.tune_state(model, tokenizer, "missing.txt")
        Traceback (most recent call last):
        mlx_gateloop.errors.InputError: missing.txt: no such file or folder; give a path, \
`pydoc`, `python-source` or `wikitext-103`
    """
    tuner = _Tuner(model, tokenizer, str(data), length, batch_size, answers, seed)
    was_training = model.training
    model.eval()
    try:
        before = tuner.validate(tuner.zero)
        report(f"validation loss {before:.4f} from the zero state")
        trials = {
            rate: tuner.learn(rate, max(1, steps // TRIAL), steps, patience) for rate in RATES
        }
        rate = min(trials, key=lambda each: trials[each].loss)
        report(f"rate {rate} is the best of {', '.join(map(str, RATES))}")
        best = tuner.learn(rate, steps, steps, patience)
        losses = {scale: tuner.validate(_scaled(best.states, scale)) for scale in SCALES}
        scale = min(losses, key=lambda each: losses[each])
    finally:
        model.train(was_training)
    report(f"validation loss {losses[scale]:.4f} after {best.steps} steps, scale {scale}")
    state = tuner.state_of(_scaled(best.states, scale))
    return TunedState(state, losses[scale], before, rate, scale, best.steps)


@dataclass(frozen=True)
class _Learned:
    states: States
    loss: float
    steps: int


class _Tuner:
    """The model with its data, and the units in which states are learned."""

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        data: str,
        length: int,
        batch: int,
        answers: bool,
        seed: int,
    ) -> None:
        from mlx_lm.models.cache import ArraysCache, make_prompt_cache

        self.model = model
        if not all(isinstance(cache, ArraysCache) for cache in make_prompt_cache(model)):
            kind = getattr(model, "model_type", type(model).__name__)
            raise InputError(f"--state-only: {kind} has attention, which has no state; tune LoRA")
        corpus = load_corpus(data)
        training, validation = (
            pack(part, tokenizer, answers) for part in (corpus.train, corpus.validation)
        )
        for stream in (training, validation):
            require_readable(model, int(stream.tokens.max(initial=0)))
        self.training = DocumentBatches(training, batch, length, seed)
        self.validation = DocumentBatches(validation, batch, length, seed)
        self.zero = zero_states(model, 1)
        self._units = self._typical(training)

    def _typical(self, stream: Stream) -> States:
        """The root mean square of each state after a piece of text."""
        inputs = mx.array(DocumentBatches(stream, 1, self.training.length, 0).batch(0, 0)[0])
        caches = self.model.make_cache()
        self.model(inputs, caches)
        squares = [[array.astype(mx.float32) ** 2 for array in cache.cache] for cache in caches]
        return [[mx.sqrt(x.mean()) + 1e-6 for x in layer] for layer in squares]

    def state_of(self, states: States) -> State:
        caches = self.model.make_cache()
        for cache, layer, zero in zip(caches, states, self.zero, strict=True):
            cache.cache = [x.astype(z.dtype) for x, z in zip(layer, zero, strict=True)]
        mx.eval([cache.cache for cache in caches])
        return State(list(caches))

    def loss(self, states: States, inputs: mx.array, targets: mx.array) -> mx.array:
        """Sum the loss of some pieces that begin with these states."""
        caches = self.model.make_cache()
        for cache, layer in zip(caches, states, strict=True):
            cache.cache = [mx.broadcast_to(x, (len(inputs), *x.shape[1:])) for x in layer]
        nats = cross_entropy(self.model(inputs, caches), mx.maximum(targets, 0))
        return mx.where(targets >= 0, nats, 0).sum()

    def validate(self, states: States) -> float:
        """Compute the mean loss on the validation part."""
        nats, count = 0.0, 0
        for index in range(min(MAX_BATCHES, self.validation.per_epoch)):
            inputs, targets = map(mx.array, self.validation.batch(0, index))
            nats += number(self.loss(states, inputs, targets))
            count += int((targets >= 0).sum())
        if not count:
            raise InputError("the validation part has nothing to learn; give more text")
        return nats / count

    def learn(self, rate: float, steps: int, total: int, patience: int) -> _Learned:
        """Take steps from the zero state, and keep the best one."""
        optimizer = optim.Adam(rate, bias_correction=True)
        states: Any = tree_map(lambda x: x.astype(mx.float32), self.zero)
        best, stale, every = _Learned(states, float("inf"), 0), 0, max(1, total // 20)
        gradients: Any = mx.compile(mx.value_and_grad(self._loss_in_units))
        for step in range(1, steps + 1):
            epoch, index = divmod(step - 1, self.training.per_epoch)
            inputs, targets = map(mx.array, self.training.batch(epoch, index))
            try:
                _, gradient = gradients(states, inputs, targets)
                mx.eval(gradient)
            except (RuntimeError, ValueError) as error:
                reason = f"this model has no gradient by its state ({one_line(error)})"
                raise InputError(f"--state-only: {reason}; use another one") from error
            states = optimizer.apply_gradients({"states": gradient}, {"states": states})["states"]
            mx.eval(states)
            if step % every and step != steps:
                continue
            now = _Learned(self._in_full(states), self.validate(self._in_full(states)), step)
            best, stale = (now, 0) if now.loss < best.loss else (best, stale + 1)
            if stale >= patience:
                break
        return best

    def _loss_in_units(self, states: States, inputs: mx.array, targets: mx.array) -> mx.array:
        count = mx.maximum((targets >= 0).sum(), 1)
        return self.loss(self._in_full(states), inputs, targets) / count

    def _in_full(self, states: States) -> States:
        full: States = tree_map(lambda x, unit: x * unit, states, self._units)
        return full


def _scaled(states: States, scale: float) -> States:
    scaled: States = tree_map(lambda x: scale * x, states)
    return scaled
