"""Some changed files for every reader, always the same.

`make fuzz` tries others; it keeps the last one that failed in build/fuzz.
"""

import os
import warnings
from pathlib import Path

import pytest
from helpers.memory import most_resident
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mlx_gateloop.app.conversations import file as conversation_file

from fuzz.mutate import mutate
from fuzz.targets import TARGETS
from mlx_gateloop.errors import InputError
from mlx_gateloop.train import checkpoint

EXAMPLES, KEPT = int(os.environ.get("EXAMPLES", "0")), Path("build/fuzz").absolute()
MARGIN = 128 * 2**20  # bytes that a reader may take beside twice the file: libraries, allocators


@pytest.mark.parametrize("name", TARGETS)
def test_a_changed_file_is_read_or_refused_in_one_line(name, tmp_path, monkeypatch):
    target = TARGETS[name]
    for module in (checkpoint, conversation_file):  # checksums do not keep damage out
        monkeypatch.setattr(module, "checksum", lambda *_: "equal")
    more = target.prepare(tmp_path)
    path = tmp_path / target.file
    seeds = [path.read_bytes(), *(more if isinstance(more, list) else [])]
    files = set(tmp_path.rglob("*"))
    monkeypatch.chdir(tmp_path)  # a pickle that runs code writes here

    def attempt(data):
        path.write_bytes(data)
        before, output = most_resident(), "fine"
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                target.read(path)
        except InputError as error:
            output = str(error)
        assert len(output.splitlines()) == 1, f"not one line: {output[:2000]}"
        assert len(output) < 2000, "an endless line"
        taken = most_resident() - before
        assert taken < MARGIN + 2 * len(data), f"took {taken:,} bytes"
        assert set(tmp_path.rglob("*")) == files, "left a file behind"

    limits = {"database": None, "suppress_health_check": list(HealthCheck)}

    @settings(max_examples=EXAMPLES or 8, derandomize=not EXAMPLES, **limits)
    @given(st.randoms(use_true_random=False))
    def check(chance):
        data = mutate(chance.choice(seeds), target.codec, chance)
        if EXAMPLES:  # hypothesis runs the smallest one that fails last
            KEPT.mkdir(parents=True, exist_ok=True)
            (KEPT / name).write_bytes(data)
        attempt(data)

    attempt(seeds[0])  # what is imported now is no reader's memory
    check()
