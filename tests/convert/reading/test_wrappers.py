"""State dicts as training scripts save them: wrappers, prefixes, averages, other objects."""

import argparse
import collections
import datetime
import pathlib
import random
import types

import numpy as np
import pytest
from helpers.checkpoints import save_shards, torch
from helpers.errors import refusal
from mlx_gateloop.convert.reading.find import find
from mlx_gateloop.convert.sources import SOURCES, detect

NAMES = ("token_emb.weight", "layers.0.0.fn.to_a.0.weight", "to_logits.0.gamma", "scale")
WRAPPERS = ["state_dict", "model_state_dict", "model", "net", "network", "module", "generator"]
WRAPPERS += ["weights", "params", "ema_model", "ema_model_state_dict", "model_ema", "any.name"]
WRAPPERS += [None, "state_dict model", "net module"]
PREFIXES = ["module", "model", "net", "transformer", "voice_restore", "module.module", "model.net"]
PREFIXES += ["_orig_mod", "_forward_module", "_fsdp_wrapped_module", "module._orig_mod", None]


def weights(value=1.0, prefix=None, names=NAMES):
    tensors = {name: torch.full((1,), value) for name in names}
    return {f"{prefix}.{n}" if prefix else n: tensor for n, tensor in tensors.items()}


def values(tree, path, ema=False):
    torch.save(tree, path)
    checkpoint = find(str(path), ema=ema)
    return {name: checkpoint.tensor(name).item() for name in checkpoint.shapes}


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_wrappers_and_prefixes_are_removed(tmp_path, wrapper):
    for prefix in PREFIXES:
        tree = weights(prefix=prefix)
        for key in reversed((wrapper or "").split()):
            tree = {key: tree, "optimizer": {"state": {0: {"exp_avg": torch.ones(3)}}}, "step": 3}
        assert values(tree, tmp_path / "w.pt") == weights(), prefix


@pytest.mark.parametrize("prefix", [None, "module", "net.model"])
@pytest.mark.parametrize("names", ["to_qkva.0.weight", "layers.0.w layers.1.w", "norm.weight"])
def test_names_of_modules_are_no_prefix(tmp_path, names, prefix):
    names = names.split()
    assert values(weights(1.0, prefix, names), tmp_path / "w.pt") == weights(names=names)


@pytest.mark.parametrize("names", [
    NAMES, ("model.embeddings.weight", "model.layers.0.attn.q.weight", "model.norm.weight"),
    ("model.layers.0.gateloop.norm.gamma", "model.layers.0.ff.weight", "lm_head.weight"),
    ("coarse.gateloops.0.norm.gamma", "fine.gateloops.0.norm.gamma"),
])  # fmt: skip
def test_shards_of_one_tensor_have_the_names_of_one_file(tmp_path, names):
    for prefix in PREFIXES:
        whole = weights(prefix=prefix, names=names)
        save_shards(tmp_path, whole, range(len(whole)))
        assert [*find(str(tmp_path)).shapes] == [*values(whole, tmp_path / "w.pt")], prefix


def test_tensors_outside_a_prefix_are_named(tmp_path):
    values(weights(prefix="net") | {"scale": torch.ones(1)}, tmp_path / "w.pt")
    assert "ignored 'scale', outside 'net'" in find(str(tmp_path / "w.pt")).notes
    tree = weights() | {"optimizer": {"exp_avg": torch.ones(1)}}
    assert values(tree, tmp_path / "w.pt") == weights()
    assert "ignored 'optimizer', beside the weights" in find(str(tmp_path / "w.pt")).notes


def test_a_compiled_part_has_its_name_without(tmp_path):
    tree = {"layers.0._orig_mod.w": torch.ones(1), "norm.gamma": torch.ones(1)}
    assert list(values(tree, tmp_path / "w.pt")) == ["layers.0.w", "norm.gamma"]
    tree["layers.0.w"] = torch.ones(1)
    assert "two tensors are 'layers.0.w' without" in refusal(values, tree, tmp_path / "w.pt")


EMA_PYTORCH = {"initted": torch.ones(1), "step": torch.ones(1)} | weights(2.0, "ema_model")
AVERAGED = {
    "key": {"model": weights(), "ema": weights(2.0, "module")},
    "prefix": EMA_PYTORCH | weights(prefix="online_model"),
    "meshgpt": {"model": weights(), "ema_model": EMA_PYTORCH | weights(5.0, "online_model")},
    "e2-tts": {"model_state_dict": weights(), "ema_model_state_dict": EMA_PYTORCH},
    "lightning": {"state_dict": weights(prefix="net") | weights(2.0, "ema.ema_model")},
    "flat": weights() | {"ema": weights(2.0)},
    "timm": {"state_dict": weights(), "state_dict_ema": weights(2.0)},
}


@pytest.mark.parametrize("kind", AVERAGED)
def test_averaged_weights_are_taken_when_asked_for(tmp_path, kind):
    assert values(AVERAGED[kind], tmp_path / "w.pt") == weights()
    assert any("--ema takes them" in note for note in find(str(tmp_path / "w.pt")).notes)
    assert values(AVERAGED[kind], tmp_path / "w.pt", ema=True) == weights(2.0)


def test_what_cannot_be_chosen_is_named(tmp_path):
    path = tmp_path / "w.pt"
    assert "no averaged weights; leave" in refusal(values, weights(), path, ema=True)
    message = refusal(values, {"encoder": weights(), "decoder": weights()}, path)
    assert "several sets of weights ('encoder', 'decoder'); save one alone" in message


@pytest.mark.parametrize("kind", [None, *SOURCES])
@pytest.mark.parametrize("prefix", ["transformer", "coarse.gateloops.0"])
def test_a_part_of_a_larger_model_is_named(prefix, kind):
    for name in ("layers.0.0.fn.to_a.0.weight", "layers.0.gamma.weight"):
        shapes = {"criterion.weight": (1,), f"{prefix}.{name}": (2, 2)}
        assert f"under the prefix '{prefix}'" in refusal(detect, shapes, kind)
    assert "--layers converts them" in refusal(detect, {f"{prefix}.to_qkva.0.weight": (2, 2)}, kind)


HARMLESS = [
    *(np.float64(1), np.int64(2), np.bool_(True), np.ones(3), np.array(["a"]), np.dtype("f4")),
    *(np.random.get_state(), random.getstate(), torch.get_rng_state()),
    *(torch.Size([1]), torch.device("cpu"), torch.float32),
    *(pathlib.Path("a"), pathlib.PurePosixPath("a"), datetime.datetime(2024, 1, 1)),
    *(argparse.Namespace(a=pathlib.Path("a")), types.SimpleNamespace(a=1)),
    *(collections.defaultdict(list, a=[1]), collections.OrderedDict(a=1)),
    *({1}, frozenset({1}), b"a", 1j, slice(1), dict, None),
]


@pytest.mark.parametrize("is_zip", [True, False])
def test_what_is_no_weight_is_read_past(tmp_path, is_zip):
    path = tmp_path / "last.ckpt"
    for value in HARMLESS:
        tree = {"hyper_parameters": {"a": [value]}, "state_dict": weights(prefix="model")}
        torch.save(tree | {"b": value}, path, _use_new_zipfile_serialization=is_zip)
        assert list(find(str(path)).shapes) == list(NAMES), value


def test_a_folder_of_accelerate_is_read(tmp_path):
    from safetensors.torch import save_file

    save_file(weights(prefix="module"), tmp_path / "model.safetensors")
    torch.save({"state": {}}, tmp_path / "optimizer.bin")
    torch.save({}, tmp_path / "scheduler.bin")
    assert sorted(find(str(tmp_path)).shapes) == sorted(NAMES)
