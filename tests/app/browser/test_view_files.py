"""Files of the state view: figures and arrays."""

import base64
from io import BytesIO
from xml.etree import ElementTree

import numpy as np
from PIL import Image

SVG = "{http://www.w3.org/2000/svg}"
CANVASES = """() => ['layers', 'magnitude', 'phase'].map(name =>
  document.querySelector(`#chat-view .${name}`).toDataURL().split(',')[1])"""


def test_the_picture_has_the_canvases_with_axes_legends_text_and_a_name(page, download):
    page.ask("What is in the `picture`, ../..?")
    page.finished()
    page.painted()
    assert download(page, "npz")[0].name == "a-What-is-in-the-picture.npz"
    shown = [Image.open(BytesIO(base64.b64decode(png))) for png in page.tab.evaluate(CANVASES)]
    file, _ = download(page, "png")
    assert file.name == "a-What-is-in-the-picture-layer-1.png"
    with Image.open(file) as picture:
        pixels = np.asarray(picture.convert("RGB")).astype(int)
    ground = pixels[0, 0]
    left, top, gap, line, axis = 76, 14, 14, 20, 68
    width = shown[0].width
    assert pixels.shape[1] == left + width + gap
    written = []

    def row(height, begin=left, end=None):
        nonlocal top
        written.append(pixels[top : top + height, begin:end])
        top += height

    row(line)  # the title
    for i, canvas in enumerate(shown):
        row(line)  # caption and legend
        held = np.asarray(canvas.convert("RGBA")).astype(int)
        band = pixels[top : top + canvas.height, left : left + width]
        opaque = held[..., 3] == 255
        assert (band[opaque] == held[opaque][:, :3]).all()
        row(canvas.height, 0, left)  # numbers of rows
        if i == 0:
            row(axis)  # words
            row(line)  # the layer
        else:
            top += gap // 2
    row(line + 4)  # numbers of tokens
    row(line)  # the text
    for part in written:
        assert (part != ground).any(2).sum() > 20


def test_the_drawing_has_texts_as_texts_and_pictures_inside(page, download):
    hostile = "<script>alert(1)</script>&\u202e\u0007"
    page.ask(hostile)
    page.finished()
    page.painted()
    file, _ = download(page, "svg")
    drawing = ElementTree.parse(file).getroot()
    assert {element.tag for element in drawing.iter()} == {
        f"{SVG}{name}" for name in ("svg", "rect", "text", "image")
    }
    images = [image.get("href") for image in drawing.iter(f"{SVG}image")]
    assert len(images) == 6  # three pictures and their legends
    assert all(href.startswith("data:image/png;base64,") for href in images)
    texts = [text.text or "" for text in drawing.iter(f"{SVG}text")]
    for expected in (
        "All layers: what each keeps",
        "Layer 1 of 4",
        "How long it keeps this: tokens until half is left",
        "everything",
        "token",
    ):
        assert any(text.startswith(expected) for text in texts), expected
    whole = "".join(texts)
    assert "<script>alert(1)</script>&" in whole
    assert "\\u202e\\u0007" in whole
    assert "\u202e" not in whole
    words = set(page.view("heatmaps.axis.words"))
    upright = [
        text.text for text in drawing.iter(f"{SVG}text") if "rotate" in text.get("transform")
    ]
    assert len(upright) > 20
    assert set(upright) <= words


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
