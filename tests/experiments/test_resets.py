import numpy as np
import pytest
from helpers.experiments import cells
from helpers.traces import trace_with

from mlx_gateloop.data.task import Samples
from mlx_gateloop.experiments import resets
from mlx_gateloop.model.lm import Model, ModelArgs

MARKER = 9
INPUTS = np.array([[9, 1, 2, 9], [3, 9, 9, 4]], np.int32)
SAMPLES = Samples(INPUTS, INPUTS, INPUTS)
# |a| in two layers and three channels, at the marker and elsewhere
AT = np.array([[0.09, 0.09, 0.11], [0.5, 0.5, 0.09]])
ELSEWHERE = np.array([[0.81, 0.79, 0.81], [0.5, 0.9, 0.81]])


@pytest.fixture
def model(monkeypatch):
    """Its transitions follow the tokens, shaken by noise whose mean is none."""

    def trace_of(_, tokens):
        columns = np.zeros((4, 2, len(tokens), 3), np.float32)
        magnitudes = np.where((tokens == MARKER)[None, :, None], AT[:, None], ELSEWHERE[:, None])
        noise = 0.05 * np.where(np.arange(len(tokens)) < 2, 1, -1)
        columns[0] = -np.log(magnitudes + noise[None, :, None])
        return trace_with(columns)

    monkeypatch.setattr(resets, "trace_of", trace_of)
    return "gateloop"


def test_channels_that_let_go_at_the_marker_and_hold_on_elsewhere_are_counted(model):
    found = resets.mean_magnitudes(model, SAMPLES, MARKER)
    assert found["at_marker"] == pytest.approx(AT)
    assert found["elsewhere"] == pytest.approx(ELSEWHERE)
    assert found["resetting"] == [1, 1]


@pytest.mark.usefixtures("model")
@pytest.mark.parametrize("inputs", [np.ones((2, 4)), np.full((2, 4), MARKER)])
def test_nothing_to_compare(inputs):
    assert resets.mean_magnitudes("gateloop", Samples(inputs, inputs, inputs), MARKER) is None


def test_softmax_without_positions_has_no_transitions():
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1}
    model = Model(ModelArgs(vocab_size=10, mixer="softmax", transition="none", **sizes))
    assert resets.mean_magnitudes(model, SAMPLES, MARKER) is None


def test_channels_that_reset_are_counted():
    counts = {"data_controlled": [[1, 0], [0, 0], [0, 2]], "fixed": [[0, 0]]}
    runs = {m: [{"magnitudes": {"resetting": n}} for n in c] for m, c in counts.items()}
    runs["real_gates"] = [{"magnitudes": None}]
    *_, table = resets.report_resets(runs)
    rows = cells(table)[2:]
    assert rows == [["data-controlled", "2 of 3", "1, 0; 0, 0; 0, 2"], ["fixed", "0 of 1", "0, 0"]]
    assert resets.report_resets({"real_gates": runs["real_gates"]}) == []
