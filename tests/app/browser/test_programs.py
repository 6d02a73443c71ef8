"""Answers of the real server to programs."""

import json
import re
import sys
from types import SimpleNamespace

import pytest
from gradio_client import Client
from helpers.browser import ROOT, request


@pytest.fixture(scope="module")
def client(server):
    return Client(server.url, verbose=False)


def test_no_event_of_the_page_puts_a_sign_of_progress_over_it(client):
    events = [event for event in client.config["dependencies"] if event["backend_fn"]]
    private = [event for event in events if event["api_visibility"] == "private"]
    assert len(private) > 10
    assert {event["show_progress"] for event in private} == {"hidden"}


class OpenAI:
    """The part of OpenAI's client that the documentation calls; the package is not a requirement.

    Answers have attributes, as the package's own.
    """

    def __init__(self, base_url, api_key):
        self.address = f"{base_url}/chat/completions"
        self.headers = {"Authorization": f"Bearer {api_key}", "Content-Type": "application/json"}
        self.chat = SimpleNamespace(completions=self)

    def create(self, **asked):
        data = json.dumps(asked).encode()
        answer = request(self.address, data=data, headers=self.headers)
        assert answer.status == 200, answer.body
        return json.loads(answer.body, object_hook=lambda fields: SimpleNamespace(**fields))


def test_the_python_of_the_documentation_runs(server, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "openai", SimpleNamespace(OpenAI=OpenAI))
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
