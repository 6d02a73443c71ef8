"""The channels that follow the structure of code."""

import mlx.core as mx
import numpy as np
import pytest
from helpers.experiments import cells
from helpers.models import tiny_model

from benchmarks.embedded_models import channels
from benchmarks.embedded_models.structure import FEATURES, structure
from mlx_gateloop.tokenizer import byte_tokenizer
from mlx_gateloop.watch import trace_of

FILE = 'def f(a):  # (é\n    x = [1, (2,\n"b("), 3]\n    return """two\n  lines"""\n'


@pytest.fixture(scope="module")
def model():
    return tiny_model(vocab_size=300)


def test_the_structure_of_every_character():
    expected = {  # by line, without the last zeros
        "indentation": "0" * 16 + "4" * 16 + "0" * 10 + "4" * 18 + "2" * 11,
        "open brackets": "0000011000000000 0000000011112222 2222111100",
        "string": "0000000000000000 0000000000000000 1111000000 000000000001111111 1111111111",
        "comment": "000000000001111",
    }
    found = dict(zip(FEATURES, structure(FILE).astype(int).tolist(), strict=True))
    for feature, lines in expected.items():
        digits = lines.replace(" ", "").ljust(len(FILE), "0")
        assert "".join(map(str, found[feature])) == digits, feature
    assert found["column"][:18] == [*range(16), 0, 1]


def test_the_quantities_are_those_of_the_model(model):
    tokens = np.array([3, 1, 4, 1, 5])
    found = channels.quantities(model, tokens)
    trace = trace_of(model, tokens)
    cache = model.make_cache()
    model(mx.array(tokens[:3])[None], cache)
    for layer in range(2):
        np.testing.assert_allclose(found[0, layer], trace.magnitude(layer), rtol=1e-4)
        np.testing.assert_allclose(found[1, layer, 2], cache[layer][0][0, 0], rtol=1e-4, atol=1e-6)


def test_channels_are_chosen_on_every_other_file_and_tested_on_the_rest(model, monkeypatch):
    files = [FILE, FILE.replace("f", "g" * 9), FILE + FILE, "y = {1: '2'}\n" + FILE]
    monkeypatch.setattr(channels.library, "unread", lambda *_: files)
    monkeypatch.setattr(channels, "load", lambda _: (model, byte_tokenizer()))
    found = channels.find(model, byte_tokenizer(), files)
    assert len(found) == len(FEATURES) * len(channels.QUANTITIES) * channels.BEST
    for row, one in zip(cells(channels.report("model"))[2:], found, strict=True):
        assert row[:4] == [one.feature, one.quantity, str(one.layer + 1), str(one.channel)]
        assert row[5] == f"{one.elsewhere:+.2f}"
    read = [channels.read(model, byte_tokenizer(), file) for file in files]
    for one in (found[0], found[-1]):
        quantity = channels.QUANTITIES.index(one.quantity)
        feature = FEATURES.index(one.feature)
        for half, expected in ((read[::2], one.chosen_by), (read[1::2], one.elsewhere)):
            values = np.concatenate([v[quantity, one.layer, :, one.channel] for v, _ in half])
            features = np.concatenate([f[feature] for _, f in half])
            assert np.corrcoef(values, features)[0, 1] == pytest.approx(expected, abs=1e-4)
    first = [one for one in found if one.feature == FEATURES[0] and one.quantity == "state"]
    assert abs(first[0].chosen_by) >= abs(first[1].chosen_by)
