"""Answers of the real server to programs."""

import base64
import http.client
import json
import re
import socket
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from gradio_client import Client
from gradio_client.exceptions import AppError
from helpers.browser import ROOT, request

from mlx_gateloop.watch.sharing import HIGH, LOW


@pytest.fixture(scope="module")
def client(server):
    return Client(server.url, verbose=False)


def test_no_event_of_the_page_puts_a_sign_of_progress_over_it(client):
    events = [event for event in client.config["dependencies"] if event["backend_fn"]]
    private = [event for event in events if event["api_visibility"] == "private"]
    assert len(private) > 10
    assert {event["show_progress"] for event in private} == {"hidden"}


def test_programs_can_ask_too(client, server):
    def ask(**options):
        return client.predict(
            "abc", **{"max_tokens": 5, "seed": 1, **options}, api_name="/generate"
        )

    answer, plain = ask(transitions=True), ask()
    assert answer["tokens"] == 5
    assert answer["prompt_tokens"] == 3
    assert plain["text"] == answer["text"] != ask(seed=2)["text"]
    assert "transitions" not in plain
    assert ask(chat=True)["prompt_tokens"] > 3
    sent = answer["transitions"]
    layers, tokens, planes, _ = sent["shape"]
    assert (tokens, planes) == (8, 2)
    codes = np.frombuffer(base64.b64decode(sent["columns"]), np.uint8).reshape(sent["shape"])
    magnitude = np.exp(-LOW * (HIGH / LOW) ** (codes[:, :, 0] / 255))
    mean = np.array(sent["mean_magnitude"])
    assert mean.shape == (tokens, layers)
    np.testing.assert_allclose(magnitude.mean(2).T, mean, atol=0.01)
    with pytest.raises(AppError, match=r"^model: there is no \"<'x'>\"; choose") as error:
        ask(model="<'x'>")
    assert "\n" not in str(error.value)
    assert "Traceback" not in server.log.read_text()


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


@pytest.mark.slow
def test_an_ipv6_address_is_served_under_its_name(start_server):
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        pytest.skip("this machine has no IPv6")
    server = start_server("--host", "::1")
    port = int(re.search(r"http://\[::1\]:(\d+)/", server.log.read_text())[1])

    def status(name):
        connection = http.client.HTTPConnection("::1", port, timeout=120)
        connection.request("GET", "/config", headers={"Host": f"{name}:{port}"})
        with connection.getresponse() as answer:
            connection.close()
            return answer.status

    assert [status(name) for name in ("[::1]", "localhost", "127.0.0.1")] == [200] * 3
    assert [status(name) for name in ("[::2]", "evil.example")] == [400] * 2
