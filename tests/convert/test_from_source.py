"""The command from end to end: what it writes and what it says."""

import hashlib
import json

import mlx.core as mx
import numpy as np
import pytest
from helpers.checkpoints import FILES, contents, old_model, refused, run, torch, torch_model
from helpers.parity import difference, random_tokens
from mlx_gateloop.convert import plan
from mlx_gateloop.convert.options import read_settings
from tqdm import tqdm

from mlx_gateloop import load
from mlx_gateloop.tokenizer import byte_tokenizer


def error_of(out, model):
    prompt = random_tokens(256, 40)
    with torch.no_grad():
        return difference(load(out)[0](mx.array(prompt)), model(torch.from_numpy(prompt)))


def test_a_checkpoint_becomes_a_model_directory(source, state, out, capsys, monkeypatch):
    monkeypatch.setattr(plan, "tqdm", lambda *all, **how: tqdm(*all, **how | {"disable": False}))
    assert run(source, out, "--tokenizer", "bytes") == 0
    assert {file.name for file in out.iterdir()} == FILES
    assert [p.name for p in out.parent.iterdir() if p.name.startswith(".")] == []
    assert error_of(out, torch_model()) < 2e-5
    said, shown = capsys.readouterr()
    assert "reading: 100%" in shown
    assert "weights.pt: lucidrains" in said
    for word in ("inferred from the weights:", "assumed or set:", "tokenizer: bytes"):
        assert word in said
    card = (out / "README.md").read_text()
    assert f"`{hashlib.sha256(source.read_bytes()).hexdigest()}`" in card
    assert f"| parameters | {sum(tensor.numel() for tensor in state.values()):,} |" in card
    assert "Not verified." in card
    assert str(source.parent) not in card


@pytest.mark.parametrize(("dtype", "how"), [("float16", "cast"), ("bfloat16", "kept")])
def test_dtypes_are_kept_or_cast(tmp_path, state, out, dtype, how):
    if how == "kept":
        state = {name: tensor.to(getattr(torch, dtype)) for name, tensor in state.items()}
    torch.save(state, tmp_path / "w.pt")
    flags = ["--verify"] if how == "kept" else ["--dtype", dtype]  # verified in float32
    assert run(tmp_path / "w.pt", out, "--tokenizer", "bytes", *flags) == 0
    weights = mx.load(str(out / "model.safetensors"))
    gates = {n for n in weights if "gamma" in n or "theta" in n}
    assert {weights[n].dtype for n in gates} == {mx.float32}
    assert {w.dtype for n, w in weights.items() if n not in gates} == {getattr(mx, dtype)}
    found = weights["model.embed_tokens.weight"].astype(mx.float32)
    expected = state["token_emb.weight"].to(getattr(torch, dtype)).float().numpy()
    np.testing.assert_array_equal(np.array(found), expected)
    assert f"| weights | {dtype}" in (out / "README.md").read_text()


def test_quantized_with_float32_gates(tmp_path, out):
    model = torch_model(dim=64)
    torch.save(model.state_dict(), tmp_path / "w.pt")
    flags = ["-q", "--q-bits", "8", "--q-group-size", "32"]
    assert run(tmp_path / "w.pt", out, "--tokenizer", "bytes", "--verify", *flags) == 0
    config = json.loads((out / "config.json").read_text())
    assert config["quantization"] == {"bits": 8, "group_size": 32, "mode": "affine"}
    weights = mx.load(str(out / "model.safetensors"))
    assert any("q_proj.scales" in name for name in weights)
    assert {w.dtype for n, w in weights.items() if "gamma" in n or "theta" in n} == {mx.float32}
    # --verify checks the mapping; a further line reports the loss by quantizing
    card = (out / "README.md").read_text()
    for words in ("within the tolerance", "as written", "8 bits in groups of 32"):
        assert words in card
    assert 1e-5 < error_of(out, model) < 0.1


def test_widths_that_groups_do_not_divide_are_named(tmp_path, out, capsys):
    words = [tmp_path / "w.pt", out, "--tokenizer", "bytes", "-q"]
    torch.save(torch_model(dim=32, ff_mult=4).state_dict(), tmp_path / "w.pt")
    assert run(*words, "--q-group-size", 128) == 0
    said = capsys.readouterr().err
    for part in ("of width 32 are not quantized", "--q-group-size 128", "q_proj"):
        assert part in said
    torch.save(torch_model(dim=48, ff_mult=1).state_dict(), tmp_path / "w.pt")
    message = refused(capsys, *words, "--force")
    assert "nothing can be quantized" in message
    assert "width 48" in message


def test_the_tokenizer_can_be_any(tmp_path, source, out):
    byte_tokenizer().save_pretrained(tmp_path / "tokenizer")
    for name in (tmp_path / "tokenizer", tmp_path / "tokenizer" / "tokenizer.json"):
        assert run(source, out, "--force", "--tokenizer", name) == 0
        assert load(out)[1].encode("aé") == [97, 0xC3, 0xA9]
        assert load(out)[1].eos_token == "</s>"
    # beside the weights, and the configuration of the source's own kind
    (source.parent / "config.json").write_text('{"dim": 32}')
    byte_tokenizer().save_pretrained(source.parent)
    assert run(source, out, "--force") == 0
    assert load(out)[1].eos_token == "</s>"
    # a tokenizer.json alone does not name the end of text
    (source.parent / "config.json").write_text('{"dim": 32, "eos_token_id": [258, 65]}')
    (source.parent / "tokenizer_config.json").unlink()
    assert run(source, out, "--force") == 0
    assert load(out)[1].eos_token == "</s>"


def test_a_model_of_256_bytes_has_a_tokenizer_too(tmp_path, out):
    torch.save(torch_model(num_tokens=256).state_dict(), tmp_path / "w.pt")
    assert run(tmp_path / "w.pt", out, "--tokenizer", "bytes") == 0
    tokenizer, text = load(out)[1], "naïve 🙂\n  \t\x00"
    assert tokenizer.encode(text) == list(text.encode())
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.eos_token_ids == set()
    assert not tokenizer.has_chat_template


def test_settings_come_from_flags_over_a_file_beside_the_weights(source, out, capsys):
    file = source.parent / "weights.yaml"
    for number in ("1e-6", "2.5e3"):  # without a point or a sign, YAML takes it for a word
        file.write_text(f"norm_eps: {number}\n")
        for named, words in ((file, []), (None, [f"norm_eps={number}"])):
            assert read_settings(named, source, words)[0] == {"norm_eps": float(number)}
    file.write_text("tokenizer: bytes\n")
    assert run(source, out, "--set", "ablate_complex=true") == 0
    said = capsys.readouterr().out
    for fact in ("settings from weights.yaml", "ablate_complex=True, set"):
        assert fact in said
        assert fact in (out / "README.md").read_text()

    byte_tokenizer().save_pretrained(source.parent / "tokens")
    file = file.rename(source.parent / "convert.yaml")
    file.write_text("tokenizer: tokens\n")
    assert run(source, out, "--force") == 0
    assert "tokenizer: directory tokens" in capsys.readouterr().out
    for text, problem in (
        (f"tokenizer: {'t' * 5000}", "ttt...: File name too long"),
        ("tokenizer: [", "convert.yaml: not readable YAML"),
        ("- 1", "expected `key: value` lines"),
        ("tokenizer: bytes\nnonsense: 1", "nonsense"),
    ):
        file.write_text(text)
        assert problem in refused(capsys, source, out, "--force")
    assert "--set a: expected KEY=VALUE" in refused(capsys, source, out, "--force", "--set", "a")


def test_verify_fails_and_says_in_which_layer(source, out, capsys, monkeypatch):
    before = old_model(out)
    load_as_is = plan.Plan.load

    def load_wrongly(self):
        model, names = load_as_is(self)
        model.layers[1].time_mixing.v_proj.weight *= 1.5
        return model, names

    monkeypatch.setattr(plan.Plan, "load", load_wrongly)
    words = [source, out, "--tokenizer", "bytes", "--verify", "--force"]
    assert run(*words) == 1
    captured = capsys.readouterr()
    assert "BEYOND the tolerance" in captured.out
    differences = {
        line.split(",")[0]: float(line.split()[4])
        for line in captured.out.splitlines()
        if line.startswith("layer ") and "length" in line
    }
    assert differences["layer 0"] < 2e-5 < differences["layer 1"]
    assert captured.err.splitlines()[-1].startswith("error: the logits differ")
    assert contents(out) == before
    # how much is too much is the user's to say
    assert run(*words, "--tolerance", 10) == 0
    said = capsys.readouterr().out
    for words in ("length 1 ", "length 512 ", "one by one", "within the tolerance of 10"):
        assert words in said
        assert words in (out / "README.md").read_text()
    assert "layer 0" not in said
