"""The page's scripts: a browser never runs an old one."""

import shutil
import subprocess
from pathlib import Path

import pytest
from mlx_gateloop.app.page import scripts
from starlette.applications import Starlette
from starlette.testclient import TestClient

NODE = shutil.which("node")
MODULES = Path(__file__).parent / "modules"


def test_scripts_are_served_as_modules_and_checked_each_time():
    client = TestClient(Starlette(routes=scripts.routes()))
    url = f"{scripts.URL}/state_view.js"
    answer = client.get(url)
    assert answer.status_code == 200
    assert "javascript" in answer.headers["content-type"]
    assert answer.headers["cache-control"] == "no-cache"
    again = client.get(url, headers={"if-none-match": answer.headers["etag"]})
    assert again.status_code == 304
    for folder in (scripts.URL, scripts.SHARED_URL):
        assert client.get(f"{folder}/%2e%2e/layout.py").status_code == 404


@pytest.mark.skipif(NODE is None, reason="there is no node on this machine")
@pytest.mark.parametrize("module", [file.name[:-8] for file in sorted(MODULES.glob("*.test.js"))])
def test_modules(module):
    done = subprocess.run(
        [NODE, "--test", MODULES / f"{module}.test.js"], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout
