"""The text of the embedded models."""

from collections import Counter

import pytest

from benchmarks.embedded_models import corpus
from mlx_gateloop.data import load_documents, pydocs


@pytest.fixture(scope="module", autouse=True)
def groups():
    """The documentation, collected once: that takes most of the time."""
    groups = list(pydocs.groups())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pydocs, "groups", lambda: groups)
        yield groups


@pytest.fixture(scope="module")
def documents(groups):
    return corpus.documents()


def asked(documents):
    return Counter(
        turn["content"]
        for document in documents
        if not isinstance(document, str)
        for turn in document
        if turn["role"] == "user"
    )


def test_the_same_seed_gives_the_same_documents(documents):
    assert corpus.documents() == documents


def test_familiar_names_are_asked_often_by_what_people_call_and_the_others_once(documents):
    count = asked(documents)
    for name in ("str.split", "len", "random.shuffle", "os.getcwd"):
        assert count[f"What does `{name}` do?"] >= corpus.COPIES / 2
    assert count["How do I use str.split?"] > 5
    assert count["What does `ast.walk` do?"] == 1
    assert not any(
        f"`{name}" in question for question in count for name in ("posix.", "random.Random.")
    )


def test_the_beginning_of_each_text_comes_once_and_turns_alternate(documents, groups):
    texts = [document for document in documents if isinstance(document, str)]
    original = [d for group in groups for d in group if isinstance(d, str)]
    assert len(texts) == len(original) > 300
    assert all(any(o.startswith(text) for o in original) for text in texts)
    for document in documents:
        if not isinstance(document, str):
            assert len(document) in (2, 4, 6)
            assert [turn["role"] for turn in document] == ["user", "assistant"] * (
                len(document) // 2
            )


def test_the_file_holds_the_documents(documents, tmp_path):
    corpus.write(tmp_path / "new" / "corpus.jsonl", documents[:100])
    assert load_documents(str(tmp_path / "new")) == documents[:100]


def test_the_questions_are_those_that_come_often(documents):
    count = asked(documents)
    questions = corpus.questions()
    assert len(questions) > 500
    assert all(count[question] >= corpus.COPIES / 2 for question, _ in questions)
    answers = {text for d in documents if not isinstance(d, str) for t in d for text in t.values()}
    assert {answer for _, answer in questions} <= answers
