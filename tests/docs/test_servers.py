"""The script of docs/watching.md records what mlx-lm's server answers."""

import re
import signal
import sys
from pathlib import Path

import numpy as np
import pytest
from helpers.mlx_lm_server import serving
from helpers.recurrent import save_recurrent_model

PAGE = Path(__file__).parents[2] / "docs" / "watching.md"
BEGIN = "import sys; del sys.argv[1]\n"  # "server", which mlx_lm's command has


@pytest.mark.slow
def test_a_server_is_recorded(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = save_recurrent_model(tmp_path / "models" / "mine", "falcon_h1")
    scripts = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    (script,) = (script for script in scripts if "server.main()" in script)
    with serving(model, tmp_path / "log", mlx_lm=[sys.executable, "-c", BEGIN + script]) as server:
        status, _ = server.post("/v1/completions", {"prompt": "hello", "max_tokens": 4})
        assert status == 200
        server.process.send_signal(signal.SIGINT)
        assert server.process.wait(120) == 0
    with np.load("trace.npz") as trace:
        assert trace["names"].tolist() == [f"model.layers.{n}.mamba" for n in range(2)]
        assert trace["magnitude"].shape[1] >= len("hello") + 3
