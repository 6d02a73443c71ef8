"""Commands that are killed and go on; `make faults` kills each of them 54 times."""

import json
import os
import random
import shutil
import signal
import time
from pathlib import Path

import pytest
from helpers.cases import first
from helpers.models import save_tiny_model
from helpers.nursery import Nursery
from helpers.parity import paper_state
from helpers.training import TEXT, TINY_EXPERIMENT, tiny_run
from safetensors import safe_open
from safetensors.numpy import save_file

from mlx_gateloop.train.checkpoint import previous, read_header

OUT = "OUT"
NOT_COMPARED = {"tokens_per_second", "memory_gb", "seconds", "made"}


@pytest.fixture(scope="module")
def nursery():
    nursery = Nursery(Path(__file__).with_name("nursery.py"))
    yield nursery
    nursery.close()


class Kills:
    """Kills of one command, at operations on files and at moments drawn at random.

    OUT stands for its output; the word `resume` is added where an earlier process left files of the
    pattern `mark`. An `old` output stays until the new one takes its place. Asserts that every file
    is whole or marked as unfinished, no saved step is lost, and a run that ended is the undisturbed
    one and left no unfinished file.
    """

    def __init__(self, nursery, folder, words, resume, mark, old=None):
        self._nursery, self._folder, self._words = nursery, folder, words
        self._resume, self._mark, self._old = resume, mark, old
        self._random, self._said = random.Random(0), folder / "said"
        self._straight = folder / "straight" / "out"
        self.kills = self.writing = 0

    def run(self, kills):
        """Run the command until it was killed so often; count the half-written files."""
        self._straight.parent.mkdir()
        began = time.monotonic()
        assert self._start(self._straight) == 0, self._said.read_text()
        self._seconds = time.monotonic() - began
        *_, self._operations, self._writes = map(int, self._said.read_text().split()[-2:])
        while self.kills < kills:
            out = self._folder / f"run{self.kills}" / "out"
            out.parent.mkdir()
            if self._old:
                shutil.copytree(self._old, out)
            saved: dict[Path, int] = {}
            while (code := self._start(out, **self._moment(kills))) == -signal.SIGKILL:
                self.kills += 1
                self.writing += bool(unfinished(out.parent))
                self._check(out, saved)
            assert code == 0, self._said.read_text()
            assert is_same(self._straight, out)
            assert unfinished(out.parent) == []
        return self.writing

    def _start(self, out, **moment):
        words = [out if word == OUT else word for word in self._words]
        resume = [self._resume] if any(out.glob(self._mark)) else []
        argv, said, watched = [*map(str, [*words, *resume])], str(self._said), str(out.parent)
        return self._nursery.ask(argv=argv, said=said, watched=watched, **moment)

    def _moment(self, kills):
        """A moment in the first half of the command: inside a write, before one, or any."""
        if self.kills >= kills:
            return {}
        if (kind := self.kills % 3) == 2:
            return {"kill_after": self._random.uniform(0, self._seconds / 2)}
        most = (self._writes if kind == 0 else self._operations) // 2
        return {("stop_in", "stop_at")[kind]: self._random.randint(1, max(1, most))}

    def _check(self, out, saved):
        """Check the files of a killed process; `saved` has the steps of all checkpoints."""
        if self._old:
            # A kill between two renames leaves the old output where the next run finds it.
            place = out if out.exists() else next(out.parent.glob(f".making-{out.name}-*/before"))
            assert is_same(place, self._old) or is_same(place, self._straight)
        else:
            for path in out.rglob("*"):
                if path.is_file() and not any(name.startswith(".") for name in path.parts):
                    assert content(path, is_whole=False) != b"", path
                    if path.parent.name == "checkpoints":
                        read_header(path)
        for line in self._said.read_text(errors="replace").splitlines():
            if line.startswith("saved "):
                _, path, step = line.split()
                saved[Path(path)] = int(step)
        for path, step in saved.items():
            places = [place for place in (path, previous(path)) if place.exists()]
            assert max(read_header(place)[0].step for place in places) >= step


def unfinished(folder):
    """The files and folders that a command writes before they get their names."""
    return [path for path in folder.rglob("*") if path.name.startswith(".")]


def is_same(one, other):
    """True if two directories hold the same bits but for times, dates and pictures."""
    names = {path.relative_to(one) for path in one.rglob("*") if path.is_file()}
    if names != {path.relative_to(other) for path in other.rglob("*") if path.is_file()}:
        return False
    skipped = (".png", ".md", ".html")
    compared = [n for n in names if n.suffix not in skipped and n.name != "results.json"]
    return all(content(one / name) == content(other / name) for name in compared)


def content(path, is_whole=True):
    """Read a file; its format fails if it is damaged. The last line of a log may be half a one."""
    if path.suffix == ".safetensors":
        with safe_open(path, "numpy") as file:
            return {name: file.get_tensor(name).tobytes() for name in file.keys()}  # noqa: SIM118
    if path.suffix in (".json", ".jsonl"):
        text = path.read_text()
        lines = text.splitlines()[: None if is_whole else -1] if path.suffix == ".jsonl" else [text]
        read = [json.loads(line).items() for line in lines]
        return [{key: value for key, value in items if key not in NOT_COMPARED} for items in read]
    return path.read_bytes()


def training(nursery, folder, kills):
    (folder / "run.yaml").write_text(json.dumps(tiny_run().to_dict()))
    (folder / "text.txt").write_text(TEXT[:6000])
    words = ["train", "--config", folder / "run.yaml", "--data", folder / "text.txt", "--out", OUT]
    return Kills(nursery, folder, words, "--resume", "checkpoints/[!.]*").run(kills)


def experiment(nursery, folder, kills):
    settings = [w for key, value in TINY_EXPERIMENT.items() for w in ("--set", f"{key}={value}")]
    words = ["experiment", "memory-horizon", "--preset", "running_sum", "--seeds", 1]
    words += [*settings, "--out", OUT]
    return Kills(nursery, folder, words, "--resume", "experiment.json").run(kills)


def conversion(nursery, folder, kills):
    """A conversion to where a model already is."""
    save_file(paper_state(262), folder / "weights.safetensors")  # as `bytes` has
    words = ["convert", folder / "weights.safetensors", OUT, "--tokenizer", "bytes"]
    old = save_tiny_model(folder / "old")
    return Kills(nursery, folder, words, "--force", "config.json", old).run(kills)


RUNS = [(training, 2), (conversion, 2), (experiment, 6)]


@pytest.mark.parametrize(("command", "kills"), first(2, RUNS))
def test_a_killed_command_loses_nothing(nursery, tmp_path, command, kills):
    kills = int(os.environ.get("KILLS", kills))
    assert command(nursery, tmp_path, kills) > 0, "the first kill leaves half a file"
