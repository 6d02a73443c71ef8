"""The page's scripts: a browser never runs an old one."""

from mlx_gateloop.app.page import scripts
from starlette.applications import Starlette
from starlette.testclient import TestClient


def test_scripts_are_served_as_modules_and_checked_each_time():
    client = TestClient(Starlette(routes=scripts.routes()))
    url = f"{scripts.URL}/state_view.js"
    answer = client.get(url)
    assert answer.status_code == 200
    assert "javascript" in answer.headers["content-type"]
    assert answer.headers["cache-control"] == "no-cache"
    assert client.get(url, headers={"if-none-match": answer.headers["etag"]}).status_code == 304
    for folder in (scripts.URL, scripts.SHARED_URL):
        assert client.get(f"{folder}/%2e%2e/layout.py").status_code == 404
