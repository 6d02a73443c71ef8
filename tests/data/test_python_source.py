import ast
import warnings

import pytest

from mlx_gateloop.data import python_source


@pytest.fixture
def library(tmp_path, monkeypatch):
    monkeypatch.setattr(python_source.sysconfig, "get_path", lambda _: str(tmp_path))

    def write(**files):
        for name, text in files.items():
            file = tmp_path / f"{name.replace('__', '/')}.py"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(text.encode() if isinstance(text, str) else text)
        return list(python_source.documents.__wrapped__())

    return write


def lines(first, last):
    return "".join(f"variable_{n} = {n}\n" for n in range(first, last))


def test_the_standard_library():
    documents = python_source.documents()
    assert documents == python_source.documents.__wrapped__()  # read again, not from the cache
    assert 5_000_000 < sum(map(len, documents)) < 20_000_000
    assert len(set(documents)) == len(documents)
    assert any("class JSONDecoder" in document for document in documents)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # invalid escapes in old modules
        for document in documents[::20]:
            ast.parse(document)


def test_tests_packages_what_belongs_to_the_machine_and_copies_are_left_out(library):
    skipped = ["test__a", "unittest__test__b", "site-packages__c", "pydoc_data__topics"]
    skipped += ["_sysconfigdata_d", "tkinter__idle_test__e"]
    files = {name: lines(10 * n, 10 * n + 5) for n, name in enumerate(["kept", *skipped])}
    assert library(**files) == [files["kept"]]
    texts = {"a": lines(0, 8), "b": lines(0, 8), "c": lines(4, 13), "d": lines(8, 13) + "x\n" * 9}
    assert library(**texts) == [texts["a"], texts["c"]]
    assert library(**texts, e=lines(5, 30)) == [texts["a"], texts["c"], lines(5, 30)]


def test_files_are_decoded_as_they_say(library):
    latin = "# coding: latin-1\r\nthe_name = 'Löwe'\r\n"
    assert library(a=latin.encode("latin-1")) == [latin.replace("\r\n", "\n")]
    assert library(a=b"\xef\xbb\xbfvariable = 1\n") == ["variable = 1\n"]
