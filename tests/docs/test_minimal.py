"""docs/minimal.py is the package's model: same weights, same logits."""

import importlib.util
from pathlib import Path

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten

import mlx_gateloop as gl

ROOT = Path(__file__).parents[2]
SIZES = {"vocab_size": 17, "hidden_size": 8, "intermediate_size": 24, "num_hidden_layers": 3}


def close(x, expected):
    return mx.abs(x - expected).max() <= 2e-6 * mx.abs(expected).max()


@pytest.fixture(scope="module")
def minimal():
    spec = importlib.util.spec_from_file_location("minimal", ROOT / "docs" / "minimal.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def models(minimal):
    mx.random.seed(0)
    model = gl.Model(gl.ModelArgs(**SIZES))
    model.eval()
    copy = minimal.Model(*SIZES.values())
    copy.load_weights(tree_flatten(model.parameters()))  # strict: every name and shape fits
    return model, copy


@pytest.mark.parametrize("length", [1, 2, 3, 7, 16, 33, 100])
def test_scan_and_steps_give_the_packages_logits(minimal, models, length):
    model, copy = models
    tokens = mx.random.randint(0, SIZES["vocab_size"], (2, length))
    expected = model(tokens)
    parallel, end = copy(tokens)
    sequential, same_end = copy(tokens, run=minimal.step_by_step)
    assert close(parallel, expected)
    assert close(sequential, expected)
    for h, same in zip(end, same_end, strict=True):
        assert close(h, same)


def test_states_continue_a_text(minimal, models):
    model, copy = models
    tokens = mx.random.randint(0, SIZES["vocab_size"], (2, 20))
    cache = model.make_cache()
    model(tokens[:, :13], cache)
    _, states = copy(tokens[:, :13])
    for h, layer_cache in zip(states, cache, strict=True):
        assert close(h.swapaxes(0, 1), layer_cache[0])
    whole, _ = copy(tokens)
    for run in (minimal.scan, minimal.step_by_step):
        rest, _ = copy(tokens[:, 13:], states, run)
        assert close(rest, whole[:, 13:])


def test_it_continues_a_text_with_the_demo_model(minimal):
    directory = ROOT / "app" / "embedded_models" / "demo"
    model, tokenizer = gl.load(str(directory))
    prompt = tokenizer.encode("json.dumps(")
    cache = model.make_cache()
    logits, expected = model(mx.array([prompt]), cache), []
    for _ in range(8):
        expected.append(int(mx.argmax(logits[0, -1])))
        logits = model(mx.array([expected[-1:]]), cache)
    assert minimal.generate(minimal.load(directory), prompt, 8) == expected
