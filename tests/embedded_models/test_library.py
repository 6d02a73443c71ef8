"""The text of a model that writes code: what it holds, and what no model reads."""

import hashlib
import sysconfig

import pytest

from benchmarks.embedded_models import library, pydocs
from mlx_gateloop.data import python_source
from mlx_gateloop.errors import InputError

LONG = "Return the number of the items that stand in the container."
HEART = "Return the length of a thing, which is the number of its items."
ELSEWHERE = "Set the temperature of the water that comes from this tap."


def chat(name, answer):
    question = f"What does `{name}` do?"
    return [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]


@pytest.fixture(autouse=True)
def small(monkeypatch, tmp_path):
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
    others = {"bad.py": "# coding: none", "site-packages/test_y.py": "of others"}
    others["test/x19/test_y.py"] = "in a folder"
    sources = {f"x{number}.py": text for number, text in enumerate(files)}
    tests = {f"test/test_x{number}.py": f"test {number}" for number in range(40)}
    for name, text in (others | sources | tests).items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    return files, groups


def test_it_reads_every_other_file_once_and_validates_on_files_alone(small):
    files, _ = small
    assert library.held_out() == [files[19]], "not the other test file, which is known by heart"
    parts = library.parts()
    assert 0 < len(parts.validation) < 5
    known = [d for part in (parts.train, parts.validation) for d in part if d in files]
    assert sorted(known) == sorted({*files} - {files[19]})
    assert {*parts.validation} <= {*files}
    everything = str([*parts.train, *parts.validation])
    assert LONG not in everything, "documentation of a held-out file"
    assert ELSEWHERE in everything
    assert everything.count(HEART) == library.COPIES + 1  # and the file
    assert parts == library.parts() != library.parts(2)
    unread = [files[19], *parts.validation]
    assert {d for d in parts.train if "test" in d} == {
        f"test {number}" for number, file in enumerate(files) if file not in unread
    }
    assert not any(d in ("of others", "in a folder") for d in parts.train)
    asked, again = chat("len", f"`len(x)`: {HEART}"), library.answers(parts.train)
    assert again.count(asked) >= library.REPEATED
    rest = [d for d in again if d != asked]
    assert 0 < len(rest) < len(again)
    assert all(d in parts.train for d in rest)


def test_an_embedded_model_has_no_score_on_files_that_it_may_have_read(small, monkeypatch):
    files, _ = small
    assert library.unread("runs/mine") == [files[19]]
    with pytest.raises(InputError, match=r"code: it may have read files .* 3\.11\.7$"):
        library.unread(library.MODELS / "code")
    monkeypatch.setattr(library, "UNREAD", hashlib.sha256(files[19].encode()).hexdigest())
    assert library.unread(library.MODELS / "code") == [files[19]]
