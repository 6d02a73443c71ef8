"""Text from mlx_lm: alone, in batches, from a cached prompt, and in a chat."""

import pytest
from helpers.mlx_lm_commands import PROMPT, child, greedy, load, saved
from mlx_lm import batch_generate, stream_generate

from mlx_gateloop.tokenizer import byte_tokenizer


@pytest.mark.slow
def test_generate_in_a_process_of_its_own(directory, tmp_path):
    options = ["--prompt", PROMPT, "--max-tokens", "5", "--ignore-chat-template"]
    result = child(
        "-m", "mlx_gateloop", "mlx-lm", "generate", "--model", directory, *options, cwd=tmp_path
    )
    assert result.returncode == 0, result.stderr
    assert "Generation: 5 tokens" in result.stdout
    model, tokenizer = load(directory)
    assert tokenizer.decode(greedy(model, tokenizer, PROMPT, 5)) in result.stdout
    assert "model of type" not in result.stderr  # nobody warns of an unknown type


def test_generate_takes_the_chat_template_where_there_is_one(directory, main, tmp_path):
    plain = saved(tmp_path / "plain", byte_tokenizer())
    for path, chats in ((directory, True), (plain, False)):
        model, tokenizer = load(path)
        assert tokenizer.has_chat_template == chats
        prompt = f"<|im_start|>user\n{PROMPT}<|im_end|>\n<|im_start|>assistant\n"
        expected = greedy(model, tokenizer, prompt if chats else PROMPT, 5)
        out = main("generate", "--model", path, "--prompt", PROMPT, "--max-tokens", 5)
        assert f"==========\n{tokenizer.decode(expected)}\n" in out


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"num_heads": 64, "output_gate": True},
        {"transition": "retnet"},
        {"transition": "s5"},
        {"mixer": "softmax"},
        {"mixer": "softmax", "transition": "none"},
    ],
)
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


def test_chat(directory, main, monkeypatch):
    lines = iter(["hello", "and again", "q"])
    monkeypatch.setattr("builtins.input", lambda prompt="": next(lines))
    out = main("chat", "--model", directory, "--max-tokens", 4)
    model, tokenizer = load(directory)
    messages = [{"role": "user", "content": "hello"}]
    prompt = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert tokenizer.decode(greedy(model, tokenizer, prompt, 4)) in out
    assert next(lines, None) is None


@pytest.mark.parametrize("batch_size", [1, 2])
def test_benchmark(directory, main, batch_size):
    sizes = ["-p", 8, "-g", 4, "-n", 1, "-b", batch_size]
    out = main("benchmark", "--model", directory, *sizes)
    assert "Averages: prompt_tps=" in out
