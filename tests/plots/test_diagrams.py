from itertools import pairwise

import numpy as np
import pytest

from mlx_gateloop.plots.diagrams import amplitude_activations, combinations, parallel_scan


@pytest.mark.parametrize("elements", [1, 2, 7, 8, 9])
def test_in_the_end_every_element_spans_all_before_it(elements):
    rows = combinations(elements)
    assert len(rows) == 1 + int(np.ceil(np.log2(elements)))
    assert all(first == 0 for first, _ in rows[-1])
    for before, after in pairwise(rows):
        for element, (first, partner) in enumerate(after):
            if partner is None:
                assert first == before[element][0]
            else:  # neighbouring spans, so that their combination is one span
                assert before[element][0] == partner + 1
                assert first == before[partner][0]


def test_amplitudes_are_the_operators_and_centred_at_a_half(tmp_path, plotted):
    amplitude_activations(tmp_path / "a.png")
    ((x, sigmoid),) = plotted["sigmoid (GateLoop)"]
    np.testing.assert_allclose(sigmoid, 1 / (1 + np.exp(-x)), rtol=1e-5)
    ((x, stable),) = plotted["stable exponential (LRU), centred"]
    assert np.interp(0, x, stable) == pytest.approx(0.5)
    ((_, uncentred),) = plotted["stable exponential"]
    assert np.interp(0, x, uncentred) == pytest.approx(np.exp(-1))
    assert (tmp_path / "a.png").read_bytes()[:4] == b"\x89PNG"


def test_the_scan_is_drawn_whole(tmp_path):
    from matplotlib.image import imread

    parallel_scan(tmp_path / "scan.png", elements=4)
    picture = imread(tmp_path / "scan.png")
    inked = np.flatnonzero((picture[:, :, :3] < 0.9).any((1, 2)))
    assert 0 < inked[0] < inked[-1] < len(picture) - 1
