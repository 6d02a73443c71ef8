"""The Memory lab: answers and memory of two small models that read digits and resets."""

import base64
import json
import threading
from collections.abc import Sequence
from pathlib import Path

import mlx.core as mx
import numpy as np

from mlx_gateloop.data.memory_horizon import answers
from mlx_gateloop.errors import InputError, shown
from mlx_gateloop.io.models import LOADED, load_model
from mlx_gateloop.model.lm import Model
from mlx_gateloop.watch import Trace, recording

from .files import sha256, verify_checksums

NAMES = ("data-controlled", "fixed")
MODULUS = RESET = 5  # digits are 0 to 4, as in training
MAX_CELLS = 64  # the training length


class Lab:
    """Two models that sum the digits since the last reset; `NAMES` are their directories."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._loaded = threading.local()  # MLX arrays belong to the thread that made them

    def solve(self, cells: Sequence[int]) -> dict[str, object]:
        """Run both models on valid cells, in a thread that may use MLX.

        Return the "right" answers, the "answers" of each model, and its `strengths` as "left".
        """
        inputs = np.array([cells], np.int32)
        right, _ = answers(inputs, RESET, MODULUS, "running_sum")
        read = [_read(model, inputs) for model in self._models()]
        return {
            "right": right[0].tolist(),
            "answers": [answered for answered, _ in read],
            "left": [strengths(trace) for _, trace in read],
        }

    def accuracy(self, spans: Sequence[tuple[int, int]]) -> list[list[float]]:
        """Return each model's accuracy on held-out data, for ranges of spans."""
        results = [json.loads((self._folder / name / "test.json").read_text()) for name in NAMES]
        return [
            [
                sum(t["right_by_span"][a : b + 1]) / sum(t["asked_by_span"][a : b + 1])
                for a, b in spans
            ]
            for t in results
        ]

    def _models(self) -> list[Model]:
        if not hasattr(self._loaded, "models"):
            self._loaded.models = [_loaded(name, self._folder / name) for name in NAMES]
        models: list[Model] = self._loaded.models
        return models


def check_cells(cells: object) -> list[int]:
    """Check the cells that a page sends: a list of 1 to 64 digits and resets."""
    if not isinstance(cells, list) or not 1 <= len(cells) <= MAX_CELLS:
        got = f"{len(cells)}" if isinstance(cells, list) else shown(cells)
        raise InputError(f"cells: expected a list of 1 to {MAX_CELLS}, got {got}")
    for position, cell in enumerate(cells):
        if type(cell) is not int or not 0 <= cell <= RESET:
            expected = f"0 to {MODULUS - 1}, or {RESET} for a reset"
            raise InputError(
                f"cells: expected {expected} at position {position}, got {shown(cell)}"
            )
    return cells


def strengths(trace: Trace) -> str:
    """Encode the retention of each token at every later one in base64, one row per later token.

    A byte is the square root of `Trace.retention`, scaled so that the maximum of a row is 255.
    """
    rows = [np.sqrt(row / row.max()) for row in trace.retentions()]
    return base64.b64encode(np.rint(255 * np.concatenate(rows)).astype(np.uint8)).decode()


def _read(model: Model, inputs: np.ndarray) -> tuple[list[int], Trace]:
    with recording(model, window=MAX_CELLS) as recorder:
        answered = np.array(model(mx.array(inputs))[0].argmax(-1))
    return answered.tolist(), recorder.trace


def _loaded(name: str, directory: Path) -> Model:
    verify_checksums(
        name, directory, {f.name: sha256(f) for kind in LOADED for f in directory.glob(kind)}
    )
    model = load_model(directory)
    mx.eval(model.parameters())
    return model
