"""Files and directories that are whole or as before, whatever stops their writer."""

import fcntl
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest.mock import Mock

import pytest
from helpers.experiments import names

from mlx_gateloop.errors import InputError
from mlx_gateloop.io.files import (
    NO_LOCKS,
    contents,
    locked,
    replacing,
    require_writable,
    staged,
    sweep,
)


def fail(path, error):
    with replacing(path) as partial:
        partial.write_text("half")
        raise error


def test_the_file_appears_when_the_block_ends(tmp_path):
    path = tmp_path / "text.npz"
    with replacing(path) as partial:
        partial.write_text("new")
        assert partial.suffix == ".npz"
        assert not path.exists()
    assert path.read_text() == "new"
    for error in (OSError("disk full"), KeyboardInterrupt()):
        with pytest.raises(type(error)):
            fail(path, error)
    with pytest.raises(FileNotFoundError), replacing(path):
        pass
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


def test_contents_are_what_somebody_put_there(tmp_path):
    (tmp_path / ".DS_Store").touch()
    (tmp_path / ".thesis-20261127").mkdir()
    assert contents(tmp_path) == [tmp_path / ".thesis-20261127"]
    sweep(tmp_path)
    assert names(tmp_path) == {".DS_Store", ".thesis-20261127"}


def test_two_writers_do_not_mix(tmp_path):
    path, barrier = tmp_path / "text.txt", threading.Barrier(2)

    def write(text):
        with replacing(path) as partial:
            partial.write_text(text)
            barrier.wait(timeout=600)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(write, ("a" * 1000, "b" * 1000)))
    assert path.read_text() in ("a" * 1000, "b" * 1000)
    assert list(tmp_path.iterdir()) == [path]


@pytest.fixture
def target(tmp_path):
    target = tmp_path / "out"
    target.mkdir()
    (target / "old").write_text("old")
    return target


def make(target):
    with staged(target) as new:
        new.mkdir()
        (new / "new").write_text("new")


@pytest.mark.parametrize("number", NO_LOCKS)
def test_a_file_system_without_locks_can_be_written_to(target, monkeypatch, number):
    monkeypatch.setattr(fcntl, "flock", Mock(side_effect=OSError(number, "no locks")))
    other = target.with_name(".making-out-x")  # another process may be at work in it
    other.mkdir()
    with locked(target.parent) as held:
        assert not held
        make(target)
    assert names(target.parent) == {"out", other.name}
    assert names(target) == {"new"}


def test_what_a_link_names_is_replaced(target):
    link = target.parent / "link"
    link.symlink_to("out")
    make(link)
    assert link.readlink() == Path("out")
    assert (names(target), names(target.parent)) == ({"new"}, {"out", "link"})
    (target.parent / "first").symlink_to("later")
    make(target.parent / "first")
    assert names(target.parent / "later") == {"new"}
    (target.parent / "far").symlink_to(Path(__file__) / "x")
    with pytest.raises(InputError, match=r"far: .* is not a folder to write in"):
        require_writable(target.parent / "far")


def test_what_a_killed_process_left_is_deleted(target):
    (target.with_name(".making-out-abcdefgh") / "out").mkdir(parents=True)
    other, longer = (target.with_name(f".making-out-{end}") for end in ("ijklmnop", "of-abcdefgh"))
    for kept in (other, longer):
        (kept / "before").mkdir(parents=True)
    with locked(other):  # by a process that goes on
        make(target)
    assert names(target.parent) == {other.name, longer.name, "out"}
    assert names(target) == {"new"}
    assert names(longer) == {"before"}, "the old directory of another name"


@pytest.mark.parametrize("error", [OSError("no"), KeyboardInterrupt()])
def test_a_directory_that_cannot_be_replaced_stays(target, monkeypatch, error):
    rename = Path.rename

    def fail(path, to):
        if path.name == to.name:  # the second of the two renames
            monkeypatch.undo()
            raise error
        return rename(path, to)

    monkeypatch.setattr(Path, "rename", fail)
    with pytest.raises((InputError, KeyboardInterrupt)):
        make(target)
    assert (names(target), names(target.parent)) == ({"old"}, {"out"})


@pytest.mark.parametrize("kind", [OSError, RuntimeError])  # MLX raises the latter
def test_no_error_names_the_folder_in_which_a_file_is_made(target, kind):
    def fail():
        with staged(target) as new:
            raise OSError(28, "disk", str(new)) if kind is OSError else RuntimeError(f"disk {new}")

    with pytest.raises(InputError, match=rf"^{target}: disk") as caught:
        fail()
    assert ".making-" not in str(caught.value)
    assert names(target.parent) == {"out"}


def test_what_was_moved_away_comes_back(target):
    """A kill may come between the two renames that replace a directory."""
    left = target.with_name(".making-out-abcdefgh")
    left.mkdir()
    target.rename(left / "before")
    with pytest.raises(InputError), staged(target):
        raise OSError("no space")
    assert (names(target), names(target.parent)) == ({"old"}, {"out"})
