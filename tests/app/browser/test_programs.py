"""Answers of the real server to programs."""

import json
import re
import sys
from types import SimpleNamespace

import pytest
from gradio_client import Client
from helpers.browser import ROOT, request


@pytest.fixture(scope="module")
def events(server):
    """The page's events that ask the server."""
    config = Client(server.url, verbose=False).config
    return [event for event in config["dependencies"] if event["backend_fn"]]


def test_no_event_shows_progress_and_only_answers_wait_in_gradios_queue(events):
    private = [event for event in events if event["api_visibility"] == "private"]
    assert len(private) > 10
    assert {event["show_progress"] for event in private} == {"hidden"}
    # While the stream of one event ends, Gradio's page may miss all messages of another.
    waiting = [event for event in events if event["queue"] is not False and event["targets"]]
    assert len(waiting) > 5
    assert all(event["types"]["generator"] for event in waiting)


def test_requests_pass_the_middleware(server):
    assert request(server.url).status == 200
    assert request(server.url, headers={"Host": "evil.example"}).status == 400
    for path in ("upload", "file=/etc/passwd"):
        assert request(f"{server.url}gradio_api/{path}").status == 403


def openai(base_url, api_key):
    """The part of OpenAI's client that the documentation calls; the package isn't required."""

    def create(**asked):
        headers = {"Authorization": f"Bearer {api_key}", "Content-Type": "application/json"}
        data = json.dumps(asked).encode()
        answer = request(f"{base_url}/chat/completions", data=data, headers=headers)
        return json.loads(answer.body, object_hook=lambda fields: SimpleNamespace(**fields))

    return SimpleNamespace(chat=SimpleNamespace(completions=SimpleNamespace(create=create)))


def test_the_python_of_the_documentation_runs(server, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "openai", SimpleNamespace(OpenAI=openai))
    page = (ROOT / "docs" / "app.md").read_text("utf-8")
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert [block.split()[1] for block in blocks] == ["openai", "gradio_client"]
    names: dict = {}
    for code in blocks:
        assert "http://127.0.0.1:7860/" in code
        exec(code.replace("http://127.0.0.1:7860/", server.url), names)
        if "openai" in code:
            assert "split" in capsys.readouterr().out
    assert names["answer"]["tokens"] > 0
    assert names["answer"]["transitions"]["shape"][1] > names["answer"]["tokens"]
