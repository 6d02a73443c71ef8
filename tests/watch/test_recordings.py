"""Recordings of mlx-lm's recurrent models: the model's own decays, and nothing else changes."""

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib import import_module

import mlx.core as mx
import numpy as np
import pytest
from helpers.family import family_model
from helpers.models import GROWING, VARIANTS, close, tiny_model, tokens
from helpers.recurrent import parts, recurrent_model, response, spy
from mlx_lm.generate import generate_step
from mlx_lm.models.cache import ArraysCache, make_prompt_cache

import mlx_gateloop as gl
from mlx_gateloop.ops import Transition
from mlx_gateloop.watch import recordings
from mlx_gateloop.watch.hooks import Report, report_of, rnn_scan
from mlx_gateloop.watch.layer import columns_of

PROMPT, ANSWER = [5, 6, 7, 8, 9, 3, 1, 2, 4], 5
KINDS = {
    "delta rule": (
        "qwen3_next", "qwen3_5", "olmo_hybrid", "kimi_linear", "kimi_k3", "bailing_moe_v3",
    ),
    "state space": ("mamba2", "falcon_h1", "granitemoehybrid", "nemotron_h", "plamo2"),
    "gated channels": ("recurrent_gemma",), "rwkv": ("rwkv7",),
    "selective scan": ("mamba", "falcon_mamba", "jamba"),
    "constant slopes": ("bailing_moe_linear", "bailing_hybrid"),
    "gate loop": ("gla", "hgrn2", "hgrn"),
}  # fmt: skip
TYPES = [(name, kind) for kind, names in KINDS.items() for name in names]


def generate(model, cache=None):
    """Tokens and log probabilities; the prompt is read in chunks of four tokens."""
    cache = model.make_cache() if cache is None else cache
    steps = generate_step(
        mx.array(PROMPT), model, max_tokens=ANSWER, prompt_cache=cache, prefill_step_size=4
    )
    return [(token, np.array(chances)) for token, chances in steps]


def same(left, right):
    return all(a == b and np.array_equal(c, d) for (a, c), (b, d) in zip(left, right, strict=True))


@pytest.mark.parametrize(("name", "kind"), TYPES)
def test_a_recording_is_what_the_layers_did(name, kind, monkeypatch):
    model = recurrent_model(name)
    plain, before = generate(model), parts(model)
    calls = spy(monkeypatch, model)
    with gl.watch.recording(model) as recorder:
        watched = generate(model)
    assert same(plain, watched)
    assert parts(model) == before
    trace = recorder.trace
    assert trace.tokens == len(PROMPT) + ANSWER
    assert recorder.tokens.tolist() == PROMPT + [token for token, _ in plain]
    assert set(trace.kinds) == {kind}
    assert all(path in before for path in trace.names)
    for layer, made in enumerate(calls(trace.layers)):
        check(trace, layer, made)


def check(trace, layer, calls):
    """The rows of what is left, against the recurrence itself with one token that writes."""
    magnitude = trace.magnitude(layer).astype(np.float64)
    expected = np.array([response(calls, m) for m in range(trace.tokens)])
    for n in (0, 3, trace.tokens - 1):
        mean, full = trace.remembered(layer, n)
        left = [magnitude[m + 1 : n + 1].prod(0).mean() for m in range(n + 1)]
        assert mean == pytest.approx(left, rel=1e-4)
        size = float(np.abs(expected[: n + 1, n]).max())
        assert full == pytest.approx(expected[: n + 1, n], rel=1e-4, abs=1e-5 * size)


def left_padded(model, tokens):
    cache = make_prompt_cache(model)
    for entry in cache:
        if isinstance(entry, ArraysCache):
            entry.left_padding = mx.array([tokens])
    return cache


@pytest.mark.parametrize("made", [
    partial(recurrent_model, "mamba2"), partial(recurrent_model, "qwen3_5"),
    partial(tiny_model, vocab_size=50),
    partial(tiny_model, vocab_size=50, transition_per="head", num_heads=2),
    partial(tiny_model, vocab_size=50, gate="real", transition="fixed"),
    partial(tiny_model, vocab_size=50, transition="retnet", num_heads=2),
])  # fmt: skip
def test_left_padding_neither_decays_nor_writes(made):
    model = made()
    with gl.watch.recording(model) as recorder:
        model(mx.array([PROMPT]), left_padded(model, 3))
    trace = recorder.trace
    assert (trace.magnitude(0)[:3] == 1).all()
    assert (trace.magnitude(0)[3:] < 1).all()
    assert (trace.phase(0)[:3] == 0).all()
    assert (trace.remembered(0, 8)[1][:3] == 0).all()
    with gl.watch.recording(model) as recorder:  # a cache may have padding only now and then
        model(mx.array([PROMPT]))
        model(mx.array([PROMPT]), left_padded(model, 3))
        model(mx.array([PROMPT]))
    assert recorder.trace.tokens == len(recorder.tokens) == 3 * len(PROMPT)
    assert (recorder.trace.retention(3 * len(PROMPT) - 1)[len(PROMPT) :][:3] == 0).all()


def transitions(made, tokens):
    """Queries, keys and complex transitions of every layer, taken from the layers themselves."""
    x, found = made.model.embed_tokens(mx.array([tokens])), []
    for block in made.layers:
        mixing, normed = block.time_mixing, block.time_norm(x)
        q, k, _, a = mixing._inputs(normed, mixing.project(normed))
        planes = [np.array(mx.broadcast_to(plane, q.shape)) for plane in a.planes()]
        a = planes[0] + 1j * (planes[1] if len(planes) == 2 else 0)
        found.append([np.array(part).reshape(len(tokens), -1) for part in (q, k, a)])
        x = block(x)
    return found


HEADS = {"num_heads": 2}
FROM_NORMED = [VARIANTS[name] for name in VARIANTS if name not in ("post norm", "convolution")]


@pytest.mark.parametrize("options", [
    *FROM_NORMED, HEADS | {"transition": "fixed"}, HEADS | {"mixer": "softmax"},
    HEADS | {"transition_per": "head", "transition": "fixed"},
])  # fmt: skip
def test_the_recording_of_our_model_is_its_transitions(options):
    model = tiny_model(**options | {"vocab_size": 50, "num_outputs": None, "dropout": 0.5})
    plain, before = generate(model), parts(model)
    with gl.watch.recording(model) as recorder:
        assert same(generate(model), plain)
    assert parts(model) == before
    tokens, trace = PROMPT + [token for token, _ in plain], recorder.trace
    assert trace.names == ("model.layers.0.time_mixing", "model.layers.1.time_mixing")
    for layer, (q, k, a) in enumerate(transitions(model, tokens)):
        found = trace.magnitude(layer) * np.exp(1j * trace.phase(layer))
        assert found == pytest.approx(a, abs=1e-5)
        assert (np.abs(trace.phase(layer)) <= np.float32(np.pi)).all()
        magnitude, full = trace.remembered(layer, 9)
        for m in range(10):
            left = np.prod(a[m + 1 : 10], axis=0)
            assert magnitude[m] == pytest.approx(np.abs(left).mean(), rel=1e-4)
            assert full[m] == pytest.approx((q[9] * left * k[m]).real.sum(), rel=1e-3, abs=1e-5)
    at_once = gl.watch.trace_of(model.train(), np.array(tokens))
    assert at_once.magnitude(1) == pytest.approx(trace.magnitude(1), abs=1e-5)
    with gl.watch.recording(model) as recorder:
        model(mx.zeros((1, 0), mx.int32))
        assert recorder.trace.tokens == 0
        model(tokens=mx.array([tokens]))
    assert [*recorder.tokens] == tokens


@pytest.mark.parametrize("extreme", [-200.0, -20.0, 20.0, 60.0])
def test_extreme_gates_are_exact(extreme):
    gamma = mx.full((1, 1, 1), extreme)
    columns = columns_of(Report("", Transition.sigmoid(gamma, gamma), {}), 0)
    assert columns.rate == pytest.approx(np.logaddexp(0.0, -extreme), rel=1e-5)
    assert np.exp(1j * columns.phase) == pytest.approx(np.exp(1j * extreme), abs=1e-5)
    assert np.isinf(columns_of(rnn_scan({"a": 0 * gamma}, {}, None), 0).rate).all()


OURS = ("paper", "fixed", "real heads", "lru", "attention", "softmax heads", "softmax retnet")
MAKE = {names[0]: partial(recurrent_model, names[0]) for names in KINDS.values()}
MAKE |= {
    f"ours, {name}": partial(tiny_model, **{**(VARIANTS | GROWING)[name], "vocab_size": 50})
    for name in OURS
}


@pytest.mark.parametrize("name", MAKE)
def test_a_model_is_recorded_in_another_thread_and_read_while_it_generates(name):
    model = MAKE[name]()
    with gl.watch.recording(model) as alone:
        plain = generate(model)
    expected = alone.trace
    with gl.watch.recording(model) as recorder, ThreadPoolExecutor(1) as pool:
        for times in (1, 2):
            running = pool.submit(generate, model)
            while not running.done():
                trace = recorder.trace  # while the other thread generates
                for layer in range(trace.layers):
                    assert (trace.magnitude(layer) > 0).all()
            assert same(running.result(), plain)
            assert recorder.trace.tokens == len(recorder.tokens) == times * expected.tokens
    assert recorder.trace.names == expected.names
    assert expected.layers > 0 or name == "ours, attention"
    for layer in range(expected.layers):
        magnitude = recorder.trace.magnitude(layer)[expected.tokens :]
        assert magnitude == pytest.approx(expected.magnitude(layer), rel=1e-5)


@pytest.mark.parametrize("name", [*MAKE, "bailing_hybrid"])
def test_the_last_tokens_of_a_pass_are_dropped(name):
    model, traces = MAKE.get(name, partial(recurrent_model, name))(), []
    for text in (PROMPT[:5], PROMPT):
        with gl.watch.recording(model) as recorder:
            model(mx.array([text]), left_padded(model, 2))
            if len(text) > 5:
                recorder.drop(len(text) - 5)
        assert recorder.tokens.tolist() == PROMPT[: recorder.trace.tokens]
        traces.append(recorder.trace)
    expected, trace = traces
    assert (trace.names, trace.tokens) == (expected.names, expected.tokens)
    for layer in range(trace.layers):
        for found, wanted in zip(*(t.remembered(layer, 4) for t in traces), strict=True):
            assert found == pytest.approx(wanted, rel=1e-4, abs=1e-6)


def test_a_pass_that_cannot_be_reported_ends_the_recording_and_keeps_what_was_before(monkeypatch):
    model, reports = recurrent_model("mamba2"), []

    def report(calls):
        reports.append(report_of(calls))
        if len(reports) > 2:
            raise RuntimeError("no stream")
        return reports[-1]

    monkeypatch.setattr(recordings, "report_of", report)
    with gl.watch.recording(model) as recorder:
        for _ in range(2):
            model(mx.array([PROMPT]), model.make_cache())
            assert recorder.trace.tokens == len(PROMPT)
        model(mx.array([PROMPT]), model.make_cache())
    assert (recorder.trace.layers, recorder.trace.tokens) == (2, len(PROMPT))
    (reason,) = recorder.unwatched.values()
    assert reason == "not watched: recorded up to token 9: RuntimeError: no stream"


@pytest.mark.parametrize(("name", "layers", "paths"), [
    ("qwen3_5", 3, ["language_model.model.layers.3.self_attn"]),
    ("llama", 0, ["model.layers.0.self_attn", "model.layers.1.self_attn"]),
])  # fmt: skip
def test_attention_is_named_and_not_watched(name, layers, paths):
    model = recurrent_model(name)
    with gl.watch.recording(model) as recorder:
        assert len(generate(model, make_prompt_cache(model))) == ANSWER
    assert recorder.trace.layers == layers
    assert list(recorder.unwatched) == paths
    assert all(line.startswith("not watched: attention") for line in recorder.unwatched.values())


@pytest.mark.parametrize(("change", "reason"), [
    (lambda f: lambda *a, **o: f(*a, **o), "KeyError"), (partial, "AttributeError"),
])  # fmt: skip
def test_an_mlx_lm_that_changed_is_not_watched_and_still_runs(change, reason, monkeypatch):
    model = recurrent_model("mamba2")
    module = import_module("mlx_lm.models.mamba2")
    monkeypatch.setattr(module, "ssm_update", change(module.ssm_update))
    plain = generate(model)
    with gl.watch.recording(model) as recorder:
        assert same(generate(model), plain)
    assert recorder.trace.layers == 0
    assert recorder.unwatched["backbone.layers.0.mixer"].startswith(f"not watched: {reason}")


def test_a_batch_is_not_watched_and_still_runs():
    model, both = recurrent_model("mamba2"), mx.array([PROMPT, PROMPT])
    columns = []
    for batches in ([both], [both[:1], both[1:]], [both[:1], both, both[1:]]):
        with gl.watch.recording(model) as recorder:
            for batch in batches:
                model(batch, model.make_cache())
        columns += [recorder.trace.columns(layer) for layer in range(recorder.trace.layers)]
        assert all("a batch of 2" in reason for reason in recorder.unwatched.values())
        assert len(recorder.unwatched) == (0 if len(batches) == 2 else 2)
    assert len(columns) == 4  # none of a batch alone
    assert all((columns[layer] == columns[2 + layer]).all() for layer in range(2))


def test_compiled_layers_are_not_watched_and_keep_no_tap():
    model = recurrent_model("mamba2")
    x = mx.random.normal((1, 1, 32))
    with gl.watch.recording(model) as recorder:
        compiled = mx.compile(lambda x: model.backbone.layers[1](x, None, None))
        mx.eval(compiled(x))
        model(mx.array([PROMPT]), model.make_cache())
    assert recorder.trace.names == ("backbone.layers.0.mixer", "backbone.layers.1.mixer")
    mx.eval(compiled(mx.random.normal((1, 2, 32))))
    assert recorder.trace.tokens == len(PROMPT)


@pytest.mark.parametrize("name", ["mamba2", "ours, paper"])
def test_a_compiled_model_ends_the_recording_and_keeps_what_was_before(name):
    model = MAKE[name]()
    with gl.watch.recording(model) as recorder:
        for _ in range(2):
            model(mx.array([PROMPT]), model.make_cache())
        mx.eval(mx.compile(lambda tokens: model(tokens))(mx.array([PROMPT])))
        model(mx.array([PROMPT]), model.make_cache())
    assert recorder.trace.tokens == len(recorder.tokens) == 2 * len(PROMPT)
    assert any("recorded up to token 18: " in reason for reason in recorder.unwatched.values())


@pytest.mark.parametrize("earlier", [True, False])
def test_layers_whose_decoding_is_compiled_are_not_watched(earlier, monkeypatch):
    monkeypatch.setattr(mx.metal, "is_available", lambda: True)  # kimi_k3 compiles for it alone
    model = recurrent_model("kimi_k3")
    plain = generate(recurrent_model("kimi_k3"))
    if earlier:
        generate(model)
    with gl.watch.recording(model) as recorder:
        assert same(generate(model), plain)
    assert recorder.trace.tokens == (0 if earlier else len(PROMPT) - 1)
    assert "compile" in recorder.unwatched["language_model.model.layers.0.self_attn"]
    assert same(generate(model), plain)


OURS = {"plain": {}, "real cartesian": {"gate": "polar_abs", "ablation": "phase"}}
OURS |= {name: how for name, how in GROWING.items() if how.get("transition") != "none"}


@pytest.mark.parametrize("name", [*KINDS["gate loop"], *OURS])
def test_documents_before_are_neither_kept_nor_edited(name):
    model = tiny_model(**OURS[name]) if name in OURS else family_model(name)
    text, starts = tokens(5), mx.arange(5)[None] == 3
    with gl.watch.recording(model) as recorder:
        whole = model(text, None, starts)
    kept = recorder.trace.retention(4)
    assert kept[:3].max() == 0 < kept[3:].min()
    for change in () if name in GROWING else ({"write": 0}, {"keep": 0.5}):
        with gl.watch.edit(model, gl.watch.Edit(tokens=[1, 3], **change)):
            edited = model(text, None, starts)
        with gl.watch.edit(model, gl.watch.Edit(tokens=[0], **change)):
            close(edited[:, 3:], model(text[:, 3:]))
        assert mx.abs(edited - whole).max() > 1e-4
