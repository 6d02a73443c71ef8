"""Files of the state view: a picture and arrays."""

import base64
from io import BytesIO

import numpy as np
from PIL import Image

CANVASES = """() => ['layers', 'axis', 'magnitude', 'phase'].map(name =>
  document.querySelector(`#chat-view .${name}`).toDataURL().split(',')[1])"""


def test_the_picture_has_the_canvases_one_below_the_other_and_a_name(page, download):
    page.ask("What is in the `picture`, ../..?")
    page.finished()
    page.painted()
    assert download(page, "npz")[0].name == "a-What-is-in-the-picture.npz"
    shown = [Image.open(BytesIO(base64.b64decode(png))) for png in page.tab.evaluate(CANVASES)]
    file, _ = download(page, "png")
    assert file.name == "a-What-is-in-the-picture-layer-1.png"
    with Image.open(file) as picture:
        pixels = np.asarray(picture.convert("RGB")).astype(int)
    top = 0
    for canvas in shown:
        held = np.asarray(canvas.convert("RGBA")).astype(int)
        opaque = held[..., 3] == 255
        assert opaque.any()
        assert (pixels[top : top + canvas.height][opaque] == held[opaque][:, :3]).all()
        top += canvas.height
    assert pixels.shape[0] == top


def test_the_arrays_are_of_this_run(page, arrays):
    page.ask("arrays")
    tokens = page.finished()
    held = arrays(page)
    shape = (page.layers, tokens, page.channels)
    assert held["magnitude"].shape == held["phase"].shape == shape
    assert held["averages"].shape == (tokens, page.layers)
    np.testing.assert_allclose(held["averages"], held["magnitude"].mean(2).T, atol=1e-5)
    assert 0 < held["magnitude"].min() < held["magnitude"].max() < 1
    assert np.abs(held["phase"]).max() <= np.pi + 1e-5
    assert held["phase"].std() > 0.01
    texts = [piece["text"].rstrip("\0") for piece in page.view("pieces")]  # as NumPy keeps them
    assert held["texts"].tolist() == texts
