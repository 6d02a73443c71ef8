"""The style of lines and of the ranges around them."""

from mlx_gateloop.plots.style import COLOURS, line_style, range_style


def test_lines_differ_beyond_the_colours_and_ranges_have_their_lines_colour():
    styles = [line_style(number) for number in range(2 * COLOURS)]
    assert len({tuple(style.items()) for style in styles}) == 2 * COLOURS
    for number, style in enumerate(styles):
        assert range_style(number, 3)["color"] == style["color"]


def test_ranges_over_one_another_leave_the_lines_visible():
    for lines in range(1, 2 * COLOURS):
        transparency = (1 - range_style(0, lines)["alpha"]) ** lines
        assert transparency > 0.6
