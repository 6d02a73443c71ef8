"""A reader of files, and what is asserted of it for each changed file."""

import os
import resource
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from mlx_gateloop.errors import InputError

from .mutate import Codec, mutate

ROOM = 128 * 2**20  # bytes that a reader may take beside twice the file: libraries, allocators


@dataclass(frozen=True)
class Target:
    """A reader of files."""

    prepare: Callable[[Path], object]  # fills a folder with good files; may return more of `file`
    file: str  # the one of them that is changed
    codec: Codec | None  # reads and writes what it means; None changes bytes alone
    read: Callable[[Path], object]  # raises InputError where the changed file cannot be used


class Attempts:
    """A target and a folder of its good files, for many changed ones."""

    def __init__(self, target):
        self.target = target
        self.place = tempfile.TemporaryDirectory(prefix="fuzz-")
        self.folder = Path(self.place.name)
        more = self.target.prepare(self.folder)
        self.path = self.folder / self.target.file
        self.seeds = [self.path.read_bytes(), *(more if isinstance(more, list) else [])]
        self._files = self._listed()
        self(self.seeds[0])  # what is imported now is no reader's memory

    def __call__(self, data):
        self.path.write_bytes(data)
        before, here = _memory(), Path.cwd()
        os.chdir(self.folder)  # a pickle that runs code writes here
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                self.target.read(self.path)
        except InputError as error:
            output = str(error)
        else:
            output = "fine"
        finally:
            os.chdir(here)
        assert len(output.splitlines()) == 1, f"not one line: {output[:2000]}"
        assert len(output) < 2000, "an endless line"
        assert _memory() - before < ROOM + 2 * len(data), f"took {_memory() - before:,} bytes"
        assert self._listed() == self._files, "left a file behind"

    def changed(self, chance):
        return mutate(chance.choice(self.seeds), self.target.codec, chance)

    def _listed(self):
        return set(self.folder.rglob("*"))


def _memory():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
