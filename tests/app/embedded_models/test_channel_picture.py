"""The picture of the channels that follow code."""

import mlx.core as mx
import numpy as np
import pytest
from mlx_gateloop.app.embedded_models.build import channel_picture, channels
from mlx_gateloop.app.embedded_models.build.channels import Found

from mlx_gateloop.model.lm import Model, ModelArgs
from mlx_gateloop.plots.style import new_figure
from mlx_gateloop.tokenizer import byte_tokenizer

CODE = "# The Tab Nanny (é)\ndef f(a):\n    return [a, 'b']\n"


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(channel_picture, "FIRST", 1)


def test_the_strongest_channel_where_it_was_chosen():
    found = [
        Found(feature, "state", 0, channel, chosen_by, 0.9 - abs(chosen_by))
        for feature in channels.FEATURES
        for channel, chosen_by in enumerate((0.3, -0.5, 0.1))
    ]
    best = channel_picture.strongest(found)
    assert [(f.feature, f.channel) for f in best] == [(f, 1) for f in channel_picture.SHOWN]


def test_tokens_are_coloured_where_they_stand():
    axes = new_figure(4, 4).subplots()
    line = CODE.split("\n")[1]
    offsets = [(i, i + 1) for i in range(len(CODE))]
    is_bracket = np.array([character in "()" for character in CODE], np.float32)
    channel_picture.colour(axes, CODE, offsets, is_bracket)
    written = {tuple(text.get_position()): text.get_text() for text in axes.texts}
    assert "".join(written[i + 0.5, 0.5] for i in range(len(line))) == line
    assert all(y > 0 for _, y in written)  # the line above is left out
    places = zip(axes.texts, axes.collections, strict=True)
    shades = {text.get_text(): area.get_facecolor()[0].sum() for text, area in places}
    assert shades["("] == shades[")"] < min(s for c, s in shades.items() if c not in "()")


def test_a_channel_that_never_changes():
    axes = new_figure(4, 4).subplots()
    channel_picture.colour(axes, CODE, [(i, i + 1) for i in range(len(CODE))], np.ones(len(CODE)))
    assert len({tuple(area.get_facecolor()[0]) for area in axes.collections}) == 1


def test_another_version_of_python_has_no_such_file(tmp_path):
    mx.random.seed(0)
    size = {"hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 2}
    model, tokenizer = Model(ModelArgs(vocab_size=300, **size)), byte_tokenizer()
    with pytest.raises(SystemExit, match=r"^error: no file with 'The Tab Nanny' among those that"):
        channel_picture.draw(model, tokenizer, ["a = 1\n", "b = 2\n"], tmp_path / "code.png")
    assert not (tmp_path / "code.png").exists()


def test_each_feature_has_its_channel_on_a_file_that_did_not_choose_it(tmp_path, monkeypatch):
    mx.random.seed(0)
    size = {"hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 2}
    model, tokenizer = Model(ModelArgs(vocab_size=300, **size)), byte_tokenizer()
    panels = []
    monkeypatch.setattr(channel_picture, "colour", lambda *panel: panels.append(panel))
    files = [CODE.replace("f(", "g("), CODE]
    drawn = channel_picture.draw(model, tokenizer, files, tmp_path / "code.png")
    assert [found.feature for found in drawn] == list(channel_picture.SHOWN)
    assert (tmp_path / "code.png").stat().st_size > 10_000
    read, features = channels.read(model, tokenizer, CODE)
    for found, (axes, text, _, values) in zip(drawn, panels, strict=True):
        assert text == CODE
        channel = read[channels.QUANTITIES.index(found.quantity), found.layer, :, found.channel]
        assert np.array_equal(values, channel if found.chosen_by > 0 else -channel)
        follows = np.corrcoef(channel, features[channels.FEATURES.index(found.feature)])[0, 1]
        assert axes.get_title().endswith(f"correlation {follows:+.2f}")
    assert {found.chosen_by > 0 for found in drawn} == {True, False}
