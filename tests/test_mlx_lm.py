"""Every mlx_lm command, as it is, on a saved directory.

Commands run through their real `main()`. Two run in child processes that never import this
package themselves; the rest run here, because each child would import mlx_lm anew. Nothing is
downloaded: calibration text lies where mlx_lm caches it, and the one loader that only takes
datasets from the hub is replaced by one that gives the same rows.
"""

import importlib
import json
import os
import re
import socket
import subprocess
import sys
import time
import types
import urllib.error
import urllib.request

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from helpers.models import chat_tokenizer, save_tiny_model
from mlx.utils import tree_flatten
from mlx_lm import batch_generate, load, stream_generate
from mlx_lm.tuner.datasets import TextDataset

from mlx_gateloop.io import save
from mlx_gateloop.model.gates import StateTransitionLinear
from mlx_gateloop.model.lm import Model, ModelArgs, is_state_transition
from mlx_gateloop.tokenizer import byte_tokenizer

TEXT = "".join(f"{n} times {n} is {n * n}.\n" for n in range(40, 240))
PROMPT = "3 times 3"


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A home directory with the text that mlx_lm would download for calibration."""
    home = tmp_path_factory.mktemp("home")
    calibration = home / ".cache" / "mlx-lm" / "calibration_v5.txt"
    calibration.parent.mkdir(parents=True)
    calibration.write_text(TEXT)
    return home


@pytest.fixture(autouse=True)
def surroundings(home, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.chdir(tmp_path)


def saved(path, tokenizer=None, **options):
    """A tiny model that answers in printable characters."""
    tokenizer = tokenizer or chat_tokenizer()
    mx.random.seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
    model = Model(ModelArgs(vocab_size=len(tokenizer), **sizes | options))
    # Random bytes are seldom text; two decoders need not agree on what they stand for.
    model.lm_head.bias = mx.where(printable(tokenizer), 0, -30.0)
    save(model, tokenizer, path)
    return str(path)


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """A tiny model with every kind of projection."""
    return saved(tmp_path_factory.mktemp("models") / "tiny", output_gate=True)


def printable(tokenizer):
    characters = set(map(chr, range(33, 127)))
    return mx.array(
        [tokenizer.decode([n]) in characters for n in range(len(tokenizer.get_vocab()))]
    )


@pytest.fixture
def main(monkeypatch, capsys):
    """Runs `mlx_lm COMMAND ARGUMENTS` and gives what it printed."""

    def run(command, *arguments):
        monkeypatch.setattr(sys, "argv", ["mlx_lm", command, *map(str, arguments)])
        capsys.readouterr()
        importlib.import_module("mlx_lm.cli").main()
        return re.sub(r"\x1b\[[\d;]*\w", "", capsys.readouterr().out)  # without colours

    return run


def child(*arguments, **options):
    """A Python that is told nothing about this package."""
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, **options)


def logits(path, **options):
    """For every character of a text, the logits of those that the model may answer with."""
    model, tokenizer = load(str(path), **options)
    every = np.array(model(mx.array([tokenizer.encode(TEXT[:200])])).astype(mx.float32))
    return every[..., np.array(printable(tokenizer))]


def quality(path, directory):
    """The correlation of a changed model's logits with the original's."""
    ours, original = (logits(p).ravel() for p in (path, directory))
    return np.corrcoef(ours, original)[0, 1]


def greedy(model, tokenizer, prompt, count):
    tokens = tokenizer.encode(prompt)
    for _ in range(count):
        tokens.append(mx.argmax(model(mx.array([tokens]))[0, -1]).item())
        if tokens[-1] in tokenizer.eos_token_ids:
            break
    return tokens[len(tokenizer.encode(prompt)) :]


def assert_transitions_untouched(path, directory=None):
    """State transitions are float32 Linears, with the original's values if it is given."""
    model, _ = load(str(path))
    weights = tree_flatten(model.parameters(), destination={})
    transitions = {name: w for name, w in weights.items() if is_state_transition(name)}
    assert len(transitions) == 2 * 2 * 2  # layers, gamma and theta, weight and bias
    assert {w.dtype for w in transitions.values()} == {mx.float32}
    for layer in model.layers:
        assert type(layer.time_mixing.gamma_proj) is StateTransitionLinear
    if directory:
        original = tree_flatten(load(directory)[0].parameters(), destination={})
        assert all(mx.array_equal(w, original[name]) for name, w in transitions.items())
    return model


def bits(model):
    """What each kind of quantized layer was quantized to."""
    return {
        name.rsplit(".", 1)[-1]: module.bits
        for name, module in model.named_modules()
        if hasattr(module, "bits")
    }


QUANTIZED = {"q_proj", "k_proj", "v_proj", "gate_proj", "out_proj", "up_proj", "down_proj"}
QUANTIZED |= {"embed_tokens", "lm_head"}


# Generation


def test_generate_in_a_process_that_knows_nothing(directory, tmp_path):
    options = ["--prompt", PROMPT, "--max-tokens", "5", "--ignore-chat-template"]
    result = child("-m", "mlx_lm", "generate", "--model", directory, *options, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "Generation: 5 tokens" in result.stdout
    model, tokenizer = load(directory)
    assert tokenizer.decode(greedy(model, tokenizer, PROMPT, 5)) in result.stdout
    assert "gateloop" not in result.stderr  # nobody warns of an unknown type


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
    command = [sys.executable, "-m", "mlx_lm", "server", "--model", directory, "--port", str(port)]
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


# Evaluation


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


def local_dataset(args, tokenizer):
    rows = [{"text": line} for line in TEXT.splitlines()]
    return TextDataset(rows, tokenizer), TextDataset(rows[:8], tokenizer), []


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
    harnessed = evaluate.MLXLM(directory, use_chat_template=False)
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


# Quantization


@pytest.mark.parametrize(("count", "least"), [(8, 0.9995), (4, 0.95)])
def test_convert_quantizes(directory, main, tmp_path, count, least):
    out = tmp_path / "out"
    main("convert", "--hf-path", directory, "--mlx-path", out, "-q", "--q-bits", count)
    model = assert_transitions_untouched(out, directory)
    assert bits(model) == dict.fromkeys(QUANTIZED, count)
    assert quality(out, directory) > least
    back = tmp_path / "back"
    main("convert", "--hf-path", out, "--mlx-path", back, "--dequantize")
    assert not bits(assert_transitions_untouched(back, directory))


@pytest.mark.parametrize("recipe", ["mixed_2_6", "mixed_3_4", "mixed_3_6", "mixed_4_6"])
def test_convert_with_mixed_recipes(directory, main, tmp_path, recipe):
    out = tmp_path / "out"
    options = ["-q", "--quant-predicate", recipe, "--q-group-size", 64]
    main("convert", "--hf-path", directory, "--mlx-path", out, *options)
    model = assert_transitions_untouched(out, directory)
    low, high = (int(part) for part in recipe.split("_")[1:])
    assert set(bits(model)) == QUANTIZED
    assert set(bits(model).values()) == {low, high}
    assert quality(out, directory) > (0.5 if low == 2 else 0.8)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_convert_casts_all_but_the_transitions(directory, main, tmp_path, dtype):
    out = tmp_path / "out"
    main("convert", "--hf-path", directory, "--mlx-path", out, "--dtype", dtype)
    model = assert_transitions_untouched(out, directory)
    for name, weight in tree_flatten(model.parameters()):
        expected = mx.float32 if is_state_transition(name) else getattr(mx, dtype)
        assert weight.dtype == expected, name
    assert quality(out, directory) > 0.999


CALIBRATION = ["--num-samples", 8, "--sequence-length", 64]


def test_gptq(directory, main, tmp_path):
    out = tmp_path / "out"
    options = ["--bits", 4, "--fallback-bits", 8, *CALIBRATION]
    main("gptq", "--model", directory, "--mlx-path", out, *options)
    expected = dict.fromkeys(QUANTIZED, 4) | {"embed_tokens": 8}
    assert bits(assert_transitions_untouched(out, directory)) == expected
    assert quality(out, directory) > 0.95


def test_dynamic_quant(directory, main, tmp_path):
    out = tmp_path / "out"
    main("dynamic_quant", "--model", directory, "--mlx-path", out, "--target-bpw", 12)
    model = assert_transitions_untouched(out, directory)
    assert bits(model).keys() == QUANTIZED
    assert quality(out, directory) > 0.95


def test_dwq(directory, main, tmp_path, monkeypatch):
    module = importlib.import_module("mlx_lm.quant.dwq")
    monkeypatch.setattr(module, "load_dataset", local_dataset)
    out = tmp_path / "out"
    sizes = ["--num-samples", 16, "--max-seq-length", 32, "--batch-size", 4]
    main("dwq", "--model", directory, "--mlx-path", out, *sizes)
    model = assert_transitions_untouched(out)  # distillation trains them a little
    assert bits(model) == dict.fromkeys(QUANTIZED, 4)
    assert quality(out, directory) > 0.95


AWQ = ["--embed-bits", 8, "--embed-group-size", 64, "--n-grid", 4, *CALIBRATION]


def assert_awq(out, directory):
    model = assert_transitions_untouched(out)  # they take the norm's scale over
    expected = dict.fromkeys(QUANTIZED, 4) | {"embed_tokens": 8, "lm_head": 8}
    assert bits(model) == expected
    assert quality(out, directory) > 0.95
    assert not [name for name in mx.load(str(out / "model.safetensors")) if "input_feat" in name]


def test_awq_run_as_a_module(directory, tmp_path):
    out = tmp_path / "out"
    options = ["--model", directory, "--mlx-path", out, *AWQ]
    result = child("-m", "mlx_lm.quant.awq", *map(str, options), env=dict(os.environ))
    assert result.returncode == 0, result.stderr
    assert_awq(out, directory)


@pytest.mark.parametrize(
    "options",
    [
        {"gate": "real"},
        {"transition": "fixed"},
        {"transition": "s5"},
        {"mixer": "softmax", "num_heads": 4},
        {"tie_word_embeddings": True, "bias": False},
        {"norm": "rms"},
        {"norm": "none"},
        {"norm_position": "post"},
    ],
)
def test_awq_of_other_kinds(main, tmp_path, options):
    sizes = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1}
    save_tiny_model(tmp_path / "m", **sizes | options)
    main("awq", "--model", tmp_path / "m", "--mlx-path", tmp_path / "out", *AWQ)
    assert quality(tmp_path / "out", tmp_path / "m") > 0.95


# Fine-tuning


@pytest.fixture(scope="module")
def examples(tmp_path_factory):
    path = tmp_path_factory.mktemp("examples")
    rows = [json.dumps({"text": line}) for line in TEXT.splitlines()]
    for name in ("train", "valid", "test"):
        (path / f"{name}.jsonl").write_text("\n".join(rows[:16]))
    return path


@pytest.mark.parametrize("kind", ["lora", "dora", "full"])
@pytest.mark.parametrize("checkpointing", [[], ["--grad-checkpoint"]], ids=["", "checkpointing"])
def test_fine_tuning_and_fusing(directory, examples, main, tmp_path, kind, checkpointing):
    from mlx_gateloop.model.layers import Block

    plain_call = Block.__call__
    adapters, fused = tmp_path / "adapters", tmp_path / "fused"
    options = ["--iters", 6, "--batch-size", 4, "--num-layers", 2, "--learning-rate", 1e-3]
    options += ["--steps-per-eval", 5, "--val-batches", 2, "--save-every", 6, *checkpointing]
    where = ["--model", directory, "--data", examples, "--adapter-path", adapters]
    try:
        out = main("lora", "--train", "--test", "--fine-tune-type", kind, *where, *options)
    finally:
        Block.__call__ = plain_call  # mlx_lm patches the class to checkpoint
    assert "Test loss" in out
    losses = [float(loss) for loss in re.findall(r"[Vv]al (?:loss )?(\d+\.\d+)", out)]
    assert losses[-1] < losses[0]
    main("fuse", "--model", directory, "--adapter-path", adapters, "--save-path", fused)
    assert_transitions_untouched(fused)
    expected = logits(directory, adapter_path=str(adapters))
    np.testing.assert_allclose(logits(fused), expected, atol=2e-4)
    assert np.abs(expected - logits(directory)).max() > 1e-3
