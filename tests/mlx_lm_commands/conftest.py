"""Every command of mlx_lm on a saved directory, with texts in place of the hub's."""

import re

import pytest
from helpers.mlx_lm_commands import TEXT, saved
from mlx_lm import utils

from mlx_gateloop import cli


@pytest.fixture(autouse=True)
def surroundings(tmp_path, monkeypatch):
    """A home directory with the text that mlx_lm would download for calibration."""
    calibration = tmp_path / "home" / ".cache" / "mlx-lm" / "calibration_v5.txt"
    calibration.parent.mkdir(parents=True)
    calibration.write_text(TEXT)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="session")
def directory(tmp_path_factory):
    return saved(tmp_path_factory.mktemp("models") / "tiny", output_gate=True)


@pytest.fixture
def main(monkeypatch, capsys):
    """Runs `gateloop mlx-lm COMMAND ARGUMENTS` and gives what it printed."""

    def run(command, *arguments):
        monkeypatch.setattr(utils, "load_model", utils.load_model)  # put back afterwards
        capsys.readouterr()
        assert cli.main(["mlx-lm", command, *map(str, arguments)]) == 0
        return re.sub(r"\x1b\[[\d;]*\w", "", capsys.readouterr().out)  # without colours

    return run
