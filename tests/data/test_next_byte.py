import os

import numpy as np
import pytest

from mlx_gateloop.data.corpus import load_corpus
from mlx_gateloop.data.next_byte import next_byte
from mlx_gateloop.errors import InputError


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


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "text: No such file or directory; give an existing file"),
        (b"x" * 320, "320 bytes; at least 321"),
        ("pipe", "text: not a file; give a text"),
    ],
)
def test_a_file_that_does_not_do(tmp_path, content, message):
    file = tmp_path / "text"
    if content == "pipe":
        os.mkfifo(file)
    elif content is not None:
        file.write_bytes(content)
    with pytest.raises(InputError, match=message):
        next_byte(str(file), length=16)


def test_the_parts_of_python_source_are_those_of_the_corpus():
    corpus, task = load_corpus("python-source", 0.05), next_byte("python-source", length=256)
    parts = {"train": task.training, "validation": task.validation, "test": task.test}
    for name, samples in parts.items():
        text = "".join(getattr(corpus, name)).encode()
        assert len(samples) == (len(text) - 1) // 256
        assert bytes(samples.inputs[:9].ravel().tolist()) == text[: 9 * 256]
        assert bytes(samples.targets[-1].tolist()) == text[: len(samples) * 256 + 1][-256:]
