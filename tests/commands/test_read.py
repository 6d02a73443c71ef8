"""`gateloop read`, and `gateloop generate` with what it has read."""

import io
import signal
import sys

import mlx.core as mx
import pytest
from helpers.commands import fails
from helpers.models import close

import mlx_gateloop as gl
from mlx_gateloop.cli import main
from mlx_gateloop.commands import read
from mlx_gateloop.data import pack

BOOK = "".join(f"Line {n} of the buch, größer than before.\n" for n in range(40))


@pytest.fixture(autouse=True)
def book(work, monkeypatch):
    """A book, which is read in small blocks."""
    (work / "book.txt").write_text(BOOK)
    monkeypatch.setattr(read, "BLOCK", 100)
    monkeypatch.setattr(read, "TOKENS", 30)


ARGV = ["--model", "model", "--out", "book.state"]


def reads(source, *more):
    return main(["read", source, *ARGV, *more])


def state():
    return gl.read_state("book.state", *gl.load("model"))


def is_state_after(*texts):
    """Assert that the state is the one after these texts."""
    model, tokenizer = gl.load("model")
    ids = pack(texts, tokenizer).tokens[:-1].tolist()
    assert state().tokens == len(ids)
    close(state().logits, model(mx.array([ids]))[0, -1])


@pytest.mark.parametrize("text", [BOOK, BOOK.replace("\n", "ß"), BOOK[:70]])
def test_a_text_is_read_whole(model, work, capsys, monkeypatch, text):
    monkeypatch.setattr(read, "LINE", 200)
    (work / "book.txt").write_text("\ufeff" + text)
    assert reads("book.txt") == 0
    is_state_after(text)
    assert f"book.state: {state().tokens:,} tokens read" in capsys.readouterr().err
    assert "exists; add --resume" in fails(capsys, "read", "book.txt", *ARGV)


def test_a_folder_is_read_in_order_and_standard_input_at_once(model, work, monkeypatch):
    (work / "books").mkdir()
    (work / "books" / "b.txt").write_text(BOOK)
    (work / "books" / "a.md").write_text("First.")
    (work / "books" / "0.md").write_text("")
    assert reads("books") == 0
    is_state_after("First.", BOOK)
    (work / "book.state").unlink()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(BOOK.encode())))
    assert reads("-") == 0
    is_state_after(BOOK)


@pytest.mark.parametrize(("after", "code"), [(1, 130), (2, 130), (5, 130), (12, 2)])
def test_an_interrupted_reading_is_resumed(model, work, capsys, monkeypatch, after, code):
    passes = iter(range(1, 1000))
    whole = gl.State.read

    def interrupted(self, model, ids):
        whole(self, model, ids)
        if next(passes) == after:
            if code == 2:  # inside a block
                raise MemoryError
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(gl.State, "read", interrupted)
    if code == 2:  # nothing is saved at the end
        monkeypatch.setattr(read, "SECONDS", -1)
    assert reads("book.txt") == code
    assert ("--resume continues" if code == 130 else "memory") in capsys.readouterr().err
    assert 0 < state().tokens < len(BOOK)
    assert reads("book.txt", "--resume") == 0
    is_state_after(BOOK)
    capsys.readouterr()
    (work / "book.txt").write_text("short")
    assert "the text has 5" in fails(capsys, "read", "book.txt", *ARGV, "--resume")


def test_a_text_that_has_grown_is_read_on(model, work, capsys):
    for number, text in enumerate(["one\ntwo\n", "one\ntwo\nthree\nend"]):
        (work / "book.txt").write_text(text)
        assert reads("book.txt", *["--resume"] * number) == 0
        is_state_after(text)
    (work / "book.txt").write_text("one\ntwo\nthree\nending")
    capsys.readouterr()
    assert "17 bytes end in a line" in fails(capsys, "read", "book.txt", *ARGV, "--resume")
    (work / "book.txt").write_text("one\ntwo\nthird\nend\nand")
    assert "17 bytes of another text" in fails(capsys, "read", "book.txt", *ARGV, "--resume")


@pytest.mark.parametrize("read_on", [False, True])
def test_a_tuned_state_is_no_reading_to_resume(model, work, capsys, read_on):
    loaded = gl.load("model")
    (read := gl.State(loaded[0].make_cache())).read(loaded[0], [7, 8, 9])
    gl.write_state("book.state", read if read_on else gl.State(read.cache), *loaded)
    before = (work / "book.state").read_bytes()
    assert "not of a text that" in fails(capsys, "read", "book.txt", *ARGV, "--resume")
    assert (work / "book.state").read_bytes() == before


def test_waiting_for_text_can_be_interrupted(model, work, monkeypatch):
    class Pipe(io.BytesIO):
        def read(self, size):
            if not (text := super().read(size)):
                signal.raise_signal(signal.SIGINT)
                raise AssertionError("it would wait for more")
            return text

    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(Pipe(BOOK.encode())))
    assert reads("-") == 130
    is_state_after(BOOK)


def test_what_is_no_text_ends_with_what_was_read(model, work, capsys):
    (work / "book.txt").write_bytes(BOOK.encode() + b"\xff\xfe")
    assert "not UTF-8 text (byte 0xFF at offset" in fails(capsys, "read", "book.txt", *ARGV)
    assert 0 < state().tokens <= len(BOOK.encode())
    (work / "book.state").unlink()
    for name, message in {"none.txt": "no such file or folder", "empty.txt": "no text"}.items():
        assert message in fails(capsys, "read", name, *ARGV)
    assert not (work / "book.state").exists()


def test_generate_goes_on_from_a_state(model, work, capsys):
    assert reads("book.txt") == 0
    argv = ["generate", "--model", "model", "--temperature", "0", "--max-tokens", "12"]
    state, texts = ["--state", "book.state"], []
    for given in (
        ["--prompt", BOOK], state, [*state, "--lookup"],
        ["--prompt", BOOK + "Li"], [*state, "--prompt", "Li"],
    ):  # fmt: skip
        assert main([*argv, *given]) == 0
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1] == texts[2]
    assert texts[3] == texts[4]
    assert "--lookup and --draft" not in fails(capsys, *argv, *state, "--samples", "2")


def test_samples_are_texts_of_their_own(model, capsys):
    argv = ["generate", "--model", "model", "--prompt", "a", "--max-tokens", "9"]
    assert main([*argv, "--samples", "3", "--seed", "1"]) == 0
    assert len(set(capsys.readouterr().out.removesuffix("\n").split("\n---\n"))) == 3
    assert main([*argv, "--temperature", "0"]) == 0
    one = capsys.readouterr().out
    assert main([*argv, "--temperature", "0", "--samples", "2"]) == 0
    assert capsys.readouterr().out == f"{one}---\n{one}"
    assert "--samples: expected 1 to 1,024, got 0" in fails(capsys, *argv, "--samples", "0")
