"""The files of a run.

OUT/ is a model directory for every mlx_lm command, with the run's own files beside the model:

    config.json, model.safetensors, tokenizer.json, ...   best weights so far, or the initial ones
    config.yaml                                           the resolved training configuration
    checkpoints/last.safetensors                          the complete state at the last checkpoint
    checkpoints/previous.safetensors                      the one before, if the last is damaged
    log.jsonl                                             one record per interval and validation
    curves.png                                            the log, drawn each minute and at the end
    page.html                                             the log as a page, if asked for
"""

import json
import shutil
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from math import isfinite
from pathlib import Path

import yaml
from tqdm import tqdm

from mlx_gateloop.errors import InputError, one_line
from mlx_gateloop.io.files import contents, flush, locked, require_writable, sweep, write_text
from mlx_gateloop.io.models import SAVING
from mlx_gateloop.train.reporters import Reporter


def has_checkpoint(directory: Path) -> bool:
    return any((directory / "checkpoints").glob("[!.]*"))


class Output:
    """The paths of a run's directory, and its log; `held` keeps other runs out.

    Without `held`, nothing is written: a rank beside the first one.
    """

    def __init__(self, directory: Path, resume: bool, held: ExitStack | None) -> None:
        self.reporters: list[Reporter] = []
        self._held = held
        self.directory = directory
        self.checkpoint = directory / "checkpoints" / "last.safetensors"
        self.log = directory / "log.jsonl"
        self.curves = directory / "curves.png"
        self.page: Path | None = None
        self.config = directory / "config.yaml"
        self.starting = directory / ".starting"  # until the first checkpoint is there
        if held is None:
            return
        if directory.exists() and not directory.is_dir():
            raise InputError(f"{directory}: not a directory")
        if not resume:
            self._require_new()
        elif directory.exists():
            held.enter_context(locked(directory))

    def _require_new(self) -> None:
        directory = self.directory
        if directory.exists() and contents(directory) and not self.starting.exists():
            what, more = "other files", ""
            if has_checkpoint(directory):
                what, more = "another run", ", or --resume"
            raise InputError(f"{directory}: already holds {what}; choose a new directory{more}")
        require_writable(directory / "config.yaml")

    @contextmanager
    def start(self, config: dict[str, object]) -> Iterator[None]:
        """Create the directory and what the `with` block saves; if it fails, nothing is left."""
        if self._held is None:
            yield
            return
        self.directory.mkdir(parents=True, exist_ok=True)
        self._held.enter_context(locked(self.directory))
        self._require_new()  # another process may have come first
        try:
            self.starting.touch()
            self.checkpoint.parent.mkdir(exist_ok=True)
            self.save_config(config)
            self.log.write_text("")
            yield
            self._sweep()
            flush(self.directory.parent)
        except BaseException:
            shutil.rmtree(self.directory, ignore_errors=True)
            raise

    def _sweep(self) -> None:
        """Delete the unfinished files of killed processes."""
        self.starting.unlink(missing_ok=True)
        shutil.rmtree(self.directory / SAVING, ignore_errors=True)
        for directory in (self.directory, self.checkpoint.parent):
            sweep(directory)

    def save_config(self, config: dict[str, object]) -> None:
        if self._held is not None:
            write_text(self.config, yaml.safe_dump(config, sort_keys=False))

    def rewind(self, checkpoint: Path, step: int) -> None:
        """Delete what a killed process left after a checkpoint, which becomes the last one."""
        if self._held is None:
            return
        checkpoint.replace(self.checkpoint)  # a damaged one must not become the one before
        self._sweep()
        text = self.log.read_text(errors="replace") if self.log.exists() else ""
        kept = [line for line in text.splitlines() if _is_upto(step, line)]
        write_text(self.log, "".join(f"{line}\n" for line in kept))

    def record(self, **values: object) -> None:
        """Append a record to the log; inf and nan, which JSON lacks, become null."""
        if self._held is None:
            return
        numbers = {k: v for k, v in values.items() if not isinstance(v, float) or isfinite(v)}
        with self.log.open("a") as file:
            file.write(json.dumps(dict.fromkeys(values) | numbers) + "\n")
        for report in [*self.reporters]:
            try:
                report(values)
            except Exception as error:  # the run is complete without it
                self.reporters.remove(report)
                say(f"{one_line(error)}; the run goes on without this report")


def say(line: str) -> None:
    with suppress(OSError):  # training must not end with a reader, as a `tee` that Ctrl-C ends
        tqdm.write(line, file=sys.stderr)


def _is_upto(step: int, line: str) -> bool:
    try:
        return int(json.loads(line)["step"]) <= step
    except (KeyError, TypeError, ValueError):  # the process was killed while it wrote the line
        return False
