"""Checkpoints: one file with all of a run's state, restored exactly, and the one before it."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, cast

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx.utils import tree_flatten, tree_map_with_path
from safetensors import SafetensorError, safe_open

from mlx_gateloop.errors import InputError, one_line, shortened, shown
from mlx_gateloop.io.files import checksum, replacing
from mlx_gateloop.train.fused_update import Optimizer
from mlx_gateloop.train.output import say

FORMAT = "mlx_gateloop training checkpoint 3"


@dataclass
class Progress:
    """Progress of a run; its position in the data and the learning rates follow from `step`."""

    step: int = 0  # optimizer steps done
    best_loss: float = float("inf")  # lowest validation loss so far, nats per token
    stale: int = 0  # validations since then
    skipped: int = 0  # steps left out because their gradient was not finite
    skipped_in_a_row: int = 0  # the latest of those, with no other step between them
    loss_scale: float = 1.0  # factor of the loss in float16's backward pass, see `train.loop`
    steps_at_scale: int = 0  # steps since that was chosen
    recent: list[float] = field(default_factory=list)  # losses since the last log record
    recent_seconds: float = 0.0  # training time since then
    seconds: float = 0.0  # training time up to the last log record, of all sessions together


def save_checkpoint(
    path: Path, model: nn.Module, optimizer: Optimizer, progress: Progress, run: dict[str, object]
) -> None:
    """Write all state atomically; the file before becomes `previous(path)`. `run` identifies it."""
    state = state_of(model, optimizer)
    texts = json.dumps(asdict(progress)), json.dumps(run)
    arrays = ((name, np.asarray(state[name])) for name in sorted(state))
    metadata = {"format": FORMAT, "progress": texts[0], "run": texts[1]}
    metadata["sha256"] = checksum(arrays, *texts)
    try:
        with replacing(path, keep=previous(path)) as partial:
            mx.save_safetensors(str(partial), state, metadata)
    except (OSError, RuntimeError) as error:  # MLX reports a full disk as RuntimeError
        is_kept = path.exists() or previous(path).exists()
        advice = f"free space and {'resume from the one before' if is_kept else 'start again'}"
        raise InputError(f"{path}: checkpoint not saved ({one_line(error)}); {advice}") from error


def previous(path: Path) -> Path:
    """The path of the checkpoint before the one at `path`."""
    return path.with_name("previous.safetensors")


def read_newest(path: Path) -> tuple[Path, Progress, dict[str, object]]:
    """Find the last checkpoint, or the one before if that is damaged; return its header too."""
    try:
        return path, *read_header(path)
    except InputError as error:
        before = previous(path)
        if not before.exists():
            raise
        problem = str(error) if path.exists() else f"{path}: missing"
        try:
            progress, run = read_header(before)
        except InputError as other:
            raise InputError(f"{problem}; {other}; start a new run in another directory") from None
        say(f"{problem}; continuing from {before.name}, step {progress.step}")
        return before, progress, run


def read_header(path: Path) -> tuple[Progress, dict[str, object]]:
    """Read the progress and identity of a checkpoint, after checking that its file is whole."""
    try:
        with safe_open(path, "numpy") as file:
            metadata = file.metadata() or {}
            if metadata.get("format") != FORMAT:
                raise InputError(f"{path}: not a training checkpoint of this program")
            texts, names = (metadata["progress"], metadata["run"]), sorted(file.keys())
            found = checksum(((name, file.get_tensor(name)) for name in names), *texts)
            if found != metadata["sha256"]:
                raise InputError(f"{path}: damaged (wrong checksum)")
        return Progress(**json.loads(texts[0])), json.loads(texts[1])
    except InputError:
        raise
    except FileNotFoundError:
        raise InputError(f"{path}: no checkpoint to resume; start without --resume") from None
    except (SafetensorError, OSError) as error:
        reason = one_line(error)
        raise InputError(f"{path}: truncated or not a safetensors file ({reason})") from None
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise InputError(f"{path}: damaged ({one_line(error)})") from None


def restore(path: Path, model: nn.Module, optimizer: Optimizer) -> None:
    """Load the weights, optimizer state and random state of a file that was checked."""
    loaded = cast(dict[str, mx.array], mx.load(str(path)))
    state = state_of(model, optimizer)
    for key in sorted(state.keys() | loaded.keys()):
        found, expected = (x[key].shape if key in x else None for x in (loaded, state))
        if found != expected:
            shapes = f"{shortened(key)} has shape {shown(found)}, this model's has {expected}"
            raise InputError(f"{path}: checkpoint of another architecture: {shapes}")
    assign_state(loaded, model, optimizer)


def assign_state(state: dict[str, mx.array], model: nn.Module, optimizer: Optimizer) -> None:
    """Put arrays with the names of `state_of` in place."""
    tree = tree_map_with_path(lambda path, _: state[path], _tree(model, optimizer))
    optimizer.carried[:] = tree["carried"]
    model.update(tree["model"])
    optimizer.state = tree["optimizer"]
    high, low = tree["random"][0].tolist()
    mx.random.seed(high << 32 | low)
    mx.eval(model.state, optimizer.state)


def require_same_run(saved: dict[str, Any], now: dict[str, Any], path: Path) -> None:
    """Require that a resumed run has its checkpoint's configuration, data and base weights."""
    before, after = (dict(tree_flatten(identity["config"])) for identity in (saved, now))
    # The ranks may be other ones, and a base whose hashes were compared may have moved.
    for key in ("sequence_parallel", *("weights", "tokenizer.path") * ("weights" in now)):
        before[key] = after.get(key)
    for key in sorted(before.keys() | after.keys()):
        if before.get(key) != after.get(key):
            values = f"it had {before.get(key)}, now it is {after.get(key)}"
            longer = "to train longer, start a new run from its model"
            values += f"; {longer if key in ('steps', 'epochs') else 'give the same options'}"
            raise InputError(f"{path}: the run to resume differs in {key}: {values}")
    for what, given in (("data", "--data"), ("weights", "weights")):  # options change the data too
        if saved.get(what) != now.get(what):
            raise InputError(f"{path}: the run to resume differs in its {what}; give its {given}")


def state_of(model: nn.Module, optimizer: Optimizer) -> dict[str, mx.array]:
    """The weights, optimizer state and random state of a run, by name."""
    return dict(tree_flatten(_tree(model, optimizer)))


def _tree(model: nn.Module, optimizer: Optimizer) -> dict[str, Any]:
    random = [mx.array(key) for key in cast(list[mx.array], mx.random.state)]
    tree = {"model": model.trainable_parameters(), "optimizer": optimizer.state}
    return tree | {"random": random, "carried": optimizer.carried}
