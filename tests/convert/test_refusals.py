"""Broken and hostile input of the command: one line each, and nothing is written."""

import json

import pytest
from helpers.checkpoints import contents, refused, run, torch


def save_and_refuse(capsys, state, source, out, *flags):
    torch.save(state, source)
    before = contents(out) if out.exists() else None
    message = refused(capsys, source, out, "--tokenizer", "bytes", *flags)
    assert (contents(out) if out.exists() else None) == before
    assert not [p for p in out.parent.iterdir() if p.name.startswith(".")]
    return message


def test_missing_and_surplus_keys_are_named(state, source, out, capsys):
    named = ["--from", "lucidrains"]
    lost = "layers.1.0.fn.to_out.weight"
    fewer = {name: tensor for name, tensor in state.items() if name != lost}
    assert f"1 missing: {lost}" in save_and_refuse(capsys, fewer, source, out, *named)
    extra = {f"extra.{i:02}": torch.ones(1) for i in range(25)}
    message = save_and_refuse(capsys, state | extra, source, out, *named)
    assert "25 surplus: extra.00, extra.01" in message
    assert message.endswith("extra.09 and 15 more")


def test_shapes_that_do_not_fit_are_both_named(state, source, out, capsys):
    state["layers.1.0.fn.to_out.weight"] = torch.ones(32, 31)
    message = save_and_refuse(capsys, state, source, out)
    expected = "layers.1.0.fn.to_out.weight: expected the shape (32, 32), got (32, 31)"
    assert expected in message


@pytest.mark.parametrize("dtype", ["int64", "float64", "float8_e4m3fn"])
def test_other_dtypes_are_named(state, source, out, capsys, dtype):
    name = "layers.0.0.fn.to_qkv.weight"
    state[name] = state[name].to(getattr(torch, dtype))
    message = save_and_refuse(capsys, state, source, out)
    assert f"{name} ({dtype})" in message
    assert "float32, float16, bfloat16" in message


def test_nan_is_converted_with_a_warning(state, source, out, capsys):
    state["layers.0.1.fn.0.weight"][0, 0] = float("nan")
    state["token_emb.weight"][3, 3] = float("inf")
    torch.save(state, source)
    assert run(source, out, "--tokenizer", "bytes") == 0
    warning = capsys.readouterr().err
    assert "NaN or infinity in 2 tensors" in warning
    assert "layers.0.1.fn.0.weight" in warning
    assert "token_emb.weight" in warning
    assert "NaN or infinity" in (out / "README.md").read_text()
    # and never passes for equal
    assert run(source, out, "--tokenizer", "bytes", "--force", "--verify") == 1


def test_values_too_large_for_a_dtype_are_named(state, source, out, capsys):
    state["token_emb.weight"][3, 3] = 1e30
    torch.save(state, source)
    assert run(source, out, "--tokenizer", "bytes", "--dtype", "float16") == 0
    warning = capsys.readouterr().err
    assert "values became infinite in float16: model.embed_tokens.weight\n" in warning


def test_a_tokenizer_must_be_given_and_fit(state, source, out, capsys, tmp_path):
    assert "--tokenizer" in refused(capsys, source, out)
    missing = refused(capsys, source, out, "--tokenizer", "none.model")
    assert "none.model: no such file" in missing
    (tmp_path / "tokenizer.json").write_text("{}")
    assert "tokenizer.json" in refused(
        capsys, source, out, "--tokenizer", tmp_path / "tokenizer.json"
    )

    with_gap = '{"model": {"type": "WordLevel", "unk_token": "a", "vocab": {"a": 0, "b": 262}}}'
    (tmp_path / "tokenizer.json").write_text(with_gap)
    message = refused(capsys, source, out, "--tokenizer", tmp_path / "tokenizer.json")
    assert "has ids up to 262, the model 262 entries" in message
    assert not out.exists()


def test_a_wrong_command_line_is_one_line(source, out, capsys):
    for words in (["--q-bits", "7"], ["--dtype", "int8"], ["--from", "gpt2"], ["--frob"]):
        with pytest.raises(SystemExit) as exit_:
            run(source, out, *words)
        assert exit_.value.code == 2
        assert len(capsys.readouterr().err.splitlines()) == 1
    with pytest.raises(SystemExit) as exit_:
        run("--help")
    assert exit_.value.code == 0
    assert "gateloop convert weights.pt models/mine" in capsys.readouterr().out


def test_a_tokenizer_that_brings_code_is_refused(source, out, capsys, monkeypatch):
    (source.parent / "tokenizer.json").write_text("{}")
    auto = {"auto_map": {"AutoTokenizer": ["tok.Tokenizer", None]}, "tokenizer_class": "Tokenizer"}
    (source.parent / "tokenizer_config.json").write_text(json.dumps(auto))
    marker = source.parent / "ran"
    code = f"open({str(marker)!r}, 'w')\nclass Tokenizer: pass\n"
    (source.parent / "tok.py").write_text(code)
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    assert "--tokenizer" in refused(capsys, source, out)
    assert not marker.exists()


def test_one_part_of_a_model_is_refused(source, tmp_path, capsys):
    part = source.rename(source.with_name("model-00001-of-00002.pt"))
    for given in (part, part.parent):
        message = refused(capsys, given, tmp_path / "out", "--tokenizer", "bytes")
        assert "one of several parts; give their index" in message


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["--q-bits", "4"], "need -q"),
        (["--q-group-size", "32"], "need -q"),
        (["--tolerance", "nan"], "--tolerance"),
        (["--tolerance", "-1"], "--tolerance"),
        (["--set", "tokenizer=5"], "setting"),
        (["--set", "ablate_complex=[a]"], "setting"),
    ],
)
def test_flags_that_cannot_mean_anything(source, out, capsys, words, what):
    assert what in refused(capsys, source, out, "--tokenizer", "bytes", *words)
    assert not out.exists()


def test_a_model_of_ours_is_no_source(source, out, tmp_path, capsys):
    assert run(source, out, "--tokenizer", "bytes") == 0
    capsys.readouterr()
    assert "already a model directory of ours" in refused(capsys, out, tmp_path / "again")
