"""The command from end to end: what it writes, what it says, and that a failure changes nothing."""

import json
import subprocess
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from converters.helpers import contents, torch_model
from tqdm import tqdm

import convert.command
import convert.output
from convert.__main__ import main
from convert.checkpoint import find
from convert.settings import read_settings
from mlx_gateloop import Model, ModelArgs, load, save
from mlx_gateloop.tokenizer import byte_tokenizer

torch = pytest.importorskip("torch", reason="PyTorch's files are written with torch")
ROOT = Path(__file__).parent.parent.parent
FILES = {
    "README.md",
    "chat_template.jinja",
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
}
TOKENS = np.random.default_rng(0).integers(0, 256, (2, 40))


@pytest.fixture
def state():
    return torch_model().state_dict()


@pytest.fixture
def source(tmp_path, state):
    (tmp_path / "in").mkdir()
    torch.save(state, tmp_path / "in" / "weights.pt")
    return tmp_path / "in" / "weights.pt"


@pytest.fixture
def out(tmp_path):
    return tmp_path / "out"


def run(*words):
    return main([str(word) for word in words])


def refused(capsys, *words):
    """The one line of an error; nothing is left beside the output."""
    assert run(*words) == 2
    captured = capsys.readouterr()
    lines = captured.err.splitlines()
    assert len(lines) == 1, captured.err
    assert lines[0].startswith("error: ")
    assert "Traceback" not in captured.err
    return lines[0]


def old_model(out):
    """A directory that holds some model, and what is in it."""
    out.mkdir()
    (out / "config.json").write_text('{"model_type": "gateloop"}')
    (out / "model.safetensors").write_bytes(b"precious")
    return contents(out)


def source_logits(model):
    with torch.no_grad():
        return model(torch.from_numpy(TOKENS)).numpy()


def our_logits(directory):
    return np.array(load(directory)[0](mx.array(TOKENS)))


def distance(got, want):
    return np.abs(got - want).max() / np.abs(want).max()


# --- what it writes


def test_a_checkpoint_becomes_a_model_directory(source, out, capsys):
    assert run(source, out, "--tokenizer", "bytes") == 0
    assert {file.name for file in out.iterdir()} == FILES
    assert [p.name for p in out.parent.iterdir() if p.name.startswith(".")] == []
    assert distance(our_logits(out), source_logits(torch_model())) < 2e-5
    said = capsys.readouterr().out
    assert "weights.pt: lucidrains" in said
    for word in ("inferred from the weights:", "assumed or set:", "tokenizer: bytes"):
        assert word in said
    card = (out / "README.md").read_text()
    told = subprocess.run(["sha256sum", source], capture_output=True, text=True, check=True)
    assert f"`{told.stdout.split()[0]}`" in card
    parameters = sum(p.numel() for p in torch_model().parameters())
    assert f"| parameters | {parameters:,} |" in card
    assert "Not verified." in card
    assert str(source.parent) not in card


def test_spaces_and_unicode_in_paths(tmp_path, state):
    directory = tmp_path / "wéights of ☃"
    directory.mkdir()
    torch.save(state, directory / "my weights ☃.pt")
    out = tmp_path / "new ünder" / "a model ☃"
    assert run(directory / "my weights ☃.pt", out, "--tokenizer", "bytes") == 0
    assert distance(our_logits(out), source_logits(torch_model())) < 2e-5


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("how", ["kept", "cast"])
def test_dtypes_are_kept_or_cast(tmp_path, state, out, dtype, how):
    if how == "kept":
        state = {name: tensor.to(getattr(torch, dtype)) for name, tensor in state.items()}
    torch.save(state, tmp_path / "w.pt")
    flags = [] if how == "kept" else ["--dtype", dtype]
    assert run(tmp_path / "w.pt", out, "--tokenizer", "bytes", *flags) == 0
    weights = mx.load(str(out / "model.safetensors"))
    gates = {n for n in weights if "gamma" in n or "theta" in n}
    assert gates
    assert {weights[n].dtype for n in gates} == {mx.float32}
    assert {w.dtype for n, w in weights.items() if n not in gates} == {getattr(mx, dtype)}
    assert f"| weights | {dtype}" in (out / "README.md").read_text()


def test_quantized_with_float32_gates(tmp_path, out, capsys):
    torch.save(torch_model(dim=64).state_dict(), tmp_path / "w.pt")
    flags = ["-q", "--q-bits", "8", "--q-group-size", "32"]
    assert run(tmp_path / "w.pt", out, "--tokenizer", "bytes", "--verify", *flags) == 0
    config = json.loads((out / "config.json").read_text())
    assert config["quantization"] == {"bits": 8, "group_size": 32, "mode": "affine"}
    weights = mx.load(str(out / "model.safetensors"))
    quantized = {n.removesuffix(".scales") for n in weights if n.endswith(".scales")}
    assert any("q_proj" in name for name in quantized)
    assert not any("gamma" in name or "theta" in name for name in quantized)
    assert {w.dtype for n, w in weights.items() if "gamma" in n or "theta" in n} == {mx.float32}
    # the proof is that of the mapping; what quantizing cost is told beside it
    card = (out / "README.md").read_text()
    assert "within the tolerance" in card
    assert "as written" in card
    assert "8 bits in groups of 32" in card
    assert 1e-5 < distance(our_logits(out), source_logits(torch_model(dim=64))) < 0.1


def test_widths_that_groups_do_not_divide_are_named(tmp_path, out, capsys):
    torch.save(torch_model(dim=32, ff_mult=4).state_dict(), tmp_path / "w.pt")
    words = [tmp_path / "w.pt", out, "--tokenizer", "bytes", "-q"]
    assert run(*words, "--q-group-size", 128) == 0
    said = capsys.readouterr().err
    assert "of width 32 are not quantized" in said
    assert "--q-group-size 128" in said
    assert "q_proj" in said

    torch.save(torch_model(dim=48, ff_mult=1).state_dict(), tmp_path / "w.pt")
    message = refused(capsys, *words, "--force")
    assert "nothing can be quantized" in message
    assert "width 48" in message


def test_the_tokenizer_can_be_any(tmp_path, source, out, capsys):
    from mlx_gateloop.tokenizer import byte_tokenizer

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


def test_a_model_of_256_bytes_has_a_tokenizer_too(tmp_path, out):
    torch.save(torch_model(num_tokens=256).state_dict(), tmp_path / "w.pt")
    assert run(tmp_path / "w.pt", out, "--tokenizer", "bytes") == 0
    tokenizer = load(out)[1]
    text = "naïve 🙂\n  \t\x00"
    assert tokenizer.encode(text) == list(text.encode())
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.eos_token_ids == set()
    messages = [{"role": "user", "content": "hi"}]
    assert tokenizer.apply_chat_template(messages, tokenize=False) == "hi\n"


def test_settings_come_from_flags_over_a_file_beside_the_weights(source, out, capsys):
    (source.parent / "weights.yaml").write_text("tokenizer: bytes\n")
    assert run(source, out) == 0
    assert "settings from weights.yaml" in capsys.readouterr().out
    from mlx_gateloop.tokenizer import byte_tokenizer

    byte_tokenizer().save_pretrained(source.parent / "tokens")
    (source.parent / "weights.yaml").write_text("tokenizer: tokens\n")
    assert run(source, out, "--force") == 0
    assert "tokenizer: directory tokens" in capsys.readouterr().out
    (source.parent / "weights.yaml").write_text("tokenizer: [")
    assert "weights.yaml: not readable YAML" in refused(capsys, source, out, "--force")
    (source.parent / "weights.yaml").write_text("- 1")
    assert "expected `key: value` lines" in refused(capsys, source, out, "--force")
    (source.parent / "weights.yaml").write_text("nonsense: 1")
    assert "nonsense" in refused(capsys, source, out, "--force", "--tokenizer", "bytes")
    message = refused(capsys, source, out, "--force", "--set", "a")
    assert "--set a: expected KEY=VALUE" in message


def test_the_progress_bar_counts_bytes(state, source, out, monkeypatch):
    bars = []

    class Bar(tqdm):
        def __init__(self, **options):
            bars.append(self)
            super().__init__(**options | {"disable": False})

    monkeypatch.setattr(convert.command, "tqdm", Bar)
    assert run(source, out, "--tokenizer", "bytes") == 0
    (bar,) = bars
    assert bar.n == bar.total == sum(tensor.nbytes for tensor in state.values())


# --- the proof


def test_verify_reports_and_passes(source, out, capsys):
    assert run(source, out, "--tokenizer", "bytes", "--verify") == 0
    said = capsys.readouterr().out
    for length in (1, 2, 17, 512):
        assert f"length {length} " in said
    assert "one by one" in said
    assert "within the tolerance of 2e-05" in said
    assert "layer 0" not in said
    assert "within the tolerance" in (out / "README.md").read_text()


def test_verify_fails_and_says_in_which_layer(source, out, capsys, monkeypatch):
    before = old_model(out)
    load_as_is = convert.command.load

    def load_wrongly(plan, done):
        model, names = load_as_is(plan, done)
        model.layers[1].time_mixing.v_proj.weight *= 1.5
        return model, names

    monkeypatch.setattr(convert.command, "load", load_wrongly)
    assert run(source, out, "--tokenizer", "bytes", "--verify", "--force") == 1
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
    assert run(source, out, "--tokenizer", "bytes", "--verify", "--force", "--tolerance", 10) == 0


def test_a_directory_with_shards_of_the_papers_model(tmp_path, out):
    from converters.sources.paper_model import PaperModel
    from safetensors.torch import save_file

    torch.manual_seed(0)
    state = PaperModel(262, 32, 64, 2).state_dict()
    directory = tmp_path / "paper"
    directory.mkdir()
    weight_map = {name: f"model-{i % 3}.safetensors" for i, name in enumerate(state)}
    for shard in set(weight_map.values()):
        part = {n: t for n, t in state.items() if weight_map[n] == shard}
        save_file(part, directory / shard)
    index = directory / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": weight_map}))
    (directory / "convert.yaml").write_text("tokenizer: bytes\nnorm_eps: 0.001\n")
    assert run(directory, out, "--verify", "--set", "norm_eps=1.0e-5") == 0
    card = (out / "README.md").read_text()
    assert "(paper)" in card
    assert card.count(".safetensors` | `") == 3
    assert "settings from convert.yaml" in card


def test_flax_parameters_become_a_model_directory(tmp_path, out):
    serialization = pytest.importorskip("flax.serialization", reason="Flax is not installed")
    package = pytest.importorskip("flax_gated_linear_rnn", reason="the source model's library")
    import jax

    sizes = {"n_layer": 2, "d_model": 16, "d_h": 16, "d_channel_mixing": 20, "eps": 1e-5}
    model = package.GatedLinearRNNLM(
        **sizes,
        input_vocab_size=262,
        output_vocab_size=262,
        max_seq_length=64,
        channel_mixing_dropout=0.0,
        time_mixing_dropout=0.0,
        embedding_dropout=0.0,
        use_word_embedding=True,
        positional_encoding_mode="none",
        use_head=True,
    )
    variables = model.init(jax.random.key(0), np.zeros((1, 2), int), False)
    (tmp_path / "flax").mkdir()
    file = tmp_path / "flax" / "flax_model.msgpack"
    file.write_bytes(serialization.to_bytes(variables))
    assert run(tmp_path / "flax", out, "--tokenizer", "bytes", "--verify") == 0
    assert "(flax)" in (out / "README.md").read_text()


def test_a_layer_is_converted_as_a_layer(tmp_path, out, capsys):
    library = pytest.importorskip("gateloop_transformer", reason="the source model's library")
    torch.manual_seed(0)
    torch.save(library.SimpleGateLoopLayer(32).state_dict(), tmp_path / "layer.pt")
    words = [tmp_path / "layer.pt", out]
    assert "is a layer" in refused(capsys, *words, "--tokenizer", "bytes")
    assert "is a layer" in refused(capsys, *words, "-q")
    assert run(*words, "--verify", "--dtype", "bfloat16") == 0
    assert {file.name for file in out.iterdir()} == {
        "README.md",
        "config.json",
        "model.safetensors",
    }
    assert json.loads((out / "config.json").read_text())["hidden_size"] == 32
    assert "within the tolerance" in (out / "README.md").read_text()
    assert run(*words, "--force") == 0


# --- the way back


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("name", ["back.pt", "back.safetensors"])
def test_there_and_back_is_bit_equal(tmp_path, state, out, dtype, name):
    state = {n: tensor.to(getattr(torch, dtype)) for n, tensor in state.items()}
    torch.save(state, tmp_path / "w.pt")
    assert run(tmp_path / "w.pt", out, "--tokenizer", "bytes") == 0
    assert run(out, tmp_path / name, "--to", "lucidrains") == 0
    if name.endswith(".pt"):
        again = torch.load(tmp_path / name, weights_only=True)
    else:
        from safetensors.torch import load_file

        again = load_file(tmp_path / name)
    assert again.keys() == state.keys()
    assert all(again[n].dtype == state[n].dtype for n in state)
    assert all(torch.equal(again[n], state[n]) for n in state)
    torch_model().load_state_dict(again)


@pytest.mark.parametrize(
    "options",
    [
        {"post_ln_norm": True, "sub_ln": True},
        {"attn_add_swish_gating": False, "gate_loop_heads": 4},
        {"dim_gate_looped_attn": 64, "attn_add_swish_gating": False},
    ],
)
def test_variants_come_back_too(tmp_path, out, options):
    state = torch_model(**options).state_dict()
    torch.save(state, tmp_path / "w.pt")
    assert run(tmp_path / "w.pt", out, "--tokenizer", "bytes") == 0
    assert run(out, tmp_path / "back.pt", "--to", "lucidrains") == 0
    again = torch.load(tmp_path / "back.pt", weights_only=True)
    assert again.keys() == state.keys()
    assert all(torch.equal(again[n], state[n]) for n in state)


def test_the_ablation_is_told_on_the_way_back(source, out, tmp_path, capsys):
    assert run(source, out, "--tokenizer", "bytes", "--set", "ablate_complex=true") == 0
    assert run(out, tmp_path / "b.pt", "--to", "lucidrains") == 0
    assert "ablate_complex=True is not in the weights" in capsys.readouterr().out


@pytest.mark.parametrize("options", [{}, {"gate": "real"}, {"tie_word_embeddings": True}])
def test_models_that_lucidrains_cannot_express_are_refused(tmp_path, capsys, options):
    from mlx_gateloop import save
    from mlx_gateloop.lm import Model, ModelArgs
    from mlx_gateloop.tokenizer import byte_tokenizer

    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1}
    model = Model(ModelArgs(vocab_size=262, **sizes | options))
    save(model, byte_tokenizer(), tmp_path / "ours")
    message = refused(capsys, tmp_path / "ours", tmp_path / "b.pt", "--to", "lucidrains")
    assert "--to lucidrains: " in message
    assert not (tmp_path / "b.pt").exists()


def test_the_way_back_refuses_what_it_cannot_do(tmp_path, source, out, capsys):
    torch.save(torch_model(dim=64).state_dict(), tmp_path / "w.pt")
    assert run(tmp_path / "w.pt", out, "--tokenizer", "bytes", "-q") == 0
    capsys.readouterr()
    back = ["--to", "lucidrains"]
    assert "quantized weights cannot go back" in refused(capsys, out, tmp_path / "b.pt", *back)
    assert "give a model directory" in refused(capsys, source, tmp_path / "b.pt", *back)
    assert "expected a file name in .safetensors" in refused(capsys, out, tmp_path / "b", *back)
    assert "without --quantize" in refused(capsys, out, tmp_path / "b.pt", *back, "-q")
    assert run(source, out, "--force", "--tokenizer", "bytes") == 0
    capsys.readouterr()
    (tmp_path / "b.pt").write_text("mine, and no weights")
    assert "no state dict" in refused(capsys, out, tmp_path / "b.pt", *back, "--force")
    assert (tmp_path / "b.pt").read_text() == "mine, and no weights"
    torch.save({"old": torch.ones(2)}, tmp_path / "b.pt")
    before = (tmp_path / "b.pt").read_bytes()
    assert "exists" in refused(capsys, out, tmp_path / "b.pt", *back)
    assert run(out, tmp_path / "b.pt", *back, "--force", "--dry-run") == 0
    assert (tmp_path / "b.pt").read_bytes() == before
    assert run(out, tmp_path / "b.pt", *back, "--force") == 0
    assert (tmp_path / "b.pt").read_bytes()[:2] == b"PK"


# --- broken input


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
    message = save_and_refuse(capsys, fewer, source, out, *named)
    assert f"1 missing: {lost}" in message
    extra = {f"extra.{i:02}": torch.ones(1) for i in range(25)}
    message = save_and_refuse(capsys, state | extra, source, out, *named)
    assert "25 surplus: extra.00, extra.01" in message
    assert "extra.09 and 15 more" in message
    assert "extra.10" not in message


def test_shapes_that_do_not_fit_are_both_named(state, source, out, capsys):
    state["layers.1.0.fn.to_out.weight"] = torch.ones(32, 31)
    message = save_and_refuse(capsys, state, source, out)
    assert "layers.1.0.fn.to_out.weight" in message
    assert "(32, 31)" in message
    assert "(32, 32)" in message


@pytest.mark.parametrize("dtype", ["int64", "float64", "bool", "float8_e4m3fn", "complex64"])
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


def test_what_is_no_gateloop_model_is_said(source, out, capsys):
    message = save_and_refuse(capsys, {"encoder.weight": torch.ones(3, 3)}, source, out)
    assert "--from" in message
    assert "lucidrains" in message


def test_a_tokenizer_must_be_given_and_fit(state, source, out, capsys, tmp_path):
    assert "--tokenizer" in refused(capsys, source, out)
    missing = refused(capsys, source, out, "--tokenizer", "none.model")
    assert "none.model: no such file" in missing
    (tmp_path / "tokenizer.json").write_text("{}")
    assert "tokenizer.json" in refused(
        capsys, source, out, "--tokenizer", tmp_path / "tokenizer.json"
    )
    from mlx_gateloop.tokenizer import byte_tokenizer

    large = byte_tokenizer()
    large.add_tokens(["one more"])
    large.save_pretrained(tmp_path / "large")
    message = refused(capsys, source, out, "--tokenizer", tmp_path / "large")
    assert "has 263 entries, the model 262" in message
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
    assert "python -m convert weights.pt models/mine" in capsys.readouterr().out


# --- the output


def test_an_existing_output_is_kept_unless_forced(source, out, capsys):
    before = old_model(out)
    message = refused(capsys, source, out, "--tokenizer", "bytes")
    assert "exists" in message
    assert "--force" in message
    assert contents(out) == before
    assert run(source, out, "--tokenizer", "bytes", "--force") == 0
    assert {file.name for file in out.iterdir()} == FILES


def test_force_replaces_models_only(tmp_path, source, out, capsys):
    out.mkdir()
    (out / "thesis.tex").write_text("years of work")
    message = refused(capsys, source, out, "--tokenizer", "bytes", "--force")
    assert "holds more than a model of ours, or none" in message
    # nor the directory with the weights in it
    (source.parent / "config.json").write_text("{}")
    flags = ["--tokenizer", "bytes", "--force"]
    assert "holds the source" in refused(capsys, source, source.parent, *flags)
    assert "holds the source" in refused(capsys, source, tmp_path, *flags)
    (tmp_path / "file").write_text("")
    message = refused(capsys, source, tmp_path / "file" / "out", *flags)
    assert "is no directory" in message
    assert source.exists()
    assert (out / "thesis.tex").exists()


@pytest.mark.parametrize("stage", ["write_model", "load", "quantize"])
@pytest.mark.parametrize("failure", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_failure_changes_nothing(source, out, capsys, monkeypatch, stage, failure):
    def fail(*arguments):
        if stage == "write_model":  # half of it is there
            arguments[-1].mkdir(parents=True)
            (arguments[-1] / "config.json").write_text("{}")
        raise failure

    monkeypatch.setattr(convert.command, stage, fail)
    flags = ["--tokenizer", "bytes", "--force", "-q", "--q-group-size", 32]
    code = 2 if isinstance(failure, OSError) else 130
    place = out.parent / "deep" / "er"
    before = {p.name for p in out.parent.iterdir()}
    assert run(source, place, *flags) == code  # where nothing was
    assert {p.name for p in out.parent.iterdir()} == before
    model = old_model(out)
    assert run(source, out, *flags) == code  # where a model was
    assert contents(out) == model
    assert {p.name for p in out.parent.iterdir()} == before | {"out"}
    assert len(capsys.readouterr().err.strip().splitlines()) in (2, 3)


@pytest.mark.parametrize("error", [OSError(1, "Operation not permitted"), KeyboardInterrupt()])
def test_a_rename_that_fails_puts_the_old_model_back(source, out, capsys, monkeypatch, error):
    model = old_model(out)
    rename = Path.rename

    def refuse(path, target):
        if Path(target) == out and path.name == out.name:
            raise error
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", refuse)
    words = (source, out, "--tokenizer", "bytes", "--force")
    if isinstance(error, OSError):
        assert "not permitted" in refused(capsys, *words)
    else:
        assert run(*words) == 130
    assert contents(out) == model


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


def test_a_dry_run_says_all_and_writes_nothing(tmp_path, source, capsys):
    before = contents(tmp_path)
    words = [source, tmp_path / "a" / "b", "--tokenizer", "bytes", "--dry-run", "--push", "me/it"]
    assert run(*words) == 0
    said = capsys.readouterr().out
    assert "inferred from the weights:" in said
    assert "nothing was written" in said
    assert "nothing was pushed to me/it" in said
    assert contents(tmp_path) == before
    assert not (tmp_path / "a").exists()


class Hub:
    """What the Hugging Face hub would get."""

    calls: list

    def whoami(self):
        self.calls.append("whoami")

    def create_repo(self, repository, exist_ok):
        self.calls.append(repository)
        return f"https://hub/{repository}"

    def upload_folder(self, repo_id, folder_path, commit_message):
        self.calls.append({file.name for file in Path(folder_path).iterdir()})


@pytest.fixture
def hub(monkeypatch):
    import huggingface_hub

    monkeypatch.setattr(Hub, "calls", [], raising=False)
    monkeypatch.setattr(huggingface_hub, "HfApi", Hub)
    return Hub


def test_push_uploads_the_directory(source, out, capsys, hub):
    assert run(source, out, "--tokenizer", "bytes", "--push", "me/it") == 0
    assert hub.calls == ["whoami", "me/it", FILES]
    assert "pushed to https://hub/me/it" in capsys.readouterr().out
    assert "--push it: expected USER/NAME" in refused(capsys, source, out, "--push", "it")


def test_a_push_that_fails_leaves_the_output_as_it_was(source, out, capsys, hub, monkeypatch):
    def refuse(*_, **__):
        raise ConnectionError("no route\nto host")

    words = [source, out, "--tokenizer", "bytes", "--push", "me/it", "--force"]
    before = old_model(out)
    monkeypatch.setattr(hub, "upload_folder", refuse)
    assert "--push me/it: no route to host" in refused(capsys, *words)
    assert contents(out) == before
    monkeypatch.setattr(hub, "whoami", refuse)
    hub.calls.clear()
    assert "--push me/it: no route to host" in refused(capsys, *words)
    assert hub.calls == []
    assert contents(out) == before


def test_one_part_of_a_model_is_refused(source, tmp_path, capsys):
    part = source.rename(source.with_name("model-00001-of-00002.pt"))
    for given in (part, part.parent):
        message = refused(capsys, given, tmp_path / "out", "--tokenizer", "bytes")
        assert "one of several parts; give their index" in message


def test_force_replaces_no_file_of_another_kind(source, tmp_path, capsys):
    notes = tmp_path / "notes.txt"
    notes.write_text("precious")
    for force in ([], ["--force"]):
        message = refused(capsys, source, notes, "--tokenizer", "bytes", *force)
        assert "holds more than a model of ours, or none" in message
    assert notes.read_text() == "precious"


def test_settings_are_listed_and_on_the_card(source, out, capsys):
    assert run(source, out, "--tokenizer", "bytes", "--set", "ablate_complex=true") == 0
    assert "ablate_complex=True, set" in capsys.readouterr().out
    assert "ablate_complex=True, set" in (out / "README.md").read_text()


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["--q-bits", "4"], "need -q"),
        (["--q-group-size", "32"], "need -q"),
        (["--tolerance", "nan"], "--tolerance"),
        (["--tolerance", "-1"], "--tolerance"),
    ],
)
def test_flags_that_cannot_mean_anything(source, out, capsys, words, what):
    with pytest.raises(SystemExit) as stop:
        run(source, out, "--tokenizer", "bytes", *words)
    assert stop.value.code == 2
    assert what in capsys.readouterr().err
    assert not out.exists()


def test_a_dry_run_tells_what_quantizing_would_leave(source, out, capsys):
    message = refused(
        capsys, source, out, *["--tokenizer", "bytes", "-q", "--q-group-size", "128"], "--dry-run"
    )
    assert "nothing can be quantized" in message


def test_a_model_of_ours_is_no_source(source, out, tmp_path, capsys):
    assert run(source, out, "--tokenizer", "bytes") == 0
    capsys.readouterr()
    assert "of ours already" in refused(capsys, out, tmp_path / "again")


@pytest.mark.parametrize("where", ["flag", "file"])
def test_an_exponent_without_a_point_is_a_number(where, source, tmp_path):
    file = tmp_path / "settings.yaml"
    file.write_text("norm_eps: 1e-6\ntokenizer: bytes\n")
    words = {"flag": ["norm_eps=1e-6"], "file": []}[where]
    settings, _ = read_settings(file if where == "file" else None, find(str(source)), words)
    assert settings["norm_eps"] == 1e-6


@pytest.mark.parametrize("setting", ["tokenizer=5", "ablate_complex=[a]"])
def test_settings_of_the_wrong_kind_are_one_line(source, out, capsys, setting):
    assert "setting" in refused(capsys, source, out, "--tokenizer", "bytes", "--set", setting)


def test_what_gateloop_transformer_cannot_build_does_not_go_back(out, tmp_path, capsys):
    args = ModelArgs(
        vocab_size=262,
        hidden_size=32,
        intermediate_size=50,
        num_hidden_layers=1,
        gate="polar_abs",
        norm="rms",
        projection_bias=False,
        head_bias=False,
    )
    save(Model(args), byte_tokenizer(), out)
    message = refused(capsys, out, tmp_path / "b.pt", "--to", "lucidrains")
    assert "multiple of hidden_size" in message


def test_a_layer_says_how_it_is_used(tmp_path, out, capsys):
    layer = pytest.importorskip("gateloop_transformer").SimpleGateLoopLayer(32)
    torch.save(layer.state_dict(), tmp_path / "layer.pt")
    assert run(tmp_path / "layer.pt", out) == 0
    card = (out / "README.md").read_text()
    assert "text-generation" not in card
    code = card.split("```python\n")[1].split("```")[0]
    names = {}
    exec(code.replace('open("', f'open("{out}/').replace('weights("', f'weights("{out}/'), names)
    x = np.random.default_rng(0).normal(size=(1, 7, 32)).astype(np.float32)
    with torch.no_grad():
        want = layer(torch.from_numpy(x)).numpy()
    assert np.abs(np.array(names["layer"](mx.array(x))) - want).max() < 1e-5
