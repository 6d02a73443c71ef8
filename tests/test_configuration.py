"""Files of JSON lines, and YAML. Configurations are tested where they are read."""

import pytest
from helpers.errors import refusal

from mlx_gateloop.configuration import parse_yaml, read_json_lines


def test_lines_are_objects_and_a_last_one_without_its_end_is_left_out(tmp_path):
    file = tmp_path / "log.jsonl"
    for text, expected in (("", []), ('{"a": 1}\n{"b": 2}\n{"c"', [{"a": 1}, {"b": 2}])):
        file.write_text(text)
        assert read_json_lines(file) == expected


@pytest.mark.parametrize("line", ["", "null", "[1]", "{", "[" * 100_000, "\udcff"])
def test_a_line_of_something_else_is_named(tmp_path, line):
    file = tmp_path / "log.jsonl"
    file.write_text(f'{{"a": 1}}\n{line}\n', errors="surrogateescape")
    assert "log.jsonl: line 2 is not a JSON object; remove it" in refusal(read_json_lines, file)


def test_merged_keys_are_not_there_twice():
    text = "a: &a {k: 1}\nx: {base: &b {<<: *a, k: 2}}\ny: {<<: *b, k: 3}"
    assert parse_yaml(text) == {"a": {"k": 1}, "x": {"base": {"k": 2}}, "y": {"k": 3}}
