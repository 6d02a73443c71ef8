"""The files of a run.

OUT/ is a model directory for every mlx_lm command, with the run's own files beside the model:

    config.json, model.safetensors, tokenizer.json, ...   best weights so far (by validation loss)
                                                          in the configured dtype; the initial ones
                                                          until the first validation
    config.yaml                                           the resolved training configuration
    checkpoints/last.safetensors                          the complete state at the last checkpoint
    log.jsonl                                             one record per interval and validation
    curves.png                                            the log, drawn when the run ends
"""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from math import isfinite
from pathlib import Path

import yaml

from mlx_gateloop.errors import InputError
from mlx_gateloop.files import replacing


class Output:
    """The paths of a run's directory, and its log.

    Args:
        directory: OUT.
        resume: whether the run continues there.

    Raises:
        InputError: a new run in a directory that holds anything, or no directory to resume.
    """

    def __init__(self, directory: Path, resume: bool) -> None:
        self._use(directory)
        if directory.exists() and not directory.is_dir():
            raise InputError(f"{directory}: not a directory")
        if not resume and directory.exists() and any(directory.iterdir()):
            if self.checkpoint.exists():
                raise InputError(
                    f"{directory}: already holds another run; choose a new directory, or --resume"
                )
            raise InputError(f"{directory}: already holds other files; choose a new directory")

    def _use(self, directory: Path) -> None:
        self.directory = directory
        self.checkpoint = directory / "checkpoints" / "last.safetensors"
        self.log = directory / "log.jsonl"
        self.curves = directory / "curves.png"
        self.config = directory / "config.yaml"

    @contextmanager
    def start(self, config: dict[str, object]) -> Iterator[None]:
        """Create the directory with the resolved configuration and what the `with` block saves.

        Everything is written beside the directory, which is renamed at the end: whatever stops
        that, even `kill -9`, leaves either nothing to resume or a complete run.
        """
        final = self.directory
        staging = final.with_name(f".{final.name}.starting")
        shutil.rmtree(staging, ignore_errors=True)
        self._use(staging)
        try:
            self.checkpoint.parent.mkdir(parents=True)
            self.config.write_text(yaml.safe_dump(config, sort_keys=False), encoding="utf-8")
            self.log.touch()
            yield
            staging.replace(final)
        finally:
            shutil.rmtree(staging, ignore_errors=True)
            self._use(final)

    def rewind(self, step: int) -> None:
        """Delete what a killed process left after its last checkpoint, at `step`."""
        for partial in self.checkpoint.parent.glob(f".{self.checkpoint.stem}-*"):
            partial.unlink()
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        kept = [line for line in lines if _is_upto(step, line)]
        with replacing(self.log) as partial:
            partial.write_text("".join(f"{line}\n" for line in kept))

    def record(self, **values: object) -> None:
        """Append a record to the log; inf and nan, which JSON lacks, become null."""
        numbers = {k: v for k, v in values.items() if not isinstance(v, float) or isfinite(v)}
        with self.log.open("a") as file:
            file.write(json.dumps(dict.fromkeys(values) | numbers) + "\n")


def _is_upto(step: int, line: str) -> bool:
    try:
        return int(json.loads(line)["step"]) <= step
    except json.JSONDecodeError:  # the process was killed while it wrote the line
        return False
