"""Training over two machines: network namespaces with a cable between them that can be cut."""

import json
import os
import subprocess
import sys
import time

import pytest

from mlx_gateloop.train.checkpoint import read_header

pytestmark = pytest.mark.slow
SSH = """#!{python}
import os, sys
os.execvp("ip", ["ip", "netns", "exec", sys.argv[-2], "bash", "-c", sys.argv[-1]])
"""


def ip(*words, check=True):
    return subprocess.run(["ip", *words], capture_output=True, check=check).returncode == 0


@pytest.fixture
def desks(tmp_path):
    """A hostfile of two namespaces, their names, and the variables by which ssh reaches them."""
    names = [f"desk{number}-{os.getpid()}" for number in (1, 2)]
    try:
        for name in names:
            if not ip("netns", "add", name, check=False):
                pytest.skip("only root can make network namespaces, and not in every container")
        cable = ["type", "veth", "peer", "name", "cable", "netns", names[1]]
        ip("link", "add", "cable", "netns", names[0], *cable)
        for number, name in enumerate(names, 1):
            ip("-n", name, "address", "add", f"10.83.0.{number}/24", "dev", "cable")
            ip("-n", name, "link", "set", "cable", "up")
        hostfile, script = tmp_path / "desks.json", tmp_path / "bin" / "ssh"
        hosts = [{"ssh": name, "ips": [f"10.83.0.{i}"]} for i, name in enumerate(names, 1)]
        hostfile.write_text(json.dumps(hosts))
        script.parent.mkdir()
        script.write_text(SSH.format(python=sys.executable))
        script.chmod(0o755)
        path = f"{script.parent}{os.pathsep}{os.environ['PATH']}"
        yield hostfile, names, os.environ | {"PATH": path}
    finally:
        for name in names:
            ip("netns", "delete", name, check=False)


def logged(out):
    file = out / "log.jsonl"
    lines = file.read_text().splitlines() if file.exists() else []
    return [record["loss"] for record in map(json.loads, lines) if "loss" in record]


def test_a_cable_with_delay_and_loss_that_is_cut_in_a_step(desks, run, tmp_path):
    hostfile, names, variables = desks
    queue = ["tbf", "rate", "20mbit", "burst", "4kb", "limit", "20kb"]  # delays, and drops
    for name in names:
        words = ["ip", "netns", "exec", name, "tc", "qdisc", "add", "dev", "cable", "root", *queue]
        subprocess.run(words, check=False)
    out = tmp_path / "out"
    train = [*map(str, run), str(out), "--set", "checkpoint_every=5"]
    launch = [sys.executable, "-m", "mlx_gateloop", "launch", "--hostfile", str(hostfile)]
    process = subprocess.Popen(
        [*launch, "--limit", "10", "--", *train, "--steps", "3000"],
        env=variables,
        stderr=subprocess.PIPE,
        text=True,
    )
    while len(logged(out)) < 7:
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.05)
    ip("-n", names[0], "link", "set", "cable", "down")
    said = process.communicate(timeout=300)[1]
    assert process.returncode == 1, said
    for rank, name in enumerate(names):
        assert f"rank {rank} on {name}: no answer of the other ranks in the " in said
    step = read_header(out / "checkpoints" / "last.safetensors")[0].step
    assert step >= 5
    ip("-n", names[0], "link", "set", "cable", "up")
    before = logged(out)
    process = subprocess.Popen(
        [*launch, "--", *train, "--steps", "3000", "--resume"], env=variables, stderr=-3
    )
    while len(logged(out)) < len(before) + 2:
        assert process.poll() is None
        time.sleep(0.05)
    process.terminate()
    assert process.wait(300) == 130
    assert read_header(out / "checkpoints" / "last.safetensors")[0].step > len(before)
