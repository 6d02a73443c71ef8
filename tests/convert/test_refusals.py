"""Broken and hostile input of the command: one line each, and nothing is written."""

import json

import pytest
from helpers.checkpoints import BYTES, refused, run, torch
from safetensors.torch import save_file

OUT_WEIGHT = "layers.1.0.fn.to_out.weight"
QKV = "layers.0.0.fn.to_qkv.weight"


@pytest.mark.parametrize(("change", "words"), [
    (lambda s: {n: t for n, t in s.items() if n != OUT_WEIGHT}, f"1 missing: {OUT_WEIGHT}"),
    (lambda s: s | {f"extra.{i:02}": torch.ones(1) for i in range(25)},
     f"25 surplus: {', '.join(f'extra.{i:02}' for i in range(10))} and 15 more"),
    (lambda s: s | {OUT_WEIGHT: torch.ones(32, 31)},
     f"{OUT_WEIGHT}: its shape (32, 31) does not make model.layers.1.time_mixing.out_proj.weight"
     " (32, 32); the model is another variant"),
    (lambda s: s | {QKV: s[QKV][:-3]}, "num_heads must be a divisor of mixing_size"),
    (lambda s: s | {QKV: s[QKV].to(torch.int64)}, f"{QKV} (int64)"),
    (lambda s: s | {QKV: s[QKV].double()}, f"{QKV} (float64)"),
    (lambda s: s | {QKV: s[QKV].to(torch.float8_e4m3fn)}, f"{QKV} (float8_e4m3fn)"),
], ids=["missing", "surplus", "shape", "heads", "int64", "float64", "float8"])  # fmt: skip
def test_tensors_that_do_not_fit_are_named(state, source, out, capsys, change, words):
    torch.save(change(state), source)
    line = refused(capsys, source, out, *BYTES, "--from", "lucidrains")
    assert words in line.partition(f"error: {source}: ")[2]
    assert [path.name for path in out.parent.iterdir()] == [source.parent.name]


def test_a_huge_shape_is_refused(state, source, out, capsys):
    file = source.with_suffix(".safetensors")
    save_file(state | {OUT_WEIGHT: torch.ones(0, 2**62)}, file)
    file.write_bytes(file.read_bytes().replace(b"%d" % 2**62, b"%d" % 2**63))
    assert "does not make" in refused(capsys, file, out, *BYTES, "--from", "lucidrains")


def test_nan_is_converted_with_a_warning(state, source, out, capsys):
    state["layers.0.1.fn.0.weight"][0, 0] = float("nan")
    state["token_emb.weight"][3, 3] = float("inf")
    torch.save(state, source)
    assert run(source, out, *BYTES) == 0
    warning = capsys.readouterr().err
    for words in ("NaN or infinity in 2 tensors", "layers.0.1.fn.0.weight", "token_emb.weight"):
        assert words in warning
    assert "NaN or infinity" in (out / "README.md").read_text()
    assert run(source, out, *BYTES, "--force", "--verify") == 1  # it never passes for equal


def test_values_too_large_for_a_dtype_are_named(state, source, out, capsys):
    state["token_emb.weight"][3, 3] = 1e30
    torch.save(state, source)
    assert run(source, out, *BYTES, "--dtype", "float16") == 0
    warning = capsys.readouterr().err
    assert "values became infinite in float16: model.embed_tokens.weight\n" in warning


def test_a_tokenizer_must_be_given_and_fit(source, out, capsys, tmp_path):
    file = tmp_path / "tokenizer.json"
    assert "--tokenizer" in refused(capsys, source, out)
    assert "none.model: no such file" in refused(capsys, source, out, "--tokenizer", "none.model")
    with_gap = '{"model": {"type": "WordLevel", "unk_token": "a", "vocab": {"a": 0, "b": 262}}}'
    cases = {"{}": "tokenizer.json", with_gap: "has ids up to 262, the model has 262 entries"}
    for text, words in cases.items():
        file.write_text(text)
        assert words in refused(capsys, source, out, "--tokenizer", file)
    assert not out.exists()


def test_a_wrong_command_line_is_one_line(source, out, capsys):
    for words in (["--q-bits", "7"], ["--dtype", "int8"], ["--from", "gpt2"], ["--frob"]):
        with pytest.raises(SystemExit, match="2"):
            run(source, out, *words)
        assert len(capsys.readouterr().err.splitlines()) == 1


def test_a_tokenizer_that_brings_code_is_refused(source, out, capsys, monkeypatch):
    (source.parent / "tokenizer.json").write_text("{}")
    auto = {"auto_map": {"AutoTokenizer": ["tok.Tokenizer", None]}, "tokenizer_class": "Tokenizer"}
    (source.parent / "tokenizer_config.json").write_text(json.dumps(auto))
    marker = source.parent / "ran"
    (source.parent / "tok.py").write_text(f"open({str(marker)!r}, 'w')\nclass Tokenizer: pass\n")
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    assert "--tokenizer" in refused(capsys, source, out)
    assert not marker.exists()


def test_one_part_of_a_model_is_refused(source, tmp_path, capsys):
    part = source.rename(source.with_name("model-00001-of-00002.pt"))
    for given in (part, part.parent):
        assert "several parts; give their index" in refused(capsys, given, tmp_path / "out", *BYTES)


@pytest.mark.parametrize(("words", "what"), [
    ("--q-bits 4", "need -q"), ("--q-group-size 32", "need -q"),
    ("--tolerance nan", "--tolerance"), ("--tolerance -1", "--tolerance"),
    ("--set tokenizer=5", "setting"), ("--set ablate_complex=[a]", "setting"),
    ("--set heads=2", "error: lucidrains: unknown setting heads; expected ablate_complex, "),
])  # fmt: skip
def test_flags_that_cannot_mean_anything(source, out, capsys, words, what):
    assert what in refused(capsys, source, out, *BYTES, *words.split())
    assert not out.exists()


def test_a_model_of_ours_is_no_source(source, out, tmp_path, capsys):
    assert run(source, out, *BYTES) == 0
    capsys.readouterr()
    assert f"{out}: already a model directory" in refused(capsys, out, tmp_path / "again")
