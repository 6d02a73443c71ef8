"""Tables as text: Markdown for reports, aligned names and values for the terminal."""

from collections.abc import Mapping, Sequence


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table with aligned columns."""
    cells = [header, ["---"] * len(header), *rows]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
    return "\n".join(
        "| " + " | ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)) + " |"
        for row in cells
    )


def name_value_lines(values: Mapping[str, str]) -> str:
    """One line for each name and its value, the values aligned."""
    width = max(map(len, values))
    return "\n".join(f"{name:<{width}}  {value}" for name, value in values.items())
