"""Model directories: round trips, bad input, and failures that change nothing."""

import os
from functools import partial
from io import StringIO
from pathlib import Path
from unittest.mock import Mock

import mlx.core as mx
import mlx.nn as nn
import pytest
from helpers.errors import refusal
from helpers.hostile import edited, written
from helpers.models import chat_tokenizer, tiny_model
from helpers.reference import as_numpy, error, needs_native
from helpers.tokenizers import add_token
from mlx.utils import tree_flatten, tree_map
from mlx_lm import load as load_with_mlx_lm
from mlx_lm.tuner.utils import linear_to_lora_layers
from mlx_lm.utils import dequantize_model

from mlx_gateloop.io.models import OUR_CODE, load, load_any, load_model, load_weights, local, save
from mlx_gateloop.model import standalone
from mlx_gateloop.model.lm import Model, is_state_transition
from mlx_gateloop.ops.linear import MAX_ROWS
from mlx_gateloop.tokenizer import byte_tokenizer, stop_token_ids

FILES = {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
FILES |= {"chat_template.jinja", "generation_config.json", "gateloop.py"}


@pytest.fixture(scope="module")
def tokenizer():
    return chat_tokenizer()


def tiny(tokenizer, **options):
    sizes = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1}
    return tiny_model(**{"vocab_size": len(tokenizer)} | sizes | options)


@pytest.fixture
def saved(tokenizer, tmp_path):
    save(tiny(tokenizer), tokenizer, tmp_path / "model")
    return tmp_path / "model"


def contents(directory):
    return {file.name: file.read_bytes() for file in directory.iterdir()}


PROMPT = mx.array([[72, 101, 108, 108, 111]])


@pytest.mark.parametrize("options", [{}, {"transition": "fixed", "tie_word_embeddings": True}])
def test_what_is_saved_is_loaded(tokenizer, tmp_path, options):
    model = tiny(tokenizer, **options)
    save(model, tokenizer, tmp_path / "deep" / "model")
    directory = tmp_path / "deep" / "model"
    assert {file.name for file in directory.iterdir()} == FILES
    assert [p.name for p in directory.parent.iterdir()] == ["model"]
    loaded, loaded_tokenizer = load(directory)
    assert type(loaded) is Model
    assert not loaded.training
    assert mx.array_equal(loaded(PROMPT), model(PROMPT))
    text = "naïve 🙂\n  text"
    assert loaded_tokenizer.encode(text) == tokenizer.encode(text)
    assert loaded_tokenizer.chat_template == tokenizer.chat_template
    assert loaded_tokenizer.eos_token_ids == set(stop_token_ids(tokenizer))
    _, metadata = mx.load(str(directory / "model.safetensors"), return_metadata=True)
    assert metadata == {"format": "mlx"}
    before = contents(directory)
    for target in (tmp_path / "again", directory):  # mlx-lm's wrapper of a tokenizer now
        save(loaded, loaded_tokenizer, target)  # the second time over the file that was read
        assert contents(target).keys() == before.keys()
        assert contents(target)["config.json"] == before["config.json"]
        assert mx.array_equal(load(target)[0](PROMPT), model(PROMPT))


def test_the_model_in_one_file_is_copied_where_it_has_all_options(tokenizer, tmp_path):
    for options in ({"num_heads": 4, "conv_size": 4}, {"dropout": 0.1, "norm": "rms"}):
        save(tiny(tokenizer, **options), tokenizer, tmp_path / "model")
        copy = (tmp_path / "model" / "gateloop.py").read_bytes()
        assert copy == Path(standalone.__file__).read_bytes()
    for options in ({"transition": "lru"}, {"mixer": "softmax"}, {"sub_norm": True}):
        save(tiny(tokenizer, **options), tokenizer, tmp_path / "model")
        with pytest.raises(ImportError, match="pip install mlx-gateloop, then"):
            exec((tmp_path / "model" / "gateloop.py").read_text())


@pytest.mark.parametrize("load", [lambda p: load(p)[0], lambda p: load_any(p)[0], load_weights])
def test_a_changed_file_is_never_run(saved, load):
    (saved / "gateloop.py").write_text("raise SystemExit('it ran')")
    assert type(load(saved)) is Model


@pytest.mark.parametrize("name", ["config.json", "generation_config.json"])
def test_several_tokens_may_end_a_text(saved, tokenizer, name):
    if name == "config.json":
        (saved / "generation_config.json").unlink()  # which would decide
    edited(name, eos_token_id=[5, 7])(saved)
    model, given = load(saved)
    assert given.eos_token_ids == {5, 7, tokenizer.eos_token_id}
    save(model, given, saved.parent / "again")
    assert load(saved.parent / "again")[1].eos_token_ids >= given.eos_token_ids


def quantize(model):
    nn.quantize(model, group_size=32, bits=8)


def mix(model):
    nn.quantize(model.layers[0].channel_mixing, 32, 4)
    nn.quantize(model, 32, 8)


@pytest.mark.parametrize(
    "change", [quantize, lambda model: model.layers[0].channel_mixing.set_dtype(mx.bfloat16)]
)
def test_weights_are_saved_as_they_are(tokenizer, tmp_path, change):
    model = tiny(tokenizer)
    change(model)
    save(model, tokenizer, tmp_path / "model")
    loaded, _ = load_with_mlx_lm(str(tmp_path / "model"), model_config=OUR_CODE)
    dtypes = [tree_map(lambda w: w.dtype, each.parameters()) for each in (loaded, model)]
    assert dtypes[0] == dtypes[1]
    assert mx.array_equal(loaded(PROMPT), model(PROMPT))


@needs_native
@pytest.mark.parametrize("has_one_table", [False, True])
@pytest.mark.parametrize("change", [quantize, lambda model: model.set_dtype(mx.bfloat16)])
def test_a_cpu_reads_short_weights_as_they_are(tokenizer, tmp_path, caplog, change, has_one_table):
    model = tiny(tokenizer, hidden_size=64, tie_word_embeddings=has_one_table)
    change(model)
    save(model, tokenizer, tmp_path / "model")
    stored = dict(tree_flatten(model.parameters()))
    model.set_dtype(mx.float32)
    exact = dequantize_model(model)
    with mx.stream(mx.cpu):
        loaded, _ = load(tmp_path / "model")
        for length in (1, MAX_ROWS + 1):
            text = mx.repeat(PROMPT[:, :1], length, 1)
            assert loaded(text).dtype == mx.float32
            assert error(loaded(text), as_numpy(exact(text))) < 1e-5
    for name, weight in tree_flatten(loaded.parameters()):
        short = weight.ndim == 2 and name.endswith(".weight") and not is_state_transition(name)
        assert weight.dtype == (stored[name].dtype if short else mx.float32)
    save(loaded, tokenizer, tmp_path / "again")
    assert error(load(tmp_path / "again")[0](PROMPT), as_numpy(loaded(PROMPT))) == 0
    assert not caplog.records
    loaded.set_dtype(mx.float16)
    assert loaded(PROMPT).dtype == mx.float16


@pytest.mark.parametrize(("change", "kind"), [
    (lambda model: nn.quantize(model, group_size=32, mode="mxfp4"), "4-bit"), (mix, "4- and 8-bit"),
    (lambda model: model.set_dtype(mx.bfloat16), "bfloat16"),
])  # fmt: skip
def test_other_weights_become_float32(tokenizer, tmp_path, caplog, monkeypatch, change, kind):
    if kind == "bfloat16":
        monkeypatch.setattr("mlx_gateloop.io.models.can_keep_short", lambda: False)
    model = tiny(tokenizer)
    change(model)
    save(model, tokenizer, tmp_path / "model")
    with mx.stream(mx.cpu):
        loaded, _ = load(tmp_path / "model")
        logits = model(PROMPT).astype(mx.float32)
        assert error(loaded(PROMPT), as_numpy(logits)) < (0.05 if kind == "bfloat16" else 1e-4)
    assert {str(p.dtype) for _, p in tree_flatten(loaded.parameters())} == {"mlx.core.float32"}
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith(f"{tmp_path / 'model'}: {kind} weights run in float32 on a CPU")
    caplog.clear()
    save(loaded, tokenizer, tmp_path / "again")
    assert error(load(tmp_path / "again")[0](PROMPT), as_numpy(loaded(PROMPT))) == 0
    assert not caplog.records


def test_saving_over_a_model_replaces_what_is_of_it(tokenizer, saved):
    (saved / "log.jsonl").write_text("kept")
    (saved / "model-00001-of-00002.safetensors").write_bytes(b"old shard")
    (saved / "model.safetensors.index.json").write_text("{}")
    for name in ("special_tokens_map.json", "added_tokens.json"):
        (saved / name).write_text('{"eos_token": "old"}')
    for folder in (".saving", "additional_chat_templates"):
        (saved / folder).mkdir()
    (saved / "additional_chat_templates" / "tool_use.jinja").write_text("old")
    (saved / ".saving" / "model.safetensors").write_bytes(b"half")  # from a killed process
    model = tiny(tokenizer, num_hidden_layers=2)
    for template in ({"chat_template.jinja"}, set()):
        save(model, tokenizer if template else byte_tokenizer(), saved)
        names = FILES - {"chat_template.jinja"} | template | {"log.jsonl"}
        assert {file.name for file in saved.iterdir()} == names
        loaded, loaded_tokenizer = load(saved)
        assert mx.array_equal(loaded(PROMPT), model(PROMPT))
        assert loaded_tokenizer.has_chat_template == bool(template)


def test_a_full_disk_leaves_the_old_model(tokenizer, saved, monkeypatch):
    before = contents(saved)
    full = RuntimeError("No space left on device")  # as MLX raises it
    monkeypatch.setattr(mx, "save_safetensors", Mock(side_effect=full))
    assert "No space left on device; free" in refusal(save, tiny(tokenizer), tokenizer, saved)
    assert contents(saved) == before
    assert [p.name for p in saved.parent.iterdir()] == ["model"]


def test_a_file_in_the_way_and_missing_directories_are_named(tokenizer, tmp_path):
    file = tmp_path / "taken"
    file.write_text("a file")
    assert f"{file}: cannot be saved" in refusal(save, tiny(tokenizer), tokenizer, file)
    assert file.read_text() == "a file"
    for name in ("nothing", "./nothing", "../nothing", "a/b/c"):  # none is a name of the hub
        assert refusal(load, name).startswith(f"{name}: no such model directory; ")


@pytest.mark.parametrize("name", ["demo", "demo-fixed", "code"])
def test_an_embedded_model_is_found_by_its_name(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert (local(name) / "model.safetensors").is_file()
    (tmp_path / name).mkdir()
    assert local(name) == Path(name)


def test_what_is_no_directory_here_is_asked_from_the_hub(monkeypatch):
    offline = Mock(side_effect=OSError("cannot reach\nthe hub"))
    monkeypatch.setattr("mlx_lm.utils.snapshot_download", offline)
    expected = "no such directory, and not loaded from the Hugging Face hub: cannot reach the hub"
    assert refusal(load, "someone/gateloop") == f"someone/gateloop: {expected}"
    assert offline.call_args.args == ("someone/gateloop",)


def truncate(size):
    return lambda model: os.truncate(model / "model.safetensors", size)


def link_to_nowhere(model):
    (model / "model.safetensors").unlink()
    (model / "model.safetensors").symlink_to("../blobs/gone")


def foreign(model):
    mx.save_safetensors(str(model / "model.safetensors"), {"transformer.wte": mx.zeros((2, 2))})


def adapters_only(model):
    (model / "config.json").rename(model / "adapter_config.json")


def packed_in_float32(model):
    quantized = load_model(model)
    nn.quantize(quantized, 32, 8)
    save(quantized, None, model)
    weights = mx.load(file := str(model / "model.safetensors"))
    mx.save_safetensors(file, {name: w.astype(mx.float32) for name, w in weights.items()})


CODE = {"tokenizer_class": "A", "auto_map": {"AutoTokenizer": ["a.A", None]}}
WITHOUT_TEXT = {  # which load_model notices too
    "no config": (lambda model: (model / "config.json").unlink(), "json: No such file"),
    "cut config": (written("config.json", "{"), "config.json: not readable JSON"),
    "layers": (edited("config.json", num_hidden_layers=10**9), "num_hidden_layers is 1000000000"),
    "long number": (written("config.json", f'{{"a": 1{"0" * 5000}}}'), "config.json: not readable"),
    "gate": (edited("config.json", gate="elliptic"), "gate must be 'polar', 'polar_abs' or 'real'"),
    "shape": (edited("config.json", intermediate_size=32), "Expected shape (32, 64) but received"),
    "missing": (edited("config.json", num_hidden_layers=2), "Missing"),
    "no weights": (lambda model: (model / "model.safetensors").unlink(), "No safetensors found"),
    "dead link": (link_to_nowhere, "No such file or directory"),
    "empty": (truncate(0), "cannot be loaded"),
    "cut weights": (truncate(5000), "cannot be loaded"),
    "adapters": (adapters_only, "adapters only; run gateloop mlx-lm generate"),
    "packed": (packed_in_float32, "packed weights must be uint32"),
    "foreign weights": (foreign, "Received 1 parameters not in model: transformer.wte"),
}
WITH_TEXT = {
    "llama": (written("config.json", '{"model_type": "llama"}'), "model_type must be 'gateloop'"),
    "code": (edited("config.json", model_type="llama"), "model_file names code"),
    "list": (edited("config.json", model_type=["gateloop"]), "model_file names code"),
    "tokenizer": (written("tokenizer.json", "{"), "cannot be loaded"),
    "its code": (edited("tokenizer_config.json", **CODE), "contains custom code"),
    "its ends": (edited("generation_config.json", eos_token_id=[1, "a"]), "eos_token_id: exp"),
    "cannot encode": (edited("tokenizer_config.json", model_max_length="long"), "'>' not supp"),
    "ids": (partial(add_token, "<more>"), "makes token 262, its embedding has 262 rows; get both"),
    "no tokenizer": (lambda model: (model / "tokenizer.json").unlink(), "no tokenizer.json"),
}


@pytest.mark.parametrize("kind", (WITHOUT_TEXT | WITH_TEXT).keys())
def test_a_damaged_directory_is_one_line(saved, kind):
    damage, words = (WITHOUT_TEXT | WITH_TEXT)[kind]
    damage(saved)
    for function in (load, load_model)[: 1 + (kind in WITHOUT_TEXT)]:
        found = refusal(function, saved)
        assert words in found
        assert found.startswith(str(saved))


def test_a_model_with_adapters_or_one_that_draws_ids_it_cannot_read(tokenizer, tmp_path):
    save(tiny(tokenizer, num_outputs=len(tokenizer) + 1), tokenizer, tmp_path)
    assert refusal(load, tmp_path).endswith("cannot read; not a language model")
    model = tiny(tokenizer)
    linear_to_lora_layers(model, 1, {"rank": 2, "scale": 1.0, "dropout": 0.0})
    assert "fuse them" in refusal(save, model, tokenizer, tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_a_model_of_something_else_than_text(tmp_path, tokenizer):
    model = tiny(tokenizer, num_outputs=3)
    save(model, None, tmp_path / "model")
    assert contents(tmp_path / "model").keys() == {"config.json", "model.safetensors"}
    again = load_model(tmp_path / "model")
    tokens = mx.array([[1, 2, 3]])
    assert not again.training
    assert again(tokens).shape == (1, 3, 3)
    assert mx.array_equal(again(tokens), model(tokens))


@pytest.mark.parametrize("load", [load, load_weights, load_model])
def test_a_load_leaves_no_random_state_unevaluated(saved, load):
    load(saved)
    graph = StringIO()
    mx.export_to_dot(graph, *mx.random.state)
    assert "label" not in graph.getvalue()
