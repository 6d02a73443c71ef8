"""GateLoop layers inside checkpoints of other models."""

import json

import mlx.core as mx
import numpy as np
import pytest
from helpers.checkpoints import refused, run, torch
from helpers.errors import refusal
from helpers.parity import difference

import mlx_gateloop as gl

transformer = pytest.importorskip("gateloop_transformer", reason="the layers' own classes")
full_layers = transformer.gateloop_transformer

DIM, LENGTH = 12, 40


@pytest.fixture
def network():
    """Layers of every kind between layers of other kinds."""
    torch.manual_seed(0)
    simple = transformer.SimpleGateLoopLayer
    options = {"checkpoint_gate_looped_attn": False}
    layers = {
        "encoder": torch.nn.Linear(DIM, DIM),
        'bl"\x1bock': torch.nn.Sequential(simple(DIM), simple(DIM)),
        "backward_layer": simple(DIM, prenorm=False, post_ln=True, reverse=True),
        "normed": simple(DIM, post_ln=True),
        "full": full_layers.GateLoopedAttention(DIM, heads=3, sub_ln=True, **options),
        "plain": full_layers.GateLoopedAttention(DIM, add_swish_gating=False, **options),
        "attention": torch.nn.ModuleDict({"to_qkv": torch.nn.Linear(DIM, 3 * DIM)}),
        "positions": full_layers.CausalFullAttention(DIM, data_dependent_rel_pos=True),  # with to_a
    }
    network = torch.nn.ModuleDict(layers).eval()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
    return network


NAMES = ['bl"\x1bock.0', 'bl"\x1bock.1', "backward_layer", "normed", "full", "plain"]


def extract(state, tmp_path, *words):
    torch.save(state, tmp_path / "network.pt")
    assert run(tmp_path / "network.pt", tmp_path / "out", "--layers", *words) == 0
    return gl.load_layers(tmp_path / "out")


def test_each_layer_is_the_one_of_its_name(network, tmp_path, capsys):
    layers = extract(network.state_dict(), tmp_path)
    assert sorted(layers) == sorted(NAMES)
    said = capsys.readouterr().out
    assert 'bl"\\x1bock.0: simple, width 12, 12 heads' in said
    assert "full: full, width 12, 3 heads" in said
    x = np.random.default_rng(0).standard_normal((2, LENGTH, DIM)).astype(np.float32)
    for name in NAMES:
        want = network.get_submodule(name)(torch.from_numpy(x)).detach()
        y, last = layers[name](mx.array(x), reverse=name == "backward_layer")
        assert difference(y, want) <= 1e-5
        if name != "backward_layer":
            state, steps = None, []
            for n in range(LENGTH):
                step, state = layers[name](mx.array(x[:, n : n + 1]), state)
                steps.append(step)
            assert difference(mx.concatenate(steps, 1), want) <= 1e-5
            np.testing.assert_allclose(np.array(state), np.array(last), rtol=1e-4, atol=1e-5)
    card = (tmp_path / "out" / "README.md").read_text()
    assert all(f"| `{name}` |" in card for name in ['bl"\\x1bock.0', *NAMES[2:]])
    assert r"""layers['bl"\x1bock.0'](x)""" in card
    state = {n: x * torch.nan if "plain" in n else x for n, x in network.state_dict().items()}
    extract(state, tmp_path, "--force")
    assert "warning: plain: NaN or infinity in 3 tensors: " in capsys.readouterr().err


def test_averaged_weights_are_taken_when_asked_for(network, tmp_path):
    state = network.state_dict()
    both = {"model": state, "ema": {name: 2 * tensor for name, tensor in state.items()}}
    plain = extract(both, tmp_path)["full"].time_mixing.v_proj.weight
    doubled = extract(both, tmp_path, "--ema", "--force")["full"].time_mixing.v_proj.weight
    np.testing.assert_array_equal(np.array(doubled), 2 * np.array(plain))


def test_a_layer_alone_has_no_name(network, tmp_path, capsys):
    assert list(extract(network["full"].state_dict(), tmp_path)) == [""]
    torch.save(network["backward_layer"].state_dict(), tmp_path / "layer.pt")
    assert "--layers converts them" in refused(capsys, tmp_path / "layer.pt", tmp_path / "other")


def test_bad_input_is_one_line(network, tmp_path, capsys):
    def said(state, *words):
        torch.save(state, tmp_path / "n.pt")
        message = refused(capsys, tmp_path / "n.pt", tmp_path / "out", "--layers", *words)
        assert not (tmp_path / "out").exists()
        return message

    state = network.state_dict()
    assert "no GateLoop layer: expected keys" in said(network["encoder"].state_dict())
    lost = {name: tensor for name, tensor in state.items() if name != "full.to_a.0.bias"}
    assert "full.: not the keys of lucidrains-full: 1 missing: to_a.0.bias" in said(lost)
    assert "--layers: cannot be combined with --verify" in said(state, "--verify")
    assert "--layers: cannot be combined with --from" in said(state, "--from", "lucidrains")


def test_other_directories_are_no_layers(tmp_path, network):
    extract(network.state_dict(), tmp_path)
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    for changed, message in [
        ({"model_type": "gateloop"}, "model_type: expected 'gateloop_layers', got 'gateloop'"),
        ({"layers": {"full": {"hidden_size": "wide"}}}, "hidden_size must be a valid integer"),
        ({"layers": {"other": config["layers"]["full"]}}, "cannot be loaded"),
    ]:
        (tmp_path / "out" / "config.json").write_text(json.dumps(config | changed))
        assert message in refusal(gl.load_layers, tmp_path / "out")
