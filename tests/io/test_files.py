import fcntl
import threading

import pytest

from mlx_gateloop.io.files import NO_LOCKS, locked, replacing, staged


def test_the_file_appears_when_the_block_ends(tmp_path):
    path = tmp_path / "text.npz"
    with replacing(path) as partial:
        partial.write_text("new")
        assert partial.suffix == ".npz"
        assert not path.exists()
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("error", [OSError("disk full"), KeyboardInterrupt()])
def test_a_failure_leaves_what_was_there(tmp_path, error):
    path = tmp_path / "text.txt"
    path.write_text("old")

    def fail():
        with replacing(path) as partial:
            partial.write_text("half")
            raise error

    with pytest.raises(type(error)):
        fail()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_nothing_written_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError), replacing(tmp_path / "text.txt"):
        pass


def test_two_writers_do_not_mix(tmp_path):
    path, barrier = tmp_path / "text.txt", threading.Barrier(2)

    def write(text):
        with replacing(path) as partial:
            partial.write_text(text)
            barrier.wait(timeout=600)

    threads = [threading.Thread(target=write, args=(text * 1000,)) for text in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert path.read_text() in ("a" * 1000, "b" * 1000)
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("number", NO_LOCKS)
def test_a_file_system_without_locks_can_be_written_to(tmp_path, monkeypatch, number):
    def refuse(*_):
        raise OSError(number, "no locks")

    monkeypatch.setattr(fcntl, "flock", refuse)
    other = tmp_path / ".making-new-x"  # another process may be at work in it
    other.mkdir()
    with locked(tmp_path) as held, staged(tmp_path / "new") as new:
        assert not held
        new.mkdir()
    assert {path.name for path in tmp_path.iterdir()} == {"new", other.name}
