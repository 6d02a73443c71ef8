"""Weights come in one shard at a time: what the command needs beside one copy of the model."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.checkpoints import torch_model

pytest.importorskip("torch", reason="the shards are those of a torch model")
MiB = 1 << 20

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
        file.write("5")  # the peak starts anew
    before = resident()
    source = str(Path(out).with_name(source))
    assert main([source, f"{out}/{Path(source).name}", "--tokenizer", "bytes", *flags]) == 0
print(peak() - before)
"""


def write_shards(directory: Path, state: dict) -> tuple[int, int]:
    """One shard a layer; the bytes of all and of the largest."""
    from safetensors.torch import save_file

    shards: dict[str, dict] = {}
    for name, tensor in state.items():
        parts = name.split(".")
        shards.setdefault(parts[1] if parts[0] == "layers" else "rest", {})[name] = tensor
    directory.mkdir()
    weight_map = {}
    for shard, tensors in shards.items():
        save_file(tensors, directory / f"model-{shard}.safetensors")
        weight_map |= dict.fromkeys(tensors, f"model-{shard}.safetensors")
    index = directory / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": weight_map}))
    sizes = [file.stat().st_size for file in directory.glob("*.safetensors")]
    return sum(sizes), max(sizes)


@pytest.mark.skipif(not os.access("/proc/self/clear_refs", os.W_OK), reason="needs Linux's /proc")
def test_the_peak_is_one_model_and_the_largest_shard(tmp_path):
    write_shards(tmp_path / "small", torch_model().state_dict())
    total, largest = write_shards(
        tmp_path / "large", torch_model(dim=512, depth=10, ff_mult=4).state_dict()
    )
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
        print(f"{total / MiB:.0f} MiB, {largest / MiB:.0f} the largest, used {used / MiB:.0f}")
        # a few MiB for the graph, the tokenizer and the allocator
        assert 0.8 * total < used < total + largest + 16 * MiB
