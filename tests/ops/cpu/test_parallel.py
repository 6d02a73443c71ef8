"""Threads of the C++ extension: their number, and exceptions in them."""

import subprocess
from pathlib import Path

import pytest
from harness.toolchain import absence, compile_cpp

import mlx_gateloop.ops.cpu

pytestmark = pytest.mark.skipif(absence() is not None, reason=str(absence()))
SOURCES = Path(mlx_gateloop.ops.cpu.__file__).parent / "src"


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    built = tmp_path_factory.mktemp("split") / "split"
    files = [str(Path(__file__).with_name("split.cpp")), str(SOURCES / "processors.cpp")]
    compile_cpp(["-std=c++20", "-pthread", f"-I{SOURCES}", "-o", str(built), *files])
    return built


def run(*command):
    words = [*map(str, command)]
    return subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)


def test_a_part_that_throws_ends_no_process_and_processors_are_counted_once(program):
    child = run(program)
    assert (child.returncode, child.stdout) == (0, "")


@pytest.mark.parametrize(("groups", "count"), [
    (None, 3), ({}, 3), ({"a/b/cpu.max": ""}, 3), ({"a/b/cpu.max": "0 0\n"}, 3),
    ({"a/b/cpu.max": "150000 100000\n"}, 2), ({"a/b/cpu.max": "1000 100000\n"}, 1),
    ({"a/b/cpu.max": "900000 100000\n"}, 3), ({"cpu.max": "200000 100000\n"}, 2),
    ({"a/cpu.max": "200000 100000\n", "a/b/cpu.max": "max 100000\n"}, 2),
])  # fmt: skip
def test_a_quota_bounds_the_processors(program, tmp_path, groups, count):
    membership = tmp_path / "cgroup"
    if groups is not None:
        membership.write_text("9:cpu:/other\n0::/a/b\n")
    for name, text in (groups or {}).items():
        file = tmp_path / "mount" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    assert run(program, membership, tmp_path / "mount").stdout == f"{count}\n"
