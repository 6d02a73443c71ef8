"""The training loop around the compiled step, for text and synthetic tasks."""

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten
from tqdm import tqdm

from mlx_gateloop.data.task import Task
from mlx_gateloop.distributed.world import ALONE, World
from mlx_gateloop.errors import InputError, one_line, printable, shortened
from mlx_gateloop.io.files import flush, sha256
from mlx_gateloop.io.interrupt import Interrupted, interrupt_flag
from mlx_gateloop.plots.figures import training_curves
from mlx_gateloop.train import ranks
from mlx_gateloop.train.checkpoint import Progress, require_same_run, restore, save_checkpoint
from mlx_gateloop.train.config import TrainConfig
from mlx_gateloop.train.minutes import Pace
from mlx_gateloop.train.optimizer import schedules
from mlx_gateloop.train.output import Output, say
from mlx_gateloop.train.reporters import REFRESH, draw_page, reporters
from mlx_gateloop.train.setup import Trainer, large_cache, make_source, num_parameters
from mlx_gateloop.train.step import lowered

MAX_SKIPPED_IN_A_ROW = 20
DRAW_SECONDS = 60  # from picture to picture of the curves; each takes a third of one
# Of float16's loss (Micikevicius et al., arXiv 1710.03740, section 3.2), as torch.amp.GradScaler:
# its scale at the start, and finite steps after which it doubles.
FIRST_SCALE, STEPS_AT_SCALE = 2.0**16, 2000


class Diverged(InputError):
    """A loss or gradient that is not finite."""


@dataclass(frozen=True)
class TrainResult:
    """The result of a run."""

    out: Path  # model directory, with the best weights
    steps: int
    best_loss: float  # lowest validation loss, nats per token
    skipped: int  # steps whose gradient was not finite
    stop_requested: bool  # a signal came in the last step, too late to stop the run


def train(
    config: TrainConfig,
    data: str | Task,
    out: Path | str,
    resume: bool = False,
    world: World = ALONE,
    report_to: Sequence[str] = (),
    with_page: bool = False,
    pace: Pace | None = None,
) -> TrainResult:
    """Train a model on a text or a task and save its best weights in a model directory.

    The same configuration, data and machine give the same weights, interrupted and resumed or not.

    Args:
        config: The run; a resumed one must equal the first.
        data: A source for `data.load_corpus`, or a task, whose model directory has no tokenizer.
        out: The run's directory, see `train.output`; new or empty unless resumed.
        resume: Continue from the last checkpoint in `out`.
        world: The ranks, with the same `data`; the first one alone reads and writes `out`.
        report_to: Names of `reporters.PACKAGES` that get the log, too.
        with_page: Write page.html, which shows the run while it lasts.
        pace: Plans the schedule while the run lasts, see `train.minutes`.

    Returns:
        The run's directory, steps and lowest validation loss.

    Raises:
        InputError: Unusable data, configuration or directory, a full disk, or ranks that differ.
        Interrupted: Ctrl-C; the state is saved.
    """
    with large_cache(), ExitStack() as held:
        try:
            output = Output(Path(out), resume, held if world.is_first else None)
            if world.is_first:
                output.reporters = reporters(report_to, Path(out), config.to_dict())
                output.page = Path(out) / "page.html" if with_page else None
            return Run(config, data, output, resume, world).train(pace)
        except OSError as error:  # checkpoints and models raise InputError
            advice = "give another path, or free space"
            where = error.filename or out
            raise InputError(f"{where}: {error.strerror or error}; {advice}") from error


class Run:
    """One session of a run, from `progress.step` to the end or an interruption."""

    def __init__(
        self, config: TrainConfig, data: str | Task, output: Output, resume: bool, world: World
    ) -> None:
        checkpoint, progress, saved = output.checkpoint, Progress(), None
        if resume:
            checkpoint, progress, saved = ranks.read_first(world, checkpoint)
            config = _planned(config, saved["config"])
        self.config, self.output, self._began = config, output, time.monotonic()
        self._drawn: dict[Path | None, float] = {}
        with ranks.files_of_first(world, output.directory, *ranks.TOKENIZER) as files:
            self.source = make_source(config, data, files if resume else None)
        self.identity = {"config": config.to_dict(), "data": {"sha256": self.source.sha256}}
        if config.weights is not None:
            base = Path(config.weights)
            parts = [base / "config.json", *base.glob("model*.safetensors")]
            self.identity["weights"] = {part.name: sha256(part) for part in parts}
        if saved is not None:
            require_same_run(saved, self.identity, checkpoint)
        world.assert_equal(dict(tree_flatten(self.identity)))

        self.trainer = trainer = Trainer(config, self.source, world)
        self.world, self.model, self.optimizer = trainer.world, trainer.model, trainer.optimizer
        self.progress = progress
        self.is_scaled = trainer.dtype == mx.float16  # the others have float32's range
        if self.is_scaled and saved is None:
            progress.loss_scale = FIRST_SCALE
        if resume and world.is_first:
            restore(checkpoint, self.model, self.optimizer)
        ranks.share_state(world, self.model, self.optimizer)
        if resume:
            output.rewind(checkpoint, progress.step)
            output.save_config(config.to_dict())
            lost = world.is_first and not any(output.directory.glob("*.safetensors"))
            if self.world.any(lost, "lost model"):
                progress.best_loss = float("inf")
                say("the best weights are missing; the last ones take their place")
                self._validate()
        else:
            with output.start(config.to_dict()):
                self._save_model()
                self._save_checkpoint()

    def train(self, pace: Pace | None = None) -> TrainResult:
        progress, config = self.progress, self.config
        if pace is not None:
            self._plan(pace)
            self._save_checkpoint()
        mx.reset_peak_memory()
        size, each = num_parameters(self.model), self.trainer.tokens_per_step
        steps = f"{self.trainer.steps:,} steps of {each:,} tokens"
        say(f"{size:,} parameters; {self.source.summary}; {steps}")
        bar = tqdm(total=self.trainer.steps, initial=progress.step, unit="step", disable=None)
        with interrupt_flag() as stop, bar:
            while not self._finished():
                planned = self._step(bar, pace)
                if self._is_due(config.eval_every):
                    self._validate()
                stopping = self.world.any(stop.is_set(), "signal to stop")
                # After the validation, which a resumed run would not make up for.
                if planned or self._is_due(config.checkpoint_every) or self._finished() or stopping:
                    self._save_checkpoint()
                if stopping and not self._finished():
                    if progress.best_loss == float("inf"):
                        self._save_model()  # a trained one, as there is no best one
                    self._draw(now=True)
                    raise Interrupted(
                        f"interrupted at step {progress.step} of {self.trainer.steps}, saved in "
                        f"{self.output.directory}; continue with --resume"
                    )
        self._draw(now=True)
        done = progress.step, progress.best_loss, progress.skipped
        return TrainResult(self.output.directory, *done, stop_requested=stop.is_set())

    def _step(self, bar: "tqdm[Any]", pace: Pace | None) -> bool:
        """Take a step, plan the next ones and log it where due; return True if it planned."""
        progress = self.progress
        began = time.perf_counter()
        loss, norm = self.trainer.step(progress.step, progress.loss_scale)
        progress.step += 1
        progress.recent_seconds += time.perf_counter() - began
        self._count(loss, norm)
        steps = (progress.step - 1) % self.config.log_every + 1  # since the last log record
        rate = steps * self.trainer.tokens_per_step / progress.recent_seconds
        peak = mx.get_peak_memory() / 2**30
        bar.set_postfix_str(f"loss {loss:.3f}, {rate:,.0f} tokens/s, {peak:.2f} GB", refresh=False)
        bar.update()
        if planned := pace is not None and pace.is_due(progress.step):
            self._plan(pace)
            bar.total = self.trainer.steps
        if self._is_due(self.config.log_every):
            self._log(norm, rate, peak)
        return planned

    def _plan(self, pace: Pace) -> None:
        self.config = config = pace.plan(self.config, self.progress.step)
        self.trainer.steps = config.total_steps(0)
        self.optimizer.schedules = schedules(config.optimizer, self.trainer.steps)
        self.identity["config"] = config.to_dict()
        self.output.save_config(config.to_dict())

    def _finished(self) -> bool:
        patience = self.config.patience
        out_of_patience = patience is not None and self.progress.stale >= patience
        return self.progress.step >= self.trainer.steps or out_of_patience

    def _is_due(self, interval: int) -> bool:
        return self.progress.step % interval == 0 or self.progress.step == self.trainer.steps

    def _count(self, loss: float, norm: float) -> None:
        progress, finite = self.progress, bool(np.isfinite(norm))
        if self.is_scaled:
            progress.steps_at_scale += 1
            if not finite:  # gradients that no scale makes finite do not wear it down to 0
                progress.loss_scale, progress.steps_at_scale = max(1.0, progress.loss_scale / 2), 0
            elif progress.steps_at_scale == STEPS_AT_SCALE:
                progress.loss_scale, progress.steps_at_scale = 2 * progress.loss_scale, 0
        if finite:
            progress.skipped_in_a_row = 0
            if np.isfinite(loss):  # there were targets
                progress.recent.append(loss)
            return
        progress.skipped += 1
        progress.skipped_in_a_row += 1
        scale = f"; the loss scale is now {progress.loss_scale:,.0f}" if self.is_scaled else ""
        say(f"step {progress.step}: skipped, its gradient is not finite{scale}")
        if progress.skipped_in_a_row == MAX_SKIPPED_IN_A_ROW:
            raise Diverged(
                f"{MAX_SKIPPED_IN_A_ROW} steps in a row up to step {progress.step} had a gradient "
                "that is not finite; lower optimizer.learning_rate, or use dtype float32"
            )

    def _log(self, norm: float, rate: float, memory: float) -> None:
        progress = self.progress
        progress.seconds += progress.recent_seconds
        transition, base, *_ = self.optimizer.groups
        self.output.record(
            step=progress.step,
            loss=float(np.mean(progress.recent)) if progress.recent else None,
            learning_rate=float(base.learning_rate),
            state_transition_learning_rate=float(transition.learning_rate),
            gradient_norm=norm,
            skipped=progress.skipped,
            **({"loss_scale": progress.loss_scale} if self.is_scaled else {}),
            tokens_per_second=round(rate),
            memory_gb=round(memory, 3),
            seconds=round(progress.seconds, 2),
        )
        progress.recent, progress.recent_seconds = [], 0.0
        self._draw()

    def _validate(self) -> None:
        """Score the validation data with the weights as they would be saved; save the best."""
        progress = self.progress
        with self._lowered_weights():
            result = self.source.evaluate(self.model, self.world)
            if not np.isfinite(result.loss_nats):
                where = f"the validation loss is not finite at step {progress.step}"
                raise Diverged(f"{where}; lower optimizer.learning_rate, or use dtype float32")
            seen = self.source.glimpse(self.model) if self.world.size == 1 else {}
            best = result.loss_nats < progress.best_loss
        if best:
            self._save_model()
        progress.stale = 0 if best else progress.stale + 1
        progress.best_loss = min(progress.best_loss, result.loss_nats)
        self.output.record(
            step=progress.step, validation_loss=result.loss_nats, **result.others, best=best, **seen
        )
        others = "".join(f", {k.replace('_', ' ')} {v:.3f}" for k, v in result.others.items())
        say(f"step {progress.step}: validation loss {result.loss_nats:.4f}{others}")
        if "sample" in seen:
            say(f"    {printable(shortened(seen['sample']))}")
        self._draw()

    def _save_model(self) -> None:
        if self.world.is_first:
            with self._lowered_weights():
                self.source.save(self.model, self.output.directory)

    def _draw(self, now: bool = False) -> None:
        """Draw the curves every minute and the page as often as it refreshes, or both `now`."""
        output = self.output
        pictures = (training_curves, output.curves, DRAW_SECONDS), (draw_page, output.page, REFRESH)
        for draw, path, seconds in pictures:
            since = time.monotonic() - self._drawn.get(path, self._began)
            if path is None or not self.world.is_first or not (now or since > seconds):
                continue
            try:
                draw(output.log, path)
            except Exception as error:  # the run is complete without it
                say(f"{path}: not drawn: {one_line(error)}")
            self._drawn[path] = time.monotonic()

    @contextmanager
    def _lowered_weights(self) -> Iterator[None]:
        full = self.model.trainable_parameters()
        self.model.update(lowered(self.model, full, self.trainer.dtype))
        try:
            yield
        finally:
            self.model.update(full)

    def _save_checkpoint(self) -> None:
        if self.world.is_first:
            output, state = self.output, (self.model, self.optimizer, self.progress)
            flush(output.log)  # a resumed run continues after these lines
            save_checkpoint(output.checkpoint, *state, self.identity)


def _planned(config: TrainConfig, saved: Any) -> TrainConfig:
    """Take a checkpoint's own plan of --minutes: config.yaml may have the one before or after."""
    knots, given = saved["optimizer"].get("knots"), config.optimizer.knots
    if not knots or (given and given[-1][0] != config.steps):  # its steps are another's
        return config
    return replace(config, steps=saved["steps"], optimizer=replace(config.optimizer, knots=knots))
