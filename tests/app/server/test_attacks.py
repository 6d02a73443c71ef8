"""The attacks of benchmarks/attack.py on a running app, in their short form."""

import pytest
from helpers.scripts import load_script


@pytest.mark.slow
@pytest.mark.parametrize("locked", [False, True])
def test_nobody_is_refused_while_others_attack(tmp_path, locked, monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")  # the app asks nobody, itself neither
    attack = load_script("benchmarks/attack.py")
    assert attack.attack_app(tmp_path, 0.1, locked, max_ms=float("inf")) == []
