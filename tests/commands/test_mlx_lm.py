"""`gateloop mlx-lm`: our class is used; tests/mlx_lm_commands tries the commands."""

import subprocess
import sys
from inspect import signature

import pytest
from helpers.commands import fails
from helpers.hostile import edited
from helpers.recurrent import save_recurrent_model
from mlx_lm import utils

from mlx_gateloop import cli
from mlx_gateloop.commands.mlx_lm import _scales_norm, with_our_class
from mlx_gateloop.model.arguments import LayerArgs
from mlx_gateloop.model.layers import Block
from mlx_gateloop.model.lm import Model


@pytest.fixture
def with_code(model):
    """A directory whose config.json names code, which must not run."""
    (model / "evil.py").write_text("1 / 0")
    edited("config.json", model_file="evil.py")(model)
    return model


def test_the_patch_is_necessary(with_code):
    """If this fails, mlx-lm prefers types that it knows: remove `with_our_class`."""
    with pytest.raises((ValueError, ZeroDivisionError)):  # before 0.32 mlx-lm runs the code
        utils.load_model(with_code)


def test_our_class_is_loaded_and_the_files_name_is_kept(with_code):
    patched = with_our_class(utils.load_model, utils.load_config)
    model, config = patched(with_code, lazy=True)
    assert type(model) is Model
    assert config["model_file"] == "evil.py"
    _, config = patched(with_code, model_config={"eos_token_id": 7})
    assert config["eos_token_id"] == 7


def test_other_models_are_loaded_as_mlx_lm_does(with_code):
    edited("config.json", model_type="llama")(with_code)
    has_option = "trust_remote_code" in signature(utils.load_model).parameters  # from 0.32
    trust = {"trust_remote_code": True} if has_option else {}
    with pytest.raises(ZeroDivisionError):
        with_our_class(utils.load_model, utils.load_config)(with_code, **trust)


@pytest.mark.slow
def test_a_rank_of_mlx_launch_runs_the_command(with_code):
    launch = "from mlx._distributed_utils.launch import main; main()"
    command = ["-m", "mlx_gateloop", "mlx-lm", "generate", "--max-tokens", "2", "--model"]
    words = [sys.executable, "-c", launch, "-n", "1", "--", sys.executable, *command]
    done = subprocess.run([*words, str(with_code)], capture_output=True, text=True, timeout=300)
    assert "Generation: " in done.stdout, done.stderr


@pytest.mark.parametrize(("target", "draft"), [("model", "mamba"), ("mamba", "model")])
def test_a_draft_needs_models_that_can_go_back(target, draft, model, capsys):
    save_recurrent_model(model.parent / "mamba", "mamba")
    argv = ["mlx-lm", "generate", "--prompt", "a", f"--model={target}", "--draft-model", draft]
    flag = "--model" if target == "mamba" else "--draft-model"
    line = fails(capsys, *argv)
    assert line.startswith(f"error: {flag}: a state of mamba cannot be rewound")  # as elsewhere


@pytest.mark.parametrize(("words", "message"), [
    ("chat", "chat: no chat template; use gateloop mlx-lm generate"),
    ("generate --max-tokens 0", "generate: Maximum number of tokens must be non-zero"),
    ("generate --prompt-cache-file no.safetensors", "generate: [load_safetensors] Failed to open"),
    ("lora --train --data none", "lora: --data: no such folder; give one, or pip install datasets"),
    ("lora --train --data .", "lora: Training set not found or empty. Must provide training set"),
    ("evaluate --tasks=a", "evaluate: pip install lm_eval, which is missing"),
])  # fmt: skip
def test_wrong_input_is_one_line(words, message, model, capsys, monkeypatch):
    monkeypatch.setattr("builtins.input", lambda *_: "hello")
    for name in ("lm_eval", "datasets"):
        monkeypatch.setitem(sys.modules, name, None)
    assert cli.main(["mlx-lm", *words.split(), "--model", "model"]) == 2
    assert capsys.readouterr().err.splitlines()[-1].startswith(f"error: mlx-lm {message}")


def test_only_norms_that_feed_projections_alone_take_a_scale_over():
    for options in ({}, {"norm_position": "post"}, {"norm": "none"}):
        args = LayerArgs(hidden_size=8, intermediate_size=8, **options)
        assert _scales_norm(Block(args)) is (options == {})
