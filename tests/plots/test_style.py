import pytest

from mlx_gateloop.plots.style import COLOURS, DASHES, add_ranked_legend, line_style, new_figure


def test_lines_differ_beyond_the_colours():
    count = len(DASHES) * COLOURS
    assert len({tuple(line_style(number).items()) for number in range(count)}) == count


@pytest.mark.parametrize(("height", "names"), [((), "bca"), ((max,), "cab")])
def test_names_of_a_ranked_legend_are_in_the_order_of_their_lines(height, names):
    figure = new_figure(4, 4)
    axes = figure.add_subplot()
    for name, values in {"a": [5, 1], "b": [0, 3], "c": [6, 2], "_of no name": [9, 9]}.items():
        axes.plot([0, 1], values, label=name)
    add_ranked_legend(figure, axes, *height)
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [*names]
