"""Scores by mlx_lm."""

import importlib
import sys
import types

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from helpers.mlx_lm_commands import PROMPT, TEXT, greedy, load, local_dataset


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


def test_evaluate_with_the_harness(directory, monkeypatch):
    """The model class that `mlx_lm evaluate` hands to lm-evaluation-harness, which is optional."""
    harness = {
        "lm_eval": types.ModuleType("lm_eval"),
        "lm_eval.api": types.ModuleType("lm_eval.api"),
        "lm_eval.api.model": types.SimpleNamespace(LM=object),
        "lm_eval.api.registry": types.SimpleNamespace(register_model=lambda name: lambda c: c),
    }
    for name, module in harness.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.delitem(sys.modules, "mlx_lm.evaluate", raising=False)
    evaluate = importlib.import_module("mlx_lm.evaluate")
    harnessed = evaluate.MLXLM(directory, use_chat_template=False, trust_remote_code=True)
    model, tokenizer = load(directory)

    pairs = [("2 times 2", " is 4."), ("2 times 2", " is five"), ("7", "!")]
    requests = [types.SimpleNamespace(args=pair) for pair in pairs]
    for (context, continuation), (score, _) in zip(
        pairs, harnessed.loglikelihood(requests), strict=True
    ):
        tokens = tokenizer.encode(context + continuation)
        start = len(tokenizer.encode(context))
        logprobs = nn.log_softmax(model(mx.array([tokens[:-1]]))[0])
        expected = sum(logprobs[n - 1, tokens[n]].item() for n in range(start, len(tokens)))
        assert score == pytest.approx(expected, abs=1e-3)

    options = {"until": ["\n\n\n"], "max_gen_toks": 6}
    requests = [types.SimpleNamespace(args=(text, options)) for text in (PROMPT, "a longer one")]
    expected = [tokenizer.decode(greedy(model, tokenizer, r.args[0], 6)) for r in requests]
    # mlx-lm before 0.32 goes on beyond max_gen_toks
    for answer, beginning in zip(harnessed.generate_until(requests), expected, strict=True):
        assert answer.startswith(beginning)

    rolling = harnessed.loglikelihood_rolling([types.SimpleNamespace(args=(TEXT[:50],))])
    assert np.isfinite(rolling[0])
