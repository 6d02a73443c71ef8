"""A picture of code in the colours of the channels that follow it.

    python -m app.embedded_models.build.channel_picture app/embedded_models/code code.png

For each feature of `structure` the channel that `channels` chooses by correlation, on an excerpt of
a held-out file that took no part in the choice. The darker, the larger the value, or the smaller
where the correlation is negative. Needs matplotlib.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mlx_gateloop.io.models import load
from mlx_gateloop.model.lm import Model
from mlx_gateloop.plots.style import new_figure, save_png

from . import library
from .arguments import errors_in_one_line, paths
from .channels import QUANTITIES, Found, encode, find, quantities

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SHOWN = ("indentation", "open brackets", "string", "comment")
FILE, FIRST, LINES = "The Tab Nanny", 2, 42  # a text in the file, and its lines that are shown
COLUMNS = 76
WIDTH, HEIGHT = 13.0, 12.5  # inches
RANGE = 2  # percent of the values that are off the scale of colours, at each end
COLOURS = "YlOrRd"  # on which black text can be read


def draw(model: Model, tokenizer: Any, files: Sequence[str], png_path: Path) -> list[Found]:
    """Draw the excerpt once for each feature, and return the channels."""
    figure = new_figure(WIDTH, HEIGHT)  # first: it says if matplotlib is missing
    text = next((file for file in files[1::2] if FILE in file), None)
    if text is None:
        sys.exit(f"error: no file with {FILE!r} among those that test; run this with Python 3.11")
    best = strongest(find(model, tokenizer, files))
    ids, offsets = encode(tokenizer, text)
    values = quantities(model, ids)
    for axes, found in zip(figure.subplots(2, 2).flat, best, strict=True):
        channel = values[QUANTITIES.index(found.quantity), found.layer, :, found.channel]
        colour(axes, text, offsets, np.sign(found.chosen_by) * channel)
        what = "|a|" if found.quantity == "magnitude" else "Re h"
        where = f"{what} of layer {found.layer + 1}, channel {found.channel}"
        axes.set_title(f"{found.feature}: {where}, correlation {found.elsewhere:+.2f}", fontsize=10)
    save_png(figure, png_path)
    return best


def strongest(found: list[Found]) -> list[Found]:
    """Return the channel of each feature with the largest correlation where it was chosen."""
    return [
        max((f for f in found if f.feature == feature), key=lambda f: abs(f.chosen_by))
        for feature in SHOWN
    ]


def colour(axes: "Axes", text: str, offsets: list[tuple[int, int]], values: np.ndarray) -> None:
    """Write the excerpt on tokens in the colours of their values."""
    from matplotlib import colormaps

    low, high = np.percentile(values, (RANGE, 100 - RANGE))
    shares = np.clip((values - low) / (high - low or 1), 0, 1)  # a channel may never change
    shades = colormaps[COLOURS](0.8 * shares)
    for (start, end), shade in zip(offsets, shades, strict=True):
        for at in range(start, end):
            line, column = text.count("\n", 0, at) - FIRST, at - text.rfind("\n", 0, at) - 1
            if 0 <= line < LINES and text[at] != "\n":
                axes.fill_between([column, column + 1], line, line + 1, color=shade, linewidth=0)
                axes.text(column + 0.5, line + 0.5, text[at], family="monospace", fontsize=8,
                          ha="center", va="center", parse_math=False)  # fmt: skip
    axes.set(xlim=(0, COLUMNS), ylim=(LINES, 0))
    axes.set_axis_off()


if __name__ == "__main__":
    with errors_in_one_line():
        directory, picture = paths(__doc__, "model", "picture")
        draw(*load(directory), library.unread(directory), picture)
