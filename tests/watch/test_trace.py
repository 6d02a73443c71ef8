"""What is recorded is what the layers did, and what is said of it follows from the definition."""

import mlx.core as mx
import numpy as np
import pytest
from helpers.models import tiny_model

from mlx_gateloop.ops import Transition
from mlx_gateloop.ops.attention import decay
from mlx_gateloop.watch import Recorder, Trace, recording, total_bytes, trace_of
from mlx_gateloop.watch.trace import BLOCK, HIGH, LOW, RATE

LAYERS, CHANNELS = 2, 8


def model(**options):
    sizes = {"hidden_size": CHANNELS, "intermediate_size": 8, "num_hidden_layers": LAYERS}
    return tiny_model(**{"vocab_size": 11} | sizes | options)


def read(made, tokens, caches, recorder):
    logits = made(mx.array([tokens]), caches)
    mx.eval(logits, recorder.step())
    recorder.take()
    return logits


def transitions(made, tokens):
    """Queries, keys and complex transitions of every layer, taken from the layers themselves."""
    x, found = made.model.embed_tokens(mx.array([tokens])), []
    for block in made.layers:
        mixing, normed = block.time_mixing, block.time_norm(x)
        shape = mixing._heads(mixing.q_proj(normed)).shape
        planes = [
            np.array(mx.broadcast_to(p, shape))[0] for p in mixing.transition(normed).planes()
        ]
        a = planes[0] + 1j * (planes[1] if len(planes) == 2 else 0)
        q, k = (np.array(p(normed))[0] for p in (mixing.q_proj, mixing.k_proj))
        found.append((q, k, a.reshape(len(tokens), -1)))
        x = block(x)
    return found


def random_trace(tokens, seed=0, layers=LAYERS, channels=CHANNELS):
    chance, trace = np.random.default_rng(seed), Trace(layers, channels)
    columns = chance.normal(size=(4, layers, tokens, channels)).astype(np.float32)
    columns[0] = np.abs(columns[0])
    trace.append(columns)
    return trace, columns


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"transition": "fixed"},
        {"gate": "polar_abs"},
        {"gate": "real"},
        {"num_heads": 2},
        {"num_heads": 2, "transition": "fixed"},
        {"num_heads": 2, "transition_per": "head"},
        {"num_heads": 2, "transition_per": "head", "transition": "fixed"},
        {"num_heads": 2, "transition": "retnet"},
        {"transition": "lru"},
        {"num_heads": 2, "mixer": "softmax"},
    ],
)
def test_the_record_is_the_layers_transition(options):
    made, tokens = model(**options), [1, 5, 2, 2, 7, 0, 10]
    caches, recorder = recording(made)
    logits = read(made, tokens[:4], caches, recorder)
    read(made, tokens[4:5], caches, recorder)
    read(made, tokens[5:], caches, recorder)
    assert recorder.trace.tokens == len(tokens)
    for layer, (_, _, a) in enumerate(transitions(made, tokens)):
        magnitude, phase = recorder.trace.magnitude(layer), recorder.trace.phase(layer)
        assert magnitude == pytest.approx(np.abs(a), abs=1e-6)
        assert magnitude * np.exp(1j * phase) == pytest.approx(a, abs=2e-6)
        assert (np.abs(phase) <= np.float32(np.pi)).all()
    # and it changes nothing
    assert mx.array_equal(logits, made(mx.array([tokens[:4]]), made.make_cache()))


@pytest.mark.parametrize("options", [{}, {"num_heads": 2}])
def test_remembered_is_surrogate_attention(options):
    made, tokens = model(**options), [3, 1, 4, 1, 5, 9, 2, 6]
    caches, recorder = recording(made)
    read(made, tokens, caches, recorder)
    for layer, (q, k, a) in enumerate(transitions(made, tokens)):
        for n in range(len(tokens)):
            magnitude, full = recorder.trace.remembered(layer, n)
            for m in range(n + 1):
                left = np.prod(a[m + 1 : n + 1], axis=0)
                assert magnitude[m] == pytest.approx(np.abs(left).mean(), rel=1e-5)
                expected = (q[n] * left * k[m]).real.sum()
                assert full[m] == pytest.approx(expected, rel=1e-4, abs=1e-5)


def test_remembered_agrees_with_the_operators_attention():
    made, tokens = model(), [3, 1, 4, 1, 5, 9, 2, 6]
    caches, recorder = recording(made)
    read(made, tokens, caches, recorder)
    q, k, a = transitions(made, tokens)[0]
    planes = tuple(mx.array(p.astype(np.float32))[None, :, :, None] for p in (a.real, a.imag))
    real = np.array(decay(planes)[0])[0, -1, :, :, 0]
    expected = (q[-1] * real * k).sum(-1)
    assert recorder.trace.remembered(0, len(tokens) - 1)[1] == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("extreme", [-200.0, -20.0, 20.0, 60.0])
def test_extreme_gates_are_exact(extreme):
    trace, gamma = Trace(1, 1), mx.full((1, 1, 1), extreme)
    recorder = Recorder(trace)
    recorder.report(gamma, gamma, Transition.sigmoid(gamma, gamma))
    recorder.step()
    recorder.take()
    rate = -np.log(trace.magnitude(0).astype(np.float64)) if extreme > -80 else -extreme
    stored = trace._read(RATE, 0, 0, 1)[0, 0]
    assert stored == pytest.approx(np.logaddexp(0.0, -extreme), rel=1e-5)
    assert rate == pytest.approx(np.logaddexp(0.0, -extreme), rel=1e-4, abs=1e-7)


def test_a_reset_forgets_everything_before_it():
    trace = Trace(1, 2)
    recorder = Recorder(trace)
    a = mx.array([[[0.9, 0.9], [0.9, 0.5], [0.0, 0.0], [0.8, 0.8]]])
    ones = mx.ones(a.shape)
    recorder.report(ones, ones, Transition.of(a))
    recorder.step()
    recorder.take()
    magnitude, full = trace.remembered(0, 3)
    assert magnitude == pytest.approx([0, 0, 0.8, 1.0])
    assert full == pytest.approx([0, 0, 1.6, 2.0])


def test_resets_are_tokens_where_remembering_channels_forget():
    columns = np.full((4, 2, 100, 8), 0.01, np.float32)
    columns[0, :, 40] = 5  # all channels forget
    columns[0, :, 60, :3] = 5  # 3 of 8
    columns[0, :, 70, :1] = 5  # 1 of 8
    columns[0, 1, :, 4:] = 3  # these never remember: they don't count
    trace = Trace(2, 8)
    trace.append(columns)
    assert trace.resets().tolist() == [40, 60]
    assert trace.resets(share=0.6).tolist() == [40]
    assert trace.resets(layer=1).tolist() == [40, 60, 70]
    assert trace.resets(layer=1, share=0.3).tolist() == [40, 60]
    assert trace.resets(layer=0, share=0.1).tolist() == [40, 60, 70]
    assert Trace(2, 8).resets().tolist() == []


def test_columns_keep_long_products():
    # Half-lives from a fraction of a token to thousands, over as many tokens.
    rates = np.geomspace(LOW * 2, HIGH / 2, 64, dtype=np.float32)
    columns = np.zeros((4, 1, 1024, 64), np.float32)
    columns[0] = rates
    columns[1] = np.linspace(-np.pi, np.pi, 64)
    trace = Trace(1, 64)
    trace.append(columns)
    written = trace.columns(0)
    assert written.shape == (1024, 2, 64)
    assert written.dtype == np.uint8
    read_back = LOW * (HIGH / LOW) ** (written[:, 0] / 255)
    assert np.exp(-read_back.sum(0)) == pytest.approx(np.exp(-1024 * rates), abs=0.015)
    phase = (written[0, 1] / 255 * 2 - 1) * np.pi
    assert phase == pytest.approx(columns[1, 0, 0], abs=np.pi / 255)


def test_slices_across_blocks():
    trace, columns = random_trace(3 * BLOCK + 5)
    for start, stop in [(0, None), (BLOCK - 1, BLOCK + 1), (BLOCK, 2 * BLOCK), (7, 7), (190, 999)]:
        part = columns[:, 1, start:stop]
        assert np.array_equal(trace.phase(1, start, stop), part[1])
        assert trace.magnitude(1, start, stop) == pytest.approx(np.exp(-part[0]))
        assert len(trace.columns(1, start, stop)) == part.shape[1]
    means = np.exp(-columns[0]).mean(-1).T
    assert trace.averages() == pytest.approx(means, abs=1e-6)
    assert trace.averages(BLOCK + 1) == pytest.approx(means[BLOCK + 1 :], abs=1e-6)


@pytest.mark.parametrize("at", [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK + 3])
def test_branches_share_and_stay_apart(at):
    trace, columns = random_trace(2 * BLOCK + 3)
    branch = trace.branch(at)
    other, more = random_trace(BLOCK, seed=1)
    branch.append(more)
    trace.append(other.branch(1)._blocks[0][:, :, :1])
    assert branch.tokens == at + BLOCK
    assert np.array_equal(branch.phase(0, 0, at), columns[1, 0, :at])
    assert np.array_equal(branch.phase(0, at), more[1, 0])
    assert np.array_equal(trace.phase(0, 0, 2 * BLOCK + 3), columns[1, 0])
    alone = total_bytes([trace]) + total_bytes([branch])
    shared = at // BLOCK * BLOCK * trace.bytes_per_token
    assert total_bytes([trace, None, branch]) == alone - shared


def test_saved_file(tmp_path):
    trace, columns = random_trace(5)
    trace.save(tmp_path / "trace.npz", ["a", "é", "", "\n", "<b>"])
    with np.load(tmp_path / "trace.npz") as file:
        assert file["texts"].tolist() == ["a", "é", "", "\n", "<b>"]
        assert file["magnitude"] == pytest.approx(np.exp(-columns[0]))
        assert np.array_equal(file["phase"], columns[1])
        assert file["averages"].shape == (5, LAYERS)


def test_a_full_trace_takes_no_more_and_a_dropped_step_none():
    made = model()
    caches, recorder = recording(made, most=3)
    read(made, [1, 2], caches, recorder)
    made(mx.array([[3]]), caches)
    recorder.step()
    recorder.drop()
    assert recorder.trace.tokens == 2
    fill = []
    for token in (4, 5, 6):
        read(made, [token], caches, recorder)
        fill.append((recorder.trace.tokens, recorder.trace.full))
    assert fill == [(3, False), (3, True), (3, True)]
    expected = transitions(made, [1, 2])[0][2]
    assert recorder.trace.magnitude(0, 0, 2) == pytest.approx(np.abs(expected), abs=1e-6)


def test_the_trace_of_a_sequence_is_read_at_once():
    made, tokens = model(), [1, 5, 2, 2, 7]
    trace = trace_of(made, np.array(tokens, np.int32))
    assert trace.tokens == 5
    for layer, (_, _, expected) in enumerate(transitions(made, tokens)):
        a = trace.magnitude(layer) * np.exp(1j * trace.phase(layer))
        assert a == pytest.approx(expected, abs=1e-5)


def test_the_trace_of_a_model_without_transitions_is_empty():
    made = model(mixer="softmax", transition="none")
    assert trace_of(made, np.array([1, 2])).tokens == 0
