"""Adapters by mlx_lm, and models that they are fused into."""

import json
import re

import numpy as np
import pytest
from helpers.mlx_lm_commands import TEXT, assert_transitions_untouched, logits

from mlx_gateloop.model.layers import Block


@pytest.mark.parametrize(
    ("kind", "checkpointing"), [("lora", ["--grad-checkpoint"]), ("dora", []), ("full", [])]
)
def test_fine_tuning_and_fusing(directory, main, tmp_path, monkeypatch, kind, checkpointing):
    adapters, fused = tmp_path / "adapters", tmp_path / "fused"
    for name in ("train", "valid", "test"):
        rows = [json.dumps({"text": line}) for line in TEXT.splitlines()[:16]]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(rows))
    options = ["--iters", 6, "--batch-size", 4, "--num-layers", 2, "--learning-rate", 1e-3]
    options += ["--steps-per-eval", 5, "--val-batches", 2, "--save-every", 6, *checkpointing]
    where = ["--model", directory, "--data", tmp_path, "--adapter-path", adapters]
    with monkeypatch.context() as patch:
        patch.setattr(Block, "__call__", Block.__call__)  # mlx_lm patches the class to checkpoint
        out = main("lora", "--train", "--test", "--fine-tune-type", kind, *where, *options)
    assert "Test loss" in out
    losses = [float(loss) for loss in re.findall(r"[Vv]al (?:loss )?(\d+\.\d+)", out)]
    assert losses[-1] < losses[0]
    main("fuse", "--model", directory, "--adapter-path", adapters, "--save-path", fused)
    assert_transitions_untouched(fused)
    expected = logits(directory, adapter_path=str(adapters))
    np.testing.assert_allclose(logits(fused), expected, atol=2e-4)
    assert np.abs(expected - logits(directory)).max() > 1e-3
