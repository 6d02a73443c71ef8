import os

import numpy as np
import pytest
from helpers.errors import refusal

from mlx_gateloop.data.corpus import load_corpus
from mlx_gateloop.data.next_byte import next_byte


def test_the_parts_are_the_text_in_order(tmp_path):
    text = np.random.default_rng(0).integers(0, 256, 16 * 40 + 7, np.uint8).tobytes()
    (tmp_path / "text").write_bytes(text)
    task = next_byte(str(tmp_path / "text"), length=16)
    parts = (task.training, task.validation, task.test)
    assert [len(part) for part in parts] == [36, 2, 2]
    inputs, targets = (
        np.concatenate([getattr(part, name) for part in parts]) for name in ("inputs", "targets")
    )
    assert bytes(inputs.ravel().tolist()) == text[: 16 * 40]
    assert bytes(targets.ravel().tolist()) == text[1 : 16 * 40 + 1]
    assert all((part.span == np.arange(1, 17)).all() for part in parts)
    assert (task.vocab_size, task.num_outputs, task.is_exact) == (256, 256, False)


@pytest.fixture
def library(monkeypatch):
    letters = np.random.default_rng(1).integers(97, 123, (60, 5000), np.uint8)
    texts = tuple(row.tobytes().decode() for row in letters)
    monkeypatch.setattr("mlx_gateloop.data.python_source.documents", lambda: texts)


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("source", ["a file", "python-source"])
def test_seeds_move_the_parts_so_that_no_two_tests_overlap(tmp_path, source):
    file = "python-source"
    if source == "a file":
        file = str(tmp_path / "text")
        words = np.random.default_rng(0).integers(0, 256, 40_000, np.uint8)
        (tmp_path / "text").write_bytes(words.tobytes())
    tasks = [next_byte(file, length=64, seed=seed) for seed in (0, 1, 9)]
    held_out = [
        {row.tobytes() for part in (task.validation, task.test) for row in part.inputs}
        for task in tasks
    ]
    assert not {row.tobytes() for row in tasks[0].training.inputs} & held_out[0]
    assert not any(held_out[0] & other for other in held_out[1:])


@pytest.mark.parametrize(("make", "words"), [
    (lambda file: None, "text: No such file or directory; give an existing file"),
    (lambda file: file.write_bytes(b"x" * 320), "320 bytes; at least 321 for a length of 16"),
    (os.mkfifo, "text: not a file; give a text"),
])  # fmt: skip
def test_a_file_that_does_not_do(tmp_path, make, words):
    make(tmp_path / "text")
    assert words in refusal(next_byte, str(tmp_path / "text"), length=16)


@pytest.mark.usefixtures("library")
def test_the_parts_of_python_source_are_those_of_the_corpus():
    corpus, task = load_corpus("python-source", 0.05), next_byte("python-source", length=256)
    parts = {"train": task.training, "validation": task.validation, "test": task.test}
    for name, samples in parts.items():
        text = "".join(getattr(corpus, name)).encode()
        assert len(samples) == (len(text) - 1) // 256
        assert bytes(samples.inputs[:9].ravel().tolist()) == text[: 9 * 256]
        assert bytes(samples.targets[-1].tolist()) == text[: len(samples) * 256 + 1][-256:]
