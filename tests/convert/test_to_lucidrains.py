"""The way back, from a model directory to a PyTorch state dict."""

import pytest
from helpers.checkpoints import contents, refused, run, torch, torch_model
from helpers.models import save_tiny_model
from mlx_gateloop.convert.reading.find import find

BYTES, BACK = ["--tokenizer", "bytes"], ["--to", "lucidrains"]


@pytest.mark.parametrize(
    ("name", "dtype", "options"),
    [
        ("back.pt", "float32", {}),
        ("back.pt", "bfloat16", {"post_ln_norm": True, "sub_ln": True}),
        ("back.safetensors", "bfloat16", {}),
        ("back.safetensors", "float16", {"attn_add_swish_gating": False, "gate_loop_heads": 4}),
        ("back.pt", "float16", {"dim_gate_looped_attn": 64, "attn_add_swish_gating": False}),
    ],
)
def test_there_and_back_is_bit_equal(tmp_path, out, name, dtype, options):
    state = torch_model(**options).state_dict()
    state = {n: tensor.to(getattr(torch, dtype)) for n, tensor in state.items()}
    torch.save(state, tmp_path / "w.pt")
    assert run(tmp_path / "w.pt", out, *BYTES) == 0
    assert run(out, tmp_path / name, *BACK) == 0
    if name.endswith(".pt"):
        again = torch.load(tmp_path / name, weights_only=True)
    else:
        from safetensors.torch import load_file

        again = load_file(tmp_path / name)
    assert again.keys() == state.keys()
    assert all(again[n].dtype == state[n].dtype for n in state)
    assert all(torch.equal(again[n], state[n]) for n in state)
    torch_model(**options).load_state_dict(again)


def test_the_ablation_is_told_on_the_way_back(source, out, tmp_path, capsys):
    assert run(source, out, *BYTES, "--set", "ablate_complex=true") == 0
    assert run(out, tmp_path / "b.pt", *BACK) == 0
    assert "ablate_complex=True is not in the weights" in capsys.readouterr().out


def test_models_that_lucidrains_cannot_express_are_refused(tmp_path, out, capsys):
    save_tiny_model(out, hidden_size=32)
    assert "this model cannot be one" in refused(capsys, out, tmp_path / "b.pt", *BACK)
    assert not (tmp_path / "b.pt").exists()


def test_the_way_back_refuses_what_it_cannot_do(tmp_path, source, out, capsys):
    path = tmp_path / "b.pt"
    torch.save(torch_model(dim=64).state_dict(), tmp_path / "w.pt")
    assert run(tmp_path / "w.pt", out, *BYTES, "-q") == 0
    capsys.readouterr()
    assert "quantized weights cannot be converted" in refused(capsys, out, path, *BACK)
    assert "give a directory" in refused(capsys, source, path, *BACK)
    assert "expected a file name in .safetensors" in refused(capsys, out, tmp_path / "b", *BACK)
    assert "does not take --quantize" in refused(capsys, out, path, *BACK, "-q")
    assert run(source, out, "--force", *BYTES) == 0
    capsys.readouterr()
    path.write_text("mine, and no weights")
    assert "no state dict" in refused(capsys, out, path, *BACK, "--force")
    assert path.read_text() == "mine, and no weights"
    torch.save({"old": torch.ones(2)}, path)
    before = contents(path)
    assert "exists" in refused(capsys, out, path, *BACK)
    assert run(out, path, *BACK, "--force", "--dry-run") == 0
    assert contents(path) == before
    assert run(out, path, *BACK, "--force") == 0
    assert "to_logits.0.gamma" in find(str(path)).shapes
