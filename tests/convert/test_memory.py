"""Weights come in one shard at a time: what the command needs beside one copy of the model."""

import os
import subprocess
import sys

import pytest
from helpers.checkpoints import save_shards, torch_model

# A small conversion first, so that what imports need counts as there before.
PROGRAM = """
import re, sys
from mlx_gateloop.convert.__main__ import main

def memory(name):  # getrusage would count the process that started this one
    with open("/proc/self/status") as file:
        return int(re.search(name + r":\\s*(\\d+) kB", file.read())[1]) * 1024

for source in ("small", "large"):
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")  # resets the peak
    before = memory("VmRSS")
    out = "-".join(["out", source, *sys.argv[1:]])
    assert main([source, out, "--tokenizer", "bytes", *sys.argv[1:]]) == 0
print(memory("VmHWM") - before)
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
    for flags in ([], ["--dtype", "bfloat16"]):
        command = [sys.executable, "-c", PROGRAM, *flags]
        said = subprocess.check_output(command, cwd=tmp_path, text=True)
        # 16 MiB for the graph, the tokenizer and the allocator
        assert 0.8 * total < int(said.splitlines()[-1]) < total + largest + (16 << 20)
