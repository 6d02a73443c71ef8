"""The text of the embedded models, made from a small library."""

from collections import Counter

import pytest

from benchmarks.embedded_models import corpus, pydocs
from mlx_gateloop.data import load_documents

FAMILIAR = {"str.split": "str.split", "len": "len", "random.Random.shuffle": "random.shuffle"}
FAMILIAR |= {"posix.getcwd": "os.getcwd"}
ONCE = ("ast.walk", "ValueError")


@pytest.fixture(autouse=True)
def groups(monkeypatch):
    entries = [pydocs.Entry(n, "(x)", f"Do as {n} does.\n\nMore.") for n in (*FAMILIAR, *ONCE)]
    groups = [["A topic of the language.\n" * 100], ["Another one.\n"]]
    groups += [[entry.text, entry.chat] for entry in entries]
    monkeypatch.setattr(pydocs, "groups", lambda: groups)
    return groups


def question(name):
    return f"What does `{name}` do?"


def test_familiar_names_are_asked_often_and_the_others_once():
    documents = corpus.documents()
    assert documents == corpus.documents() != corpus.documents(seed=1)
    chats = [document for document in documents if not isinstance(document, str)]
    for chat in chats:
        assert len(chat) in (2, 4, 6)
        assert [turn["role"] for turn in chat] == ["user", "assistant"] * (len(chat) // 2)
    asked = [turn["content"] for chat in chats for turn in chat if turn["role"] == "user"]
    assert len(asked) == corpus.COPIES * len(FAMILIAR) + len(ONCE)
    count = Counter(asked)
    assert [count[question(name)] for name in ONCE] == [1, 1]
    for name in FAMILIAR.values():
        assert count[question(name)] >= corpus.COPIES / 2
    assert sum(count[f"How do I use {name}?"] for name in FAMILIAR.values()) > 15
    assert not any(name in text for text in count for name in ("posix.", "random.Random."))


def test_the_beginning_of_each_text_comes_once(groups):
    texts = [document for document in corpus.documents() if isinstance(document, str)]
    originals = [document for group in groups for document in group if isinstance(document, str)]
    assert sorted(texts) == sorted(text[: corpus.BEGINNING] for text in originals)


def test_questions_are_divided_by_how_often_they_come(tmp_path):
    assert [asked for asked, _ in corpus.questions()] == list(map(question, FAMILIAR.values()))
    assert [asked for asked, _ in corpus.other_questions()] == list(map(question, ONCE))
    corpus.write(tmp_path / "new" / "corpus.jsonl", corpus.documents()[:100])
    assert load_documents(str(tmp_path / "new")) == corpus.documents()[:100]
