"""The attacks of benchmarks/attack.py on a running app, in their short form."""

import importlib.util
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "benchmarks" / "attack.py"


@pytest.fixture(scope="module")
def attack():
    spec = importlib.util.spec_from_file_location("attack", SCRIPT)
    module = sys.modules["attack"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    del sys.modules["attack"]


@pytest.mark.slow
@pytest.mark.parametrize("locked", [False, True])
def test_nobody_is_refused_while_others_attack(attack, tmp_path, locked, monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")  # the app asks nobody, itself neither
    assert attack.attack_app(tmp_path, 0.1, locked, max_ms=float("inf")) == []
