"""The model: sizes, configuration, and the laws of its cache."""

import dataclasses
import json
import warnings
from functools import partial

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlx.utils import tree_flatten, tree_map, tree_map_with_path
from mlx_lm.models.cache import BatchKVCache

from mlx_gateloop.errors import InputError
from mlx_gateloop.model.lm import PRESETS, Model, ModelArgs, is_state_transition

VOCAB = 17
VARIANTS = {
    "paper": {},
    "fixed": {"transition": "fixed"},
    "polar_abs": {"gate": "polar_abs"},
    "real": {"gate": "real", "bias": False},
    "heads": {"num_heads": 2},
    "real heads": {"num_heads": 2, "gate": "real"},
    "output gate": {"output_gate": True, "tie_word_embeddings": True},
    "lucidrains": {
        "gate": "polar_abs", "transition_per": "head", "mixing_size": 12, "num_heads": 3,
        "norm": "rms", "sub_norm": True, "output_gate": True, "projection_bias": False,
        "head_bias": False,
    },
    "post norm": {"norm_position": "post", "final_norm": False},
    "gated rnn": {
        "gate": "real", "input_gate": "tied", "query_activation": "sigmoid", "mixing_size": 12,
        "value_activation": "tanh", "state_activation": "tanh", "activation": "gelu_tanh",
        "final_norm": False, "num_outputs": VOCAB,
    },
    "no key": {"gate": "real", "input_gate": "none"},
    "linear attention": {"transition": "linear_attention", "num_heads": 2},
    "retnet": {"transition": "retnet", "num_heads": 2, "output_gate": True},
    "lru": {"transition": "lru"},
    "s4d lin": {"transition": "s4d_lin"},
    "s4d inv": {"transition": "s4d_inv", "num_heads": 2},
    "s5": {"transition": "s5", "input_gate": "none"},
}  # fmt: skip
GROWING = {
    "attention": {"mixer": "softmax", "transition": "none", "num_heads": 2},
    "softmax": {"mixer": "softmax"},
    "softmax heads": {"mixer": "softmax", "num_heads": 2, "transition_per": "head"},
    "softmax real": {"mixer": "softmax", "num_heads": 2, "gate": "real", "output_gate": True},
    "softmax negative": {"mixer": "softmax", "num_heads": 4, "gate": "polar_abs"},
    "softmax retnet": {"mixer": "softmax", "num_heads": 2, "transition": "retnet"},
}


def tiny(**options):
    sizes = {"vocab_size": VOCAB, "hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 2}
    mx.random.seed(0)
    model = Model(ModelArgs(**sizes | options))
    model.eval()
    return model


@pytest.fixture(params=(VARIANTS | GROWING).values(), ids=(VARIANTS | GROWING).keys())
def model(request):
    return tiny(**request.param)


def tokens(length, batch=1, seed=0):
    return mx.array(np.random.default_rng(seed).integers(0, VOCAB, (batch, length)))


def close(actual, expected, atol=2e-5):
    np.testing.assert_allclose(actual, expected, atol=atol, rtol=1e-5)


def parameters(model):
    return tree_flatten(model.parameters(), destination={})


# Parameter counts: the paper's "125M" is the second reading.
@pytest.mark.parametrize(
    ("preset", "count", "millions"),
    [
        ("wikitext103", 114_267_217, 114.3),
        ("125m", 123_627_217, 123.6),
        ("demo", 3_880_448, 3.9),
        ("memory_horizon", 154_355, 0.2),
    ],
)
def test_parameter_counts(preset, count, millions):
    model = Model(PRESETS[preset])  # lazy: nothing of it is ever computed
    total = sum(w.size for w in parameters(model).values())
    assert total == count
    assert round(total / 1e6, 1) == millions


def test_memory_horizon_is_the_papers_table():
    args = PRESETS["memory_horizon"]
    assert (args.vocab_size, args.outputs, args.heads) == (6, 51, 64)
    assert Model(args)(mx.zeros((2, 3), mx.int32)).shape == (2, 3, 51)


def test_weight_names():
    names = set(parameters(tiny(output_gate=True)))
    layer = "model.layers.1."
    modules = ["time_norm", "channel_norm", "channel_mixing.up_proj", "channel_mixing.down_proj"]
    for name in ("q", "k", "v", "gamma", "theta", "gate", "out"):
        modules.append(f"time_mixing.{name}_proj")
    expected = {f"{layer}{m}.{kind}" for m in modules for kind in ("weight", "bias")}
    assert {n for n in names if n.startswith(layer)} == expected
    assert {n for n in names if ".layers." not in n} == {
        "model.embed_tokens.weight", "model.norm.weight", "model.norm.bias",
        "lm_head.weight", "lm_head.bias",
    }  # fmt: skip


def test_state_transition_paths():
    paths = {n for n in parameters(tiny()) if is_state_transition(n)}
    assert len(paths) == 2 * 2 * 2
    assert all("gamma_proj" in n or "theta_proj" in n for n in paths)
    fixed = {n.rsplit(".", 1)[1] for n in parameters(tiny(transition="fixed"))} & {"gamma", "theta"}
    assert fixed == {"gamma", "theta"}
    constant = {n for n in parameters(tiny(transition="lru")) if is_state_transition(n)}
    assert {n.rsplit(".", 1)[1] for n in constant} == {"nu", "theta", "log_scale"}
    assert is_state_transition("model.layers.0.time_mixing.gamma")
    assert not is_state_transition("model.layers.0.time_mixing.q_proj.weight")


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("vocab_size", 0, "greater than 0"),
        ("hidden_size", "3", "a valid integer"),
        ("hidden_size", 8.0, "a valid integer"),
        ("num_hidden_layers", True, "a valid integer"),
        ("num_heads", 7, "a divisor of hidden_size 624"),
        ("num_heads", -1, "greater than 0"),
        ("num_outputs", 0, "greater than 0"),
        ("mixer", "hyena", "'gate_loop' or 'softmax'"),
        (
            "transition",
            "learned",
            "'data_controlled', 'fixed', 'linear_attention', "
            "'retnet', 'lru', 's4d_lin', 's4d_inv', 's5' or 'none'",
        ),
        ("gate", None, "'polar', 'polar_abs' or 'real'"),
        ("gate", ["polar"], "'polar', 'polar_abs' or 'real'"),
        ("output_gate", 1, "a valid boolean"),
        ("dropout", 1.0, "less than 1"),
        ("dropout", True, "a valid number"),
        ("dropout", "0.5", "a valid number"),
        ("dropout", float("nan"), "a finite number"),
        ("hidden_size", float("inf"), "a valid integer"),
        ("layer_norm_eps", 0.0, "greater than 0"),
        ("model_type", "llama", "'gateloop'"),
        ("mixing_size", 0, "greater than 0"),
        ("head_bias", 1, "a valid boolean"),
        ("norm", "batch", "'layer', 'rms' or 'none'"),
        ("state_activation", "relu", "'identity', 'tanh' or 'sigmoid'"),
    ],
)
def test_impossible_values_are_named(key, value, expected):
    with pytest.raises(InputError) as error:
        ModelArgs.from_dict({key: value})
    assert str(error.value) == f"config: {key} must be {expected}, got {value!r}"


def test_an_unknown_argument_is_named():
    with pytest.raises(InputError, match=r"unknown key hiden_size .did you mean hidden_size"):
        ModelArgs(hiden_size=8)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"mixing_size": 9, "num_heads": 2}, "num_heads must be a divisor of mixing_size 9, got 2"),
        ({"num_heads": 2, "state_activation": "tanh"}, "state_activation must be 'identity'"),
        (
            {"transition": "lru", "gate": "real"},
            "gate must be 'polar' with transition 'lru', got 'real'",
        ),
        (
            {"transition": "s5", "longest_half_life": 9},
            "longest_half_life must be null with transition 's5', got 9",
        ),
        ({"transition": "retnet", "input_gate": "tied"}, "num_heads must be fewer"),
        ({"transition": "lru", "input_gate": "tied"}, "input_gate must be another"),
        ({"transition": "none"}, "transition must be 'linear_attention' for a = 1 with mixer"),
        (
            {"transition": "linear_attention", "mixer": "softmax"},
            "transition must be 'none' for a = 1 with mixer 'softmax', got 'linear_attention'",
        ),
        (
            {"mixer": "softmax", "state_activation": "tanh"},
            "state_activation must be 'identity' with mixer 'softmax', got 'tanh'",
        ),
        ({"gate": "polar_abs", "input_gate": "tied"}, "input_gate must be another"),
        ({"ablation": "transition", "input_gate": "tied"}, "input_gate must be another"),
        ({"mixing_size": 12, "output_projection": False}, "output_projection must be true"),
        ({"output_gate": True, "output_projection": False}, "output_projection must be true"),
    ],
)
def test_values_that_do_not_go_together_are_named(options, expected):
    with pytest.raises(InputError, match=f"^config: {expected}"):
        ModelArgs(hidden_size=8, **options)


@pytest.mark.parametrize("options", (VARIANTS | GROWING).values())
def test_a_config_comes_back_as_it_was(options):
    args = ModelArgs(**options)
    assert ModelArgs.from_dict(json.loads(json.dumps(dataclasses.asdict(args)))) == args


def test_the_ends_of_the_model_are_as_asked_for():
    names = set(parameters(tiny(norm="rms", head_bias=False)))
    assert {"model.norm.weight", "lm_head.weight"} <= names
    assert {"model.norm.bias", "lm_head.bias"}.isdisjoint(names)
    assert "model.norm.weight" not in parameters(tiny(final_norm=False))
    model = tiny(final_norm=False)
    x = model.model.embed_tokens(tokens(5))
    for layer in model.layers:
        x = layer(x)
    assert mx.array_equal(model(tokens(5)), model.lm_head(x))


@pytest.mark.parametrize(
    ("ablation", "unused"), [("phase", {"theta"}), ("transition", {"gamma", "theta"})]
)
def test_what_is_ablated_keeps_its_weights_and_counts_for_nothing(ablation, unused):
    model = tiny(ablation=ablation, gate="polar_abs", num_heads=2)
    assert parameters(model).keys() == parameters(tiny(gate="polar_abs")).keys()
    before = model(tokens(9))
    for layer in model.layers:
        for name in unused:
            layer.time_mixing[f"{name}_proj"].weight += 1
    assert mx.array_equal(model(tokens(9)), before)


def test_a_tied_head_is_as_wide_as_the_vocabulary():
    with pytest.raises(InputError, match="num_outputs must be vocab_size 6"):
        ModelArgs(vocab_size=6, num_outputs=5, tie_word_embeddings=True)


def test_replacing_a_size_takes_the_derived_ones_along():
    args = dataclasses.replace(PRESETS["demo"], vocab_size=300, hidden_size=64)
    assert (args.heads, args.outputs) == (64, 300)


def test_unknown_config_keys_are_named_in_one_warning():
    config = {"hidden_size": 8, "rope_theta": 1e4, "attention": True, "torch_dtype": "float32"}
    message = "config.json: ignoring unknown attention, rope_theta"
    with pytest.warns(UserWarning, match=f"^{message}$") as caught:
        args = ModelArgs.from_dict(config)
    assert len(caught) == 1
    assert args.hidden_size == 8


def test_keys_of_mlx_lm_and_transformers_pass_silently():
    keys = (
        "quantization quantization_config quantize_activations eos_token_id bos_token_id "
        "pad_token_id torch_dtype dtype architectures transformers_version"
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert ModelArgs.from_dict(dict.fromkeys(keys.split())) == ModelArgs()


@pytest.mark.parametrize("cuts", [[1], [32], [33, 34], [1, 2, 3, 50]])
def test_a_prompt_in_chunks_is_the_whole_prompt(model, cuts):
    prompt = tokens(70, batch=2)
    cache = model.make_cache()
    chunks = [model(part, cache) for part in mx.split(prompt, cuts, axis=1)]
    close(mx.concatenate(chunks, axis=1), model(prompt))


def test_decoding_step_by_step_is_the_full_forward(model):
    prompt = tokens(12)
    cache = model.make_cache()
    steps = [model(prompt[:, n : n + 1], cache) for n in range(12)]
    close(mx.concatenate(steps, axis=1), model(prompt))


@settings(deadline=None, max_examples=15)
@given(
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    chunk=st.integers(1, 10),
    left=st.booleans(),
)
def test_padding_and_batching_change_no_logits(lengths, chunk, left):
    model = tiny()
    width = max(lengths)
    padding = [width - n for n in lengths]
    prompts = [tokens(n, seed=n) for n in lengths]
    pads = [(0, 0), (1, 0)] if left else [(0, 0), (0, 1)]
    rows = [
        mx.pad(p, [(0, 0), tuple(n * side for side in pads[1])])
        for p, n in zip(prompts, padding, strict=True)
    ]
    cache = model.make_cache()
    for layer in cache:
        if left:
            layer.left_padding = mx.array(padding)
        else:
            layer.prepare(lengths=lengths)
    batch = mx.concatenate(rows)
    parts = [model(batch[:, n : n + chunk], cache) for n in range(0, width, chunk)]
    logits = mx.concatenate(parts, axis=1)
    for layer in cache:
        layer.finalize()
    following = model(tokens(1, batch=len(lengths), seed=99), cache)
    for row, (prompt, n) in enumerate(zip(prompts, padding, strict=True)):
        own = model.make_cache()
        alone = slice(n, None) if left else slice(0, width - n)
        close(logits[row : row + 1, alone], model(prompt, own))
        close(
            following[row : row + 1],
            model(tokens(1, batch=len(lengths), seed=99)[row : row + 1], own),
        )


@pytest.mark.parametrize("options", VARIANTS.values(), ids=VARIANTS.keys())
def test_the_cache_does_not_grow(options):
    model = tiny(**options)
    cache = model.make_cache()
    model(tokens(3), cache)
    before = [c[0].shape for c in cache]
    model(tokens(50), cache)
    assert [c[0].shape for c in cache] == before
    assert {c[0].dtype for c in cache} == {mx.float32}


@settings(deadline=None, max_examples=15)
@given(
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    chunk=st.integers(1, 10),
    left=st.booleans(),
    variant=st.sampled_from(list(GROWING.values())),
)
def test_padding_and_batching_change_no_logits_of_attention(lengths, chunk, left, variant):
    model = tiny(**variant)
    width = max(lengths)
    padding = [width - n for n in lengths]
    prompts = [tokens(n, seed=n) for n in lengths]
    sides = [(p, 0) if left else (0, p) for p in padding]
    batch = mx.concatenate(
        [mx.pad(p, [(0, 0), side]) for p, side in zip(prompts, sides, strict=True)]
    )
    cache = [BatchKVCache(padding if left else [0] * len(lengths)) for _ in model.layers]
    for layer in cache:
        layer.prepare(lengths=lengths, right_padding=None if left else padding)
    parts = [model(batch[:, n : n + chunk], cache) for n in range(0, width, chunk)]
    logits = mx.concatenate(parts, axis=1)
    for layer in cache:
        layer.finalize()
    new = tokens(1, batch=len(lengths), seed=99)
    following = model(new, cache)
    for row, (prompt, n) in enumerate(zip(prompts, padding, strict=True)):
        own = model.make_cache()
        alone = slice(n, None) if left else slice(0, width - n)
        close(logits[row : row + 1, alone], model(prompt, own))
        close(following[row : row + 1], model(new[row : row + 1], own))


def test_a_quantized_cache_is_refused_in_one_line():
    model = tiny(hidden_size=64, num_heads=1, mixer="softmax", transition="none")
    cache = model.make_cache()
    model(tokens(3), cache)
    with pytest.raises(InputError, match=r"^kv_bits: .* leave it out$"):
        model(tokens(1), [layer.to_quantized(group_size=64, bits=8) for layer in cache])


def test_layers_share_one_count_of_padding():
    model = tiny(num_hidden_layers=3)
    cache = model.make_cache()
    for layer in cache:
        layer.prepare(lengths=[2, 5])
    model(tokens(3, batch=2), cache)
    assert cache[0].lengths.tolist() == [0, 2]
    assert all(layer.lengths is cache[0].lengths for layer in cache)


def test_decoding_holds_no_more_memory_with_every_token():
    model = tiny(num_hidden_layers=3)
    cache = model.make_cache()
    for layer in cache:
        layer.left_padding = mx.array([0, 1])
    held = []
    for _ in range(60):
        mx.eval(model(tokens(1, batch=2), cache))
        held.append(mx.get_active_memory())
    assert max(held[20:]) <= max(held[:20])


@pytest.mark.parametrize(("length", "batch"), [(0, 1), (1, 0)])
def test_empty_input_gives_empty_logits(length, batch):
    model = tiny()
    prompt = mx.zeros((batch, length), mx.int32)
    assert model(prompt).shape == (batch, length, VOCAB)


@pytest.mark.parametrize(("dtype", "atol"), [(mx.float16, 0.02), (mx.bfloat16, 0.15)])
def test_half_precision_weights_stay_close(dtype, atol):
    model = tiny()
    prompt = tokens(40)
    exact = model(prompt)
    model.update(
        tree_map_with_path(
            lambda path, w: w.astype(dtype) if model.cast_predicate(path) else w,
            model.parameters(),
        )
    )
    kept = {n for n, w in parameters(model).items() if w.dtype == mx.float32}
    assert kept == {n for n in parameters(model) if is_state_transition(n)}
    logits = model(prompt)
    assert logits.dtype == dtype
    close(logits.astype(mx.float32), exact, atol)


def test_sanitize_keeps_transitions_float32_and_drops_a_tied_head():
    model = tiny(tie_word_embeddings=True)
    weights = {n: w.astype(mx.bfloat16) for n, w in parameters(model).items()}
    clean = model.sanitize(weights | {"lm_head.weight": mx.zeros((1,))})
    assert clean.keys() == weights.keys()
    for name, weight in clean.items():
        assert weight.dtype == (mx.float32 if is_state_transition(name) else mx.bfloat16)


def test_a_compiled_training_step_learns(model):
    model.train()
    batch, targets = tokens(40, batch=2), tokens(40, batch=2, seed=1)
    state = [model.state]

    def loss(inputs, targets):
        return nn.losses.cross_entropy(model(inputs), targets, reduction="mean")

    @partial(mx.compile, inputs=state, outputs=state)
    def step(inputs, targets):
        value, gradients = nn.value_and_grad(model, loss)(inputs, targets)
        model.update(tree_map(lambda w, g: w - 0.05 * g, model.parameters(), gradients))
        return value, gradients

    plain, _ = nn.value_and_grad(model, loss)(batch, targets)
    first, gradients = step(batch, targets)
    mx.eval(state)
    close(first, plain)
    flat = tree_flatten(gradients, destination={})
    assert flat.keys() == parameters(model).keys()
    for name, gradient in flat.items():
        assert np.isfinite(np.array(gradient)).all(), name
        assert mx.any(gradient != 0), name
    assert step(batch, targets)[0] < first


def test_dropout_is_off_in_evaluation():
    model = tiny(dropout=0.5)
    prompt = tokens(9)
    assert mx.array_equal(model(prompt), model(prompt))
    model.train()
    assert not mx.array_equal(model(prompt), model(prompt))
