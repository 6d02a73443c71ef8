"""Text from mlx_lm: alone, in batches, from a cached prompt, in a chat and from a server."""

import json
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

import pytest
from helpers.mlx_lm_commands import PROMPT, TEXT, child, greedy, load, saved
from mlx_lm import batch_generate, stream_generate

from mlx_gateloop.tokenizer import byte_tokenizer


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


def test_stream_generate_is_greedy_decoding(directory):
    model, tokenizer = load(directory)
    streamed = [r.token for r in stream_generate(model, tokenizer, PROMPT, max_tokens=12)]
    assert streamed == greedy(model, tokenizer, PROMPT, 12)


@pytest.mark.parametrize("prefill_step_size", [2048, 3])
def test_batch_generate_is_single_generate(directory, prefill_step_size):
    model, tokenizer = load(directory)
    texts = [PROMPT, "a much longer prompt than the other ones", "x"]
    prompts = [tokenizer.encode(text) for text in texts]
    batch = batch_generate(
        model, tokenizer, prompts, max_tokens=12, prefill_step_size=prefill_step_size
    )
    alone = [tokenizer.decode(greedy(model, tokenizer, text, 12)) for text in texts]
    assert batch.texts == alone


@pytest.mark.parametrize(
    "options",
    [
        {"transition": "retnet"},
        {"transition": "s5"},
        {"mixer": "softmax"},
        {"mixer": "softmax", "transition": "none"},
    ],
)
def test_other_models_generate_alone_in_batches_and_from_a_cached_prompt(options, main, tmp_path):
    directory = saved(tmp_path / "model", num_heads=4, **options)
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


def test_generate_from_a_cached_prompt(directory, main, tmp_path):
    cache = tmp_path / "cache.safetensors"
    main("cache_prompt", "--model", directory, "--prompt-cache-file", cache, "--prompt", TEXT)
    options = ["--prompt-cache-file", cache, "--prompt", PROMPT, "--max-tokens", 4]
    assert "Generation: 4 tokens" in main("generate", *options)
    from mlx_lm.models.cache import load_prompt_cache

    assert sum(c.nbytes for c in load_prompt_cache(str(cache))) == 2 * 2 * 64 * 4


def test_chat(directory, main, monkeypatch):
    lines = iter(["hello", "and again", "q"])
    monkeypatch.setattr("builtins.input", lambda prompt="": next(lines))
    out = main("chat", "--model", directory, "--max-tokens", 4)
    model, tokenizer = load(directory)
    messages = [{"role": "user", "content": "hello"}]
    prompt = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert tokenizer.decode(greedy(model, tokenizer, prompt, 4)) in out
    assert next(lines, None) is None


def test_server(directory, tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "mlx_gateloop", "mlx-lm", "server"]
    command += ["--model", directory, "--port", str(port)]
    with (tmp_path / "log").open("w") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            answer = ask(server, port, "completions", prompt=PROMPT, max_tokens=6, temperature=0)
            model, tokenizer = load(directory)
            expected = tokenizer.decode(greedy(model, tokenizer, PROMPT, 6))
            assert answer["choices"][0]["text"] == expected
            chat = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 6}
            for _ in range(2):  # the second time the prompt comes from the server's cache
                answer = ask(server, port, "chat/completions", **chat, temperature=0)
                assert answer["usage"]["completion_tokens"] == 6
        finally:
            server.terminate()
            server.wait()


def ask(server, port, path, **body):
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/{path}",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    while server.poll() is None:
        try:
            with urllib.request.urlopen(request) as response:
                return json.load(response)
        except urllib.error.HTTPError:
            raise
        except OSError:  # it is not up yet
            time.sleep(0.1)
    raise AssertionError("the server did not start")


@pytest.mark.parametrize("batch_size", [1, 2])
def test_benchmark(directory, main, batch_size):
    sizes = ["-p", 8, "-g", 4, "-n", 1, "-b", batch_size]
    out = main("benchmark", "--model", directory, *sizes)
    assert "Averages: prompt_tps=" in out
