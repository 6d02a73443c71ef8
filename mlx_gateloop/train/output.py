"""The files of a run.

OUT/ is a model directory for every mlx_lm command, and holds beside it what the run needs:

    config.json, model.safetensors, tokenizer.json, ...   best weights so far (by validation loss),
                                                          in the configured dtype; the initial ones
                                                          until something better is known
    config.yaml                                           the resolved training configuration
    checkpoints/last.safetensors                          the whole state of the last checkpoint
    log.jsonl                                             one record per interval and validation
    curves.png                                            the log, drawn when the run ends
"""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from math import isfinite
from pathlib import Path
from typing import Any

import yaml

from mlx_gateloop.errors import InputError
from mlx_gateloop.train.checkpoint import partial_path


class Output:
    """Paths of a run's directory, and its log.

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
    def start(self, config: dict[str, Any]) -> Iterator[None]:
        """Make the directory, with the resolved configuration and what the `with` body saves.

        All of it is made beside the directory and renamed in the end: whatever stops that, even
        `kill -9`, there is either nothing to resume or all that it takes.
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
        """Drop what a killed session left after its last checkpoint at `step`."""
        partial_path(self.checkpoint).unlink(missing_ok=True)
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        kept = [line for line in lines if _is_upto(step, line)]
        partial = self.log.with_name(".log.partial")
        partial.write_text("".join(f"{line}\n" for line in kept))
        partial.replace(self.log)

    def record(self, **values: Any) -> None:
        """Append one record to the log; numbers that JSON doesn't know (inf, nan) become null."""
        numbers = {k: v for k, v in values.items() if not isinstance(v, float) or isfinite(v)}
        with self.log.open("a") as file:
            file.write(json.dumps(dict.fromkeys(values) | numbers) + "\n")


def _is_upto(step: int, line: str) -> bool:
    try:
        return json.loads(line)["step"] <= step
    except json.JSONDecodeError:  # the end of a line that was being written
        return False
