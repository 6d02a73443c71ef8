"""Scores by mlx_lm."""

import importlib

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from helpers.mlx_lm_commands import load, local_dataset


def test_perplexity(directory, main, monkeypatch):
    module = importlib.import_module("mlx_lm.perplexity")
    monkeypatch.setattr(module, "load_dataset", local_dataset)
    options = ["--sequence-length", 64, "--num-samples", 4, "--data-path", "rows"]
    out = main("perplexity", "--model", directory, *options)
    perplexity = float(out.split("Perplexity: ")[1].split()[0])
    np.random.seed(123)  # the command's default
    model, tokenizer = load(directory)
    rows = module.load_data(tokenizer, "rows", 4, 64)
    loss = nn.losses.cross_entropy(model(rows[:, :-1]), rows[:, 1:], reduction="mean")
    assert perplexity == pytest.approx(mx.exp(loss).item(), rel=1e-3)
