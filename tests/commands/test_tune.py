"""`gateloop tune` and `gateloop state`."""

import pytest
from helpers.commands import fails
from helpers.models import save_tiny_model

from mlx_gateloop.cli import main


@pytest.fixture
def work(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save_tiny_model(tmp_path / "model")
    (tmp_path / "style.txt").write_text("so calm, so slow.\n" * 40)
    (tmp_path / "short.txt").write_text("a")
    return tmp_path


def tunes(*more, data="style.txt", out="calm.state"):
    options = ["--state-only", "--length", "16", "--steps", "6", *more]
    return ["tune", "--model", "model", "--data", data, "--out", out, *options]


def test_a_state_is_tuned_shown_mixed_and_speaks(work, capsys):
    assert main(tunes()) == 0
    assert "saved calm.state: validation loss" in capsys.readouterr().out
    assert main(["state", "mix", "calm.state", "calm.state", "--out", "both.state"]) == 0
    assert main(["state", "show", "both.state"]) == 0
    assert "root mean square" in capsys.readouterr().out
    texts = []
    for state in ("calm", "both"):
        say = ["--prompt", "so", "--max-tokens", "8", "--temperature", "0"]
        assert main(["generate", "--model", "model", "--state", f"{state}.state", *say]) == 0
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1], "the mean of a state and itself"


def test_adapters_are_learned(work, capsys):
    options = ["--lora", "2", "--length", "16", "--steps", "3", "--batch-size", "2"]
    tune = ["tune", "--model", "model", "--data", "style.txt", "--out", "adapters", *options]
    assert main(tune) == 0
    assert "saved adapters after 3 steps" in capsys.readouterr().out
    assert (work / "adapters" / "adapter_config.json").exists()
    assert main([*tune, "--resume"]) == 0
    capsys.readouterr()
    assert "already holds another run" in fails(capsys, *tune)


def test_bad_input_is_one_line(work, capsys):
    assert "fewer than two tokens" in fails(capsys, *tunes(data="short.txt"))
    assert "a text has none" in fails(capsys, *tunes("--answers"))
    assert "expected at least 1" in fails(capsys, *tunes("--steps", "0"))
    assert "leave them out" in fails(capsys, *tunes("--resume"))
    assert not (work / "calm.state").exists()
    (work / "calm.state").touch()
    assert "exists" in fails(capsys, *tunes())
    save_tiny_model(work / "other", seed=1)
    say = ["generate", "--model", "other", "--prompt", "a", "--state", "calm.state"]
    assert "not a state" in fails(capsys, *say)
