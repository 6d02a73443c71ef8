"""The text of a model that writes code: what it holds, and what no model reads."""

import hashlib

import pytest

from benchmarks.embedded_models import library
from mlx_gateloop.data import pydocs, python_source
from mlx_gateloop.errors import InputError

LONG = "Return the number of the items that stand in the container."
HEART = "Return the length of a thing, which is the number of its items."
ELSEWHERE = "Set the temperature of the water that comes from this tap."


def chat(name, answer):
    question = f"What does `{name}` do?"
    return [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Forty files, of which the twentieth and the last are the test part, and documentation."""
    files = [f"x = {number}\n" for number in range(40)]
    files[19] = f'def count(x):\n    """Return the number of the items\n    {LONG[31:]}"""\n'
    files[39] = f'def len(x):\n    """{HEART}"""\n'
    groups = [
        [f"taps\n\n{ELSEWHERE}\n", chat("taps.heat", f"`taps.heat(t)`: {ELSEWHERE}")],
        [f"box\n\ncount(x)\n{LONG}\n", chat("box.count", f"`box.count(x)`: {LONG}")],
        [chat("len", f"`len(x)`: {HEART}")],
    ]
    monkeypatch.setattr(library, "VALIDATION", 0.1)
    monkeypatch.setattr(python_source, "documents", lambda: files)
    monkeypatch.setattr(pydocs, "groups", lambda: groups)
    return files, groups


def test_held_out_are_the_test_files_of_the_corpus_that_are_not_known_by_heart(small):
    files, _ = small
    assert library.held_out() == [files[19]]


def test_it_reads_every_other_file_once(small):
    files, _ = small
    parts = library.parts()
    known = [d for part in (parts.train, parts.validation) for d in part if d in files]
    assert sorted(known) == sorted({*files} - {files[19]})


def test_validation_is_files_alone_that_are_not_learned(small):
    files, _ = small
    parts = library.parts()
    assert 0 < len(parts.validation) < 5
    assert {*parts.validation} <= {*files}
    assert not {*parts.validation} & {d for d in parts.train if isinstance(d, str)}


def test_it_reads_no_documentation_of_a_held_out_file(small):
    parts = library.parts()
    everything = str([*parts.train, *parts.validation])
    assert LONG not in everything
    assert ELSEWHERE in everything
    assert everything.count(HEART) == library.COPIES + 1  # and the file


def test_an_embedded_model_has_no_score_on_files_that_it_may_have_read(small, monkeypatch):
    files, _ = small
    assert library.unread("runs/mine") == [files[19]]
    with pytest.raises(InputError, match=r"code: it may have read files .* 3\.11\.7$"):
        library.unread(library.MODELS / "code")
    monkeypatch.setattr(library, "UNREAD", hashlib.sha256(files[19].encode()).hexdigest())
    assert library.unread(library.MODELS / "code") == [files[19]]


def test_the_same_seed_gives_the_same_documents_and_another_another_order():
    assert library.parts(1) == library.parts(1) != library.parts(2)
