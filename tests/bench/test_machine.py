import subprocess

from mlx_gateloop import __version__
from mlx_gateloop.bench import machine


def test_a_checkout_names_its_commit(monkeypatch, tmp_path):
    place = tmp_path / "mlx_gateloop" / "bench" / "machine.py"
    place.parent.mkdir(parents=True)
    place.write_text("one")
    monkeypatch.setattr(machine, "__file__", str(place))

    def versions():
        machine._commit.cache_clear()
        return machine.facts("x")["versions"].split(", ")[0]

    def git(*words):
        person = ["-c", "user.name=a", "-c", "user.email=a@b"]
        command = ["git", "-C", str(tmp_path), *person, *words]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    assert versions() == f"mlx-gateloop {__version__}"  # an installed package
    git("init")
    assert versions() == f"mlx-gateloop {__version__}"  # git has no answer
    git("add", ".")
    git("commit", "-m", "first")
    git("tag", "v1")
    commit = git("rev-parse", "--short", "HEAD")
    assert versions() == f"mlx-gateloop {__version__} ({commit})"
    place.write_text("two")
    assert versions() == f"mlx-gateloop {__version__} ({commit}-dirty)"
    monkeypatch.setenv("PATH", "")
    assert versions() == f"mlx-gateloop {__version__}"
    machine._commit.cache_clear()
