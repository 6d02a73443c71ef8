"""OpenAI's endpoints: objects, streams, limits, the key, and twenty clients at once."""

import asyncio
import json
from functools import partial

import httpx
import pytest
from helpers.mlx_lm_server import text_of
from mlx_gateloop.app import openai_api
from mlx_gateloop.app.generation.engine import FAILED, SHUT_DOWN
from mlx_gateloop.app.generation.run import Run, Token
from mlx_gateloop.app.openai_api import OpenAI
from starlette.applications import Starlette
from starlette.testclient import TestClient

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
HELLO = [{"role": "user", "content": "hello"}]
GREEDY = {"messages": HELLO, "temperature": 0, "max_tokens": 24}
SAMPLING = openai_api.request_values.sampling(temperature=0, top_p=0.95, seed=None)  # of GREEDY


@pytest.fixture
def make_client(engine):
    return lambda auth=None: TestClient(
        Starlette(routes=OpenAI(engine, "tiny", auth).routes()),
        "http://testserver/chat", root_path="/chat",  # no part of the endpoint's name
    )  # fmt: skip


@pytest.fixture
def ask(make_client):
    post = make_client().post
    return lambda path, body: post(path, **{"content" if type(body) is str else "json": body})


def test_the_models_are_listed(make_client, ask):
    get = make_client().get
    listed = get("/v1/models").json()["data"]
    assert [get(f"/v1/models/{name}").json() for name in ("fixed", "tiny")] == listed
    assert listed[0].keys() == {"id", "object", "created", "owned_by"}  # of OpenAI's schema
    assert get("/v1/models/").json()["data"] == listed
    unknown = [get("/v1/models/a/b"), ask(CHAT, GREEDY | {"model": "a/b"})]
    assert [answer.status_code for answer in unknown] == [404, 404]


def test_an_answer_is_the_engine_s_and_a_stream_has_the_same_text(ask, engine, finished):
    answer = ask(CHAT, GREEDY).json()
    run = finished(engine.submit("tiny", HELLO, SAMPLING, 24))
    (choice,) = answer["choices"]
    assert choice["message"] == {"role": "assistant", "content": run.text}
    assert choice["finish_reason"] == ("length" if run.reason == "limit" else "stop")
    assert answer["usage"]["completion_tokens"] == run.stats.tokens
    assert (answer["object"], answer["model"]) == ("chat.completion", "tiny")
    events = ask(CHAT, GREEDY | {"stream": True, "stream_options": {"include_usage": True}}).text
    assert events.isascii()  # some readers end a line at U+2028
    *lines, end, nothing = events.split("\n\n")
    assert (end, nothing) == ("data: [DONE]", "")
    *streamed, last = [json.loads(line.removeprefix("data: ")) for line in lines]
    assert "".join(event["choices"][0]["delta"]["content"] for event in streamed) == run.text
    assert streamed[-1]["choices"][0]["finish_reason"] == choice["finish_reason"]
    assert (last["choices"], last["usage"]) == ([], answer["usage"])


def test_a_text_is_continued_and_parts_of_messages_are_joined(ask):
    body = {"prompt": ["abc"], "model": "fixed", "temperature": 0, "max_tokens": 9}
    whole = ask(TEXT, body).json()
    assert (whole["object"], whole["model"]) == ("text_completion", "fixed")
    assert whole["choices"][0]["text"] == text_of(ask(TEXT, body | {"stream": True}).content)
    parts = [{"type": "text", "text": part} for part in ("hel", "lo")]
    joined = GREEDY | {"messages": [{"role": "user", "content": parts}]}
    assert ask(CHAT, joined).json()["choices"] == ask(CHAT, GREEDY).json()["choices"]


def test_a_given_answer_is_continued_and_not_sent_again(ask, engine, finished):
    given = [*HELLO, {"role": "assistant", "content": "Well"}]
    options = {"top_k": 1, "repetition_penalty": 0, "stream_options": {}}
    text = finished(engine.submit("tiny", given, SAMPLING, 8)).text
    assert len(text) > 4
    options["stop"] = ["ell", text[2:6]]  # the answer given has their beginnings
    body = GREEDY | {"messages": given, "max_tokens": 8, "temperature": 1} | options
    assert ask(CHAT, body).json()["choices"][0]["message"]["content"] == text.removeprefix("Well")


def test_nothing_of_a_stop_string_is_sent(ask):
    body = {"prompt": "x" * 40, "temperature": 0, "max_tokens": 40}
    whole = ask(TEXT, body).json()["choices"][0]["text"]
    body["stop"] = ["never", whole[9:12], whole[8:13]]  # the last one ends later
    expected = whole[: whole.index(whole[9:12])]
    (choice,) = ask(TEXT, body).json()["choices"]
    assert choice == {"index": 0, "text": expected, "finish_reason": "stop"}
    assert text_of(ask(TEXT, body | {"stream": True}).content) == expected
    run = Run("tiny", pieces=[Token("less than may be held back", 1, "answer")])
    assert openai_api._Answer(run, ("x" * 60,), True, 0)._text() == ""


@pytest.mark.parametrize(("path", "body", "line"), [
    (CHAT, [], "request: expected an object"), (CHAT, {}, "messages: expected a list of messages"),
    (CHAT, GREEDY | {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
     "content: expected a string"),
    (CHAT, GREEDY | {"model": 3}, "model: expected a string"),
    (CHAT, GREEDY | {"n": 2}, "n is 1"), (CHAT, GREEDY | {"max_tokens": 0}, "max_tokens: "),
    (CHAT, GREEDY | {"stop": ["a"] * 5}, "stop: expected at most 4"),
    (CHAT, GREEDY | {"stop": ["a", 2]}, "stop: expected at most 4"),
    (TEXT, {"prompt": ["a", "b"]}, "prompt: expected one text"),
    (TEXT, "[" * 100_000, "nested too deeply"),
])  # fmt: skip
def test_what_is_wrong_is_one_line(ask, path, body, line):
    answer = ask(path, body)
    assert answer.status_code == 400
    assert line in answer.json()["error"]["message"]


@pytest.mark.parametrize(("error", "status"), [(FAILED, 500), (SHUT_DOWN, 503), ("text: bad", 400)])
def test_the_server_s_own_errors_are_not_the_request_s(ask, engine, monkeypatch, error, status):
    run = Run("tiny")
    run.finish(error)
    monkeypatch.setattr(engine, "submit", lambda *_: run)
    answer = ask(CHAT, GREEDY)
    assert answer.status_code == status
    streamed = ask(CHAT, GREEDY | {"stream": True}).text
    assert json.loads(streamed.removeprefix("data: ")) == answer.json()


@pytest.mark.parametrize("path", ["/v1/models", CHAT, TEXT])
def test_a_password_is_the_key(make_client, monkeypatch, path):
    monkeypatch.setattr("mlx_gateloop.app.server.failed_logins.DELAY_SECONDS", 0.0)
    client, body = make_client(("me", "sécret")), GREEDY | {"prompt": "a"}
    method = "GET" if path == "/v1/models" else "POST"
    keys = {"": 401, "sécret": 200, "Bearer no": 401, "bearer sécret": 200}
    keys["Bearer  me:sécret"] = 200
    for key, status in keys.items():
        headers = {"authorization": key.encode()}
        assert client.request(method, path, json=body, headers=headers).status_code == status


async def test_twenty_at_once_get_the_answers_of_one_and_the_next_is_told_to_wait(make_client):
    sampled = GREEDY | {"temperature": 1, "stream": True}
    bodies = [sampled | {"seed": seed} for seed in range(20)]
    transport = httpx.ASGITransport(make_client().app)
    async with httpx.AsyncClient(transport=transport, base_url="http://app") as client:
        ask = partial(client.post, CHAT)
        alone = [text_of((await ask(json=body)).content) for body in bodies]
        together = await asyncio.gather(*(ask(json=body) for body in bodies))
        assert [text_of(answer.content) for answer in together] == alone
        assert len(set(alone)) > 10
        more = [body | {"stream": False} for body in bodies * 3]
        answers = await asyncio.gather(*(ask(json=body) for body in more))
        assert {answer.status_code for answer in answers} == {200, 503}
