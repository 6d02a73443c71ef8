import json
import os
import re
from itertools import pairwise
from unittest.mock import Mock

import numpy as np
import pytest
from helpers.errors import refusal
from hypothesis import given
from hypothesis import strategies as st

from mlx_gateloop.data import Corpus, load_corpus, load_documents, num_bytes
from mlx_gateloop.data.corpus import SKEW

CHAT = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho"}]


def write_jsonl(path, values):
    path.write_text("".join(json.dumps(value) + "\n" for value in values))
    return str(path)


def test_files_and_folders(tmp_path, caplog):
    file = tmp_path / "a.txt"
    file.write_bytes(b"\xef\xbb\xbf" + b"one\r\ntwo\n" * 10)
    assert load_corpus(str(file), 0.2) == Corpus(["one\r\ntwo\n" * 8], ["one\r\ntwo\n" * 2])
    file.unlink()
    (tmp_path / "inner").mkdir()
    for name in ("b.txt", "a.md", "inner/c.text", "skipped.bin"):
        (tmp_path / name).write_text(name)
    write_jsonl(tmp_path / "d.jsonl", [{"text": "d"}])
    for name in ("e.py", "f.py", "LICENCE", "g.txt"):
        (tmp_path / name).write_text(" ")
    (tmp_path / "run/checkpoints").mkdir(parents=True)
    for name in ("config.json", "log.jsonl", "checkpoints/last.safetensors", "checkpoints/x.txt"):
        (tmp_path / "run" / name).write_text("of a model, and no document")
    (tmp_path / "inner/vectors.safetensors").write_text("of no model")
    (tmp_path / "link").symlink_to(tmp_path / "inner")
    (tmp_path / "gone.txt").symlink_to(tmp_path / "nothing")
    corpus = load_corpus(str(tmp_path), 0.25)
    assert corpus == Corpus(["a.md", "b.txt", "d"], ["inner/c.text"]), "in sorted order"
    (line,) = caplog.messages
    kinds = "1 .bin, 2 .py, 1 .safetensors, 1 .txt, 1 LICENCE, 1 empty, 1 link"
    assert f": left out: {kinds}; files read: .txt" in line
    lines = [{"text": "one"}, {"messages": CHAT, "text": "", "prompt": None}]
    lines += [{"text": "two"}, {"prompt": "Hi", "completion": "Ho", "tools": [{}]}]
    corpus = load_corpus(write_jsonl(tmp_path / "a.jsonl", lines), 0.5)
    assert corpus == Corpus(["one", "two"], [CHAT, CHAT])
    assert [chat.tools for chat in corpus.validation] == [None, [{}]]
    assert num_bytes(["é", CHAT]) == 2 + len("user\nHi\nassistant\nHo\n")
    assert num_bytes(["é", CHAT], answers=True) == len("Ho")
    few = [{"messages": CHAT}, {"messages": CHAT * 2}]
    corpus = load_corpus(write_jsonl(tmp_path / "a.jsonl", few), 0.1)
    assert corpus == Corpus([CHAT], [CHAT * 2]), "no conversation is cut beside another"
    alone = [{"messages": CHAT * 3, "tools": [{}]}]
    corpus = load_corpus(write_jsonl(tmp_path / "a.jsonl", alone), 0.5)
    assert corpus == Corpus([CHAT], [CHAT * 2]), "it is cut before a question"
    assert corpus.train[0].tools == corpus.validation[0].tools == [{}]
    write_jsonl(tmp_path / "b.jsonl", [{"messages": [{"role": "gpt", "content": "Ho"}]}] * 2)
    load_corpus(str(tmp_path / "b.jsonl"))
    assert "unusual roles: ['gpt']; answers are" in caplog.messages[-1]
    pair = write_jsonl(tmp_path / "a.jsonl", [{"messages": CHAT}])
    assert "no part for validation" in refusal(load_corpus, pair)
    for text in ("Hi", "Hi" * 999):
        chat = [CHAT[0] | {"content": text}, CHAT[1]]
        mixed = write_jsonl(tmp_path / "a.jsonl", [{"text": "x" * 99}, {"messages": chat}])
        corpus = load_corpus(mixed)
        assert (corpus.train[1], corpus.validation) == (chat, ["x" * 10])


@given(count=st.integers(2, 60), fraction=st.floats(0.01, 0.99))
def test_both_parts_have_documents(tmp_path_factory, count, fraction):
    source = tmp_path_factory.mktemp("corpus") / "a.jsonl"
    documents = [f"{i:03}" * 40 for i in range(count)]
    corpus = load_corpus(write_jsonl(source, [{"text": text} for text in documents]), fraction)
    assert corpus.train
    assert corpus.validation
    if len(corpus.train) + len(corpus.validation) == count:
        assert sorted(corpus.train + corpus.validation) == documents
        numbers = [documents.index(text) for text in corpus.validation]
        assert np.ptp(np.diff([-1, *numbers])) <= 1, "spread evenly"
    else:  # too few for whole documents: each is cut
        assert [a + b for a, b in zip(corpus.train, corpus.validation, strict=True)] == documents


@given(sizes=st.lists(st.integers(1, 5000), min_size=2), fraction=st.floats(0.02, 0.5))
def test_validation_has_about_its_share_of_the_text(tmp_path_factory, sizes, fraction):
    source = tmp_path_factory.mktemp("corpus") / "a.jsonl"
    corpus = load_corpus(write_jsonl(source, [{"text": "x" * size} for size in sizes]), fraction)
    share, size = fraction * sum(sizes), sum(map(len, corpus.validation))
    assert share / SKEW <= size <= share * SKEW + len(sizes)  # each is cut at a whole letter
    assert size + sum(map(len, corpus.train)) == sum(sizes)
    if len(sizes) * min(fraction, 1 - fraction) >= 1:
        whole = [len(text) for text in (*corpus.train, *corpus.validation)]
        assert all(whole.count(n) >= sizes.count(n) for n in sizes if n <= share)


BAD = [
    ("missing.txt", None, "no such file or folder"),
    ("empty.txt", b" \n\n", "contains no text"),
    ("latin.txt", "déjà".encode("latin-1"), r"not UTF-8 text \(byte 0xE9 at offset 1\)"),
    ("a.jsonl", b'{"text": "x"}\n{"text"', r"a.jsonl:2: not JSON"),
    ("a.jsonl", b'{"txt": "x"}\n', r"a.jsonl:1: expected"),
    ("a.jsonl", b'["x"]\n', r"a.jsonl:1: expected"),
    ("a.jsonl", b'{"messages": [{"role": "user"}]}\n', r"a.jsonl:1: expected"),
    ("a.jsonl", b'{"messages": []}\n', r"a.jsonl:1: expected"),
    ("a.jsonl", b'{"messages": [{"role": "user", "tool_calls": []}]}\n', r"a.jsonl:1: expected"),
    ("a.jsonl", b'{"completion": "an answer"}\n', r"a.jsonl:1: expected.*prompt"),
    ("a.jsonl", b'{"prompt": "a", "completion": "b", "tools": [1]}\n', r"a.jsonl:1: expected"),
    ("a.jsonl", b'{"prompt": "\\ud800", "completion": "b"}\n', r"a.jsonl:1: half of"),
    ("a.jsonl", b"\n\n", "contains no text"),
    ("a.ndjson", b'{"text": "x"}\n', "JSON; name it .jsonl"),
]


@pytest.mark.parametrize(("name", "content", "message"), BAD)
def test_bad_files(tmp_path, name, content, message):
    file = tmp_path / name
    if content is not None:
        file.write_bytes(content)
    line = refusal(load_corpus, str(file))
    assert str(file) in line
    assert re.search(message, line)


@pytest.mark.parametrize(("suffix", "other"), [(".jsonl", ".txt"), (".txt", ".md")])
def test_a_folder_may_have_parts(tmp_path, monkeypatch, suffix, other):
    for name in ("train", "valid", "test"):
        text = json.dumps({"text": name}) if suffix == ".jsonl" else name
        (tmp_path / f"{name}{suffix}").write_text(text)
    assert load_corpus(str(tmp_path)) == Corpus(["train"], ["valid"], ["test"])
    (tmp_path / f"notes{other}").write_text("of no part")
    assert load_documents(str(tmp_path)) == ["train", "valid", "test"]
    monkeypatch.chdir(tmp_path)
    assert "the name of the data is empty" in refusal(load_corpus, "")
    (tmp_path / f"test{suffix}").unlink()
    assert load_corpus(str(tmp_path)) == Corpus(["train"], ["valid"])
    (tmp_path / f"notes{other}").unlink()
    rest = ".txt" if suffix == ".jsonl" else ".jsonl"
    held_out = f"valid{suffix}", f"test{suffix}", f"validation{suffix}", f"validation{rest}"
    for before, name in pairwise(held_out):
        (tmp_path / before).rename(tmp_path / name)
        assert f"and {name}; add valid{suffix}, or" in refusal(load_corpus, str(tmp_path))


def test_a_folder_that_cannot_be_read_is_named(tmp_path, monkeypatch):
    (tmp_path / "inner").mkdir()
    (tmp_path / "a.txt").write_text("a text")
    (tmp_path / ".hidden").mkdir()  # which is not looked into
    error = PermissionError(13, "Permission denied", "inner")
    monkeypatch.setattr(os, "scandir", Mock(side_effect=[os.scandir(tmp_path), error]))
    assert "inner: Permission denied; give" in refusal(load_documents, str(tmp_path))


@pytest.mark.parametrize("fraction", [0, 1, -1, 2])
def test_impossible_fractions(tmp_path, fraction):
    assert "validation_fraction" in refusal(load_corpus, str(tmp_path), fraction)


def test_python_source_by_name(monkeypatch):
    files = tuple(f"x = {n}\n" for n in range(200))
    monkeypatch.setattr("mlx_gateloop.data.python_source.documents", lambda: files)
    corpus = load_corpus("python-source", 0.1)
    assert [len(part) for part in (corpus.train, corpus.validation, corpus.test)] == [171, 19, 10]
    assert sorted(load_documents("python-source")) == sorted(files)
