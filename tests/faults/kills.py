"""Kills of `gateloop` commands, and what they leave.

python tests/faults/kills.py --kills 60 kills training, an experiment and a conversion that many
times each and prints the figures.
"""

import argparse
import json
import pydoc_data.topics
import random
import shutil
import signal
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

sys.path.append(str(Path(__file__).parent.parent))

from faults.nursery import Commands
from helpers.models import VARIANTS, save_tiny_model
from helpers.training import TINY_EXPERIMENT

from mlx_gateloop.train.checkpoint import previous, read_header

TINY = {
    "model": {"hidden_size": 16, "num_hidden_layers": 2, "intermediate_size": 32, "dropout": 0.1},
    "tokenizer": {"kind": "bytes"},
    "data": {"length": 32, "batch_size": 4},
    "optimizer": {"learning_rate": 1e-2},
    "steps": 12,
    "log_every": 2,
    "eval_every": 6,
    "checkpoint_every": 3,
}
LUCIDRAINS = VARIANTS["lucidrains"] | {"hidden_size": 16, "intermediate_size": 32}
OUT = "OUT"
NOT_COMPARED = {"tokens_per_second", "memory_gb", "seconds", "made"}


@dataclass
class Figures:
    """The result of many kills.

    Args:
        kills: Processes that ended by SIGKILL.
        writing: Those of them that left a half-written file.
        corrupt: Files that were neither whole nor marked as unfinished.
        lost: Steps that had been saved and were not there when the run was resumed.
        runs: Runs that ended, each compared with the undisturbed one.
        different: Those of them with another bit anywhere.
        left: Unfinished files after the end of a run.
    """

    kills: int = 0
    writing: int = 0
    corrupt: int = 0
    lost: int = 0
    runs: int = 0
    different: int = 0
    left: int = 0

    @property
    def is_clean(self) -> bool:
        return not (self.corrupt or self.lost or self.different or self.left)


class Kills:
    """Kills of one command, at operations on files and at moments drawn at random.

    Args:
        commands: Starts the processes.
        folder: A directory for all files.
        words: The command; OUT stands for its output.
        resume: A word that is added where an earlier process left `mark`.
        mark: A pattern of files in the output.
        old: An output that is there before and stays until the new one takes its place.
        seed: Seed of the draws.
    """

    def __init__(
        self,
        commands: Commands,
        folder: Path,
        words: list[Any],
        resume: str,
        mark: str,
        old: Path | None = None,
        seed: int = 0,
    ) -> None:
        self._commands, self._folder, self._words = commands, folder, words
        self._resume, self._mark, self._old = resume, mark, old
        self._random, self._said = random.Random(seed), folder / "said"
        self._straight = folder / "straight" / "out"
        self._attempts = 0
        self.figures = Figures()

    def run(self, kills: int) -> Figures:
        """Run the command again and again until it has been killed so often."""
        self._straight.parent.mkdir()
        began = time.monotonic()
        assert self._start(self._straight) == 0, self._said.read_text()
        self._seconds = time.monotonic() - began
        *_, self._operations, self._writes = map(int, self._said.read_text().split()[-2:])
        while self.figures.kills < kills:
            out = self._folder / f"run{self.figures.runs}" / "out"
            out.parent.mkdir()
            if self._old:
                shutil.copytree(self._old, out)
            self._until_done(out, kills)
            self.figures.runs += 1
            self.figures.different += not same(self._straight, out)
            self.figures.left += len(unfinished(out.parent))
        return self.figures

    def _start(self, out: Path, **moment: Any) -> int:
        words = [out if word == OUT else word for word in self._words]
        resume = [self._resume] if any(out.glob(self._mark)) else []
        return self._commands.run([*words, *resume], self._said, out.parent, **moment)

    def _until_done(self, out: Path, kills: int) -> None:
        saved: dict[Path, int] = {}
        while (code := self._start(out, **self._moment(kills))) == -signal.SIGKILL:
            self._count(out, saved)
        assert code == 0, self._said.read_text()

    def _moment(self, kills: int) -> dict[str, Any]:
        """A moment in the first half of the command: inside a write, before one, or any."""
        if self.figures.kills >= kills:
            return {}
        kind, self._attempts = self._attempts % 3, self._attempts + 1
        if kind == 2:
            return {"kill_after": self._random.uniform(0, self._seconds / 2)}
        most = (self._writes if kind == 0 else self._operations) // 2
        return {("stop_in", "stop_at")[kind]: self._random.randint(1, max(1, most))}

    def _count(self, out: Path, saved: dict[Path, int]) -> None:
        figures = self.figures
        figures.kills += 1
        figures.writing += bool(unfinished(out.parent))
        if self._old:
            # A kill between two renames leaves the old output where the next run finds it.
            place = out if out.exists() else next(out.parent.glob(f".making-{out.name}-*/before"))
            figures.corrupt += not (same(place, self._old) or same(place, self._straight))
        else:
            named = [p for p in out.rglob("*") if not any(n.startswith(".") for n in p.parts)]
            figures.corrupt += sum(path.is_file() and not is_whole(path) for path in named)
        for line in self._said.read_text(errors="replace").splitlines():
            if line.startswith("saved "):
                _, path, step = line.split()
                saved[Path(path)] = int(step)
        for path, step in saved.items():
            places = [place for place in (path, previous(path)) if place.exists()]
            figures.lost += max(0, step - max(read_header(place)[0].step for place in places))


def unfinished(folder: Path) -> list[Path]:
    """The files and folders that a command writes before they get their names."""
    return [path for path in folder.rglob("*") if path.name.startswith(".")]


def is_whole(path: Path) -> bool:
    try:
        if path.suffix == ".safetensors":
            arrays(path)
            if path.parent.name == "checkpoints":
                read_header(path)
        elif path.suffix == ".json":
            json.loads(path.read_text())
        elif path.suffix == ".jsonl":  # the next session deletes a half last line
            for line in path.read_text().splitlines()[:-1]:
                json.loads(line)
        elif path.suffix == ".png":
            return b"IEND" in path.read_bytes()[-12:]
        return path.suffix == ".jsonl" or path.stat().st_size > 0
    except (ValueError, SafetensorError):
        return False


def arrays(path: Path) -> dict[str, bytes]:
    with safe_open(path, "numpy") as file:
        return {name: file.get_tensor(name).tobytes() for name in file.keys()}  # noqa: SIM118


def same(one: Path, other: Path) -> bool:
    """True if two directories hold the same bits but for times, dates and pictures."""
    names = {path.relative_to(one) for path in one.rglob("*") if path.is_file()}
    if names != {path.relative_to(other) for path in other.rglob("*") if path.is_file()}:
        return False
    return all(content(one / name) == content(other / name) for name in names)


def content(path: Path) -> object:
    if path.suffix == ".safetensors":
        return arrays(path)
    if path.suffix == ".jsonl" or (path.suffix == ".json" and path.name != "results.json"):
        lines = path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]
        read = [json.loads(line).items() for line in lines]
        return [{key: value for key, value in items if key not in NOT_COMPARED} for items in read]
    return path.read_bytes() if path.suffix in (".yaml", ".pt") else None


def training(commands: Commands, folder: Path, kills: int, seed: int = 0) -> Figures:
    (folder / "run.yaml").write_text(json.dumps(TINY))
    (folder / "text.txt").write_text("".join(pydoc_data.topics.topics.values())[:6000])
    words = ["train", "--config", folder / "run.yaml", "--data", folder / "text.txt", "--out", OUT]
    return Kills(commands, folder, words, "--resume", "checkpoints/[!.]*", seed=seed).run(kills)


def experiment(commands: Commands, folder: Path, kills: int, seed: int = 0) -> Figures:
    settings = [w for key, value in TINY_EXPERIMENT.items() for w in ("--set", f"{key}={value}")]
    words = ["experiment", "memory-horizon", "--preset", "running_sum", "--seeds", 1]
    words += [*settings, "--out", OUT]
    return Kills(commands, folder, words, "--resume", "experiment.json", seed=seed).run(kills)


def conversion(commands: Commands, folder: Path, kills: int, seed: int = 0) -> Figures:
    """A conversion to where a model already is."""
    for name, number in (("source", 0), ("old", 1)):
        save_tiny_model(folder / name, seed=number, **LUCIDRAINS)
    back = ["convert", folder / "source", folder / "weights.safetensors", "--to", "lucidrains"]
    assert commands.run(back, folder / "said", folder) == 0, (folder / "said").read_text()
    words = ["convert", folder / "weights.safetensors", OUT, "--tokenizer", "bytes"]
    old = folder / "old"
    return Kills(commands, folder, words, "--force", "config.json", old, seed).run(kills)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=60, help="of each command")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    commands = Commands()
    for command in (training, experiment, conversion):
        with tempfile.TemporaryDirectory() as folder:
            figures = command(commands, Path(folder), arguments.kills, arguments.seed)
        print(f"{command.__name__}: {figures}", flush=True)
    commands.close()


if __name__ == "__main__":
    main()
