"""Weights come in one shard at a time: what the command needs beside one copy of the model."""

import os
import subprocess
import sys

import pytest
from helpers.checkpoints import save_shards, torch_model

# A small conversion first, so that what imports need counts as there before.
PROGRAM = """
import re, resource, sys
from pathlib import Path
from mlx_gateloop.convert.__main__ import main

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()

def peak():  # getrusage would count the process that started this one
    with open("/proc/self/status") as file:
        return int(re.search("VmHWM: *(.*) kB", file.read().replace("\\t", " "))[1]) * 1024

out, *flags = sys.argv[1:]
for source in ("small", "large"):
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")  # resets the peak
    before = resident()
    source = str(Path(out).with_name(source))
    assert main([source, f"{out}/{Path(source).name}", "--tokenizer", "bytes", *flags]) == 0
print(peak() - before)
"""


@pytest.mark.skipif(not os.access("/proc/self/clear_refs", os.W_OK), reason="needs Linux's /proc")
def test_the_peak_is_one_model_and_the_largest_shard(tmp_path):
    for name, sizes in (("small", {}), ("large", {"dim": 512, "depth": 10, "ff_mult": 4})):
        state = torch_model(**sizes).state_dict()
        (tmp_path / name).mkdir()
        layers = [n.split(".")[1] if n.startswith("layers.") else "rest" for n in state]
        save_shards(tmp_path / name, state, layers)
    shards = [file.stat().st_size for file in (tmp_path / "large").glob("*.safetensors")]
    total, largest = sum(shards), max(shards)
    assert total > 8 * largest
    children = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(tmp_path / name), *flags],
            stdout=subprocess.PIPE,
            text=True,
        )
        for name, flags in (("kept", []), ("cast", ["--dtype", "bfloat16"]))
    ]
    for child in children:
        said = child.communicate()[0]
        assert child.returncode == 0
        used = int(said.splitlines()[-1])
        # 16 MiB for the graph, the tokenizer and the allocator
        assert 0.8 * total < used < total + largest + (16 << 20)
