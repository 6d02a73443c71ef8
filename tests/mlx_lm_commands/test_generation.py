"""Text from mlx_lm: alone, in batches, from a cached prompt, and in a chat; and its perplexity."""

import importlib
from unittest.mock import Mock

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from helpers.mlx_lm_commands import PROMPT, greedy, load, local_dataset, saved
from mlx_lm import batch_generate, stream_generate

from mlx_gateloop.tokenizer import byte_tokenizer


def test_generate_takes_the_chat_template_where_there_is_one(directory, main, tmp_path):
    for path, chats in ((directory, True), (saved(tmp_path / "plain", byte_tokenizer()), False)):
        model, tokenizer = load(path)
        assert tokenizer.has_chat_template == chats
        prompt = f"<|im_start|>user\n{PROMPT}<|im_end|>\n<|im_start|>assistant\n"
        expected = greedy(model, tokenizer, prompt if chats else PROMPT, 5)
        out = main("generate", "--model", path, "--prompt", PROMPT, "--max-tokens", 5)
        assert f"==========\n{tokenizer.decode(expected)}\n" in out


@pytest.mark.parametrize("options", [
    *({}, {"num_heads": 64, "output_gate": True}, {"transition": "s5"}),
    *({"mixer": "softmax"}, {"mixer": "softmax", "transition": "none"}),
])  # fmt: skip
def test_models_generate_alone_in_batches_and_from_a_cached_prompt(options, main, tmp_path):
    directory = saved(tmp_path / "model", **{"num_heads": 4} | options)
    model, tokenizer = load(directory)
    prompts = [tokenizer.encode(text) for text in (PROMPT, "a longer prompt than the others", "x")]
    expected = [greedy(model, tokenizer, tokenizer.decode(prompt), 8) for prompt in prompts]
    streamed = [
        [r.token for r in stream_generate(model, tokenizer, prompt, max_tokens=8)]
        for prompt in prompts
    ]
    assert streamed == expected
    batch = batch_generate(model, tokenizer, prompts, max_tokens=8, prefill_step_size=4)
    assert batch.texts == [tokenizer.decode(tokens) for tokens in expected]
    cache = tmp_path / "cache.safetensors"
    main("cache_prompt", "--model", directory, "--prompt-cache-file", cache, "--prompt", PROMPT)
    options = ["--prompt-cache-file", cache, "--prompt", PROMPT, "--max-tokens", 4]
    assert "Generation: 4 tokens" in main("generate", *options)


@pytest.mark.parametrize("end", ["q", EOFError()])
def test_chat(directory, main, monkeypatch, end):
    ask = Mock(side_effect=["hello", "and again", end])
    monkeypatch.setattr("builtins.input", ask)
    out = main("chat", "--model", directory, "--max-tokens", 4)
    model, tokenizer = load(directory)
    messages = [{"role": "user", "content": "hello"}]
    prompt = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert tokenizer.decode(greedy(model, tokenizer, prompt, 4)) in out
    assert ask.call_count == 3


def test_benchmark(directory, main):
    out = main("benchmark", "--model", directory, "-p", 8, "-g", 4, "-n", 1, "-b", 2)
    assert "Averages: prompt_tps=" in out


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
