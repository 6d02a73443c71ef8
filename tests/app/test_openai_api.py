"""OpenAI's endpoints: objects, streams, limits, the key, and twenty clients at once."""

import asyncio
import json

import httpx
import pytest
from mlx_gateloop.app import openai_api
from mlx_gateloop.app.openai_api import OpenAI
from starlette.applications import Starlette

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
HELLO = [{"role": "user", "content": "hello"}]
GREEDY = {"messages": HELLO, "temperature": 0, "max_tokens": 24}


@pytest.fixture
def make_ask(engine):
    def make(auth=None):
        transport = httpx.ASGITransport(Starlette(routes=OpenAI(engine, "tiny", auth).routes()))

        async def ask(path, body=None, **headers):
            async with httpx.AsyncClient(transport=transport, base_url="http://app") as client:
                method = "GET" if body is None else "POST"
                return await client.request(method, path, json=body, headers=headers)

        return ask

    return make


@pytest.fixture
def ask(make_ask):
    return lambda *arguments: asyncio.run(make_ask()(*arguments))


def events(answer):
    lines = [line for line in answer.text.split("\n\n") if line]
    assert all(line.startswith("data: ") for line in lines)
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line[6:]) for line in lines[:-1]]


def text_of(found, chat=True):
    choices = [choice for event in found for choice in event["choices"]]
    return "".join(c["delta"]["content"] if chat else c["text"] for c in choices)


def test_an_answer_is_the_engine_s_and_a_stream_has_the_same_text(ask, engine, finished):
    assert [model["id"] for model in ask("/v1/models").json()["data"]] == ["fixed", "tiny"]
    answer = ask(CHAT, GREEDY).json()
    sampling = openai_api.request_values.sampling(temperature=0, top_p=0.95, seed=None)
    run = finished(engine.submit("tiny", HELLO, sampling, 24))
    (choice,) = answer["choices"]
    assert choice["message"] == {"role": "assistant", "content": run.text}
    assert choice["finish_reason"] == ("length" if run.reason == "limit" else "stop")
    assert answer["usage"]["completion_tokens"] == run.stats.tokens
    assert (answer["object"], answer["model"]) == ("chat.completion", "tiny")
    options = {"stream": True, "stream_options": {"include_usage": True}}
    *streamed, last = events(ask(CHAT, GREEDY | options))
    assert text_of(streamed) == run.text
    assert streamed[-1]["choices"][0]["finish_reason"] == choice["finish_reason"]
    assert (last["choices"], last["usage"]) == ([], answer["usage"])


def test_a_text_is_continued_and_parts_of_messages_are_joined(ask):
    body = {"prompt": ["abc"], "model": "fixed", "temperature": 0, "max_tokens": 9}
    whole = ask(TEXT, body).json()
    assert (whole["object"], whole["model"]) == ("text_completion", "fixed")
    assert whole["choices"][0]["text"] == text_of(events(ask(TEXT, body | {"stream": True})), False)
    parts = [{"type": "text", "text": part} for part in ("hel", "lo")]
    joined = GREEDY | {"messages": [{"role": "user", "content": parts}]}
    assert ask(CHAT, joined).json()["choices"] == ask(CHAT, GREEDY).json()["choices"]


def test_nothing_of_a_stop_string_is_sent(ask):
    body = {"prompt": "x" * 40, "temperature": 0, "max_tokens": 40}
    whole = ask(TEXT, body).json()["choices"][0]["text"]
    body["stop"] = ["never", whole[9:12]]
    expected = whole[: whole.index(whole[9:12])]
    assert ask(TEXT, body).json()["choices"][0] == {
        "index": 0,
        "text": expected,
        "finish_reason": "stop",
    }
    assert text_of(events(ask(TEXT, body | {"stream": True})), False) == expected


@pytest.mark.parametrize(
    ("path", "body", "line"),
    [
        (CHAT, [], "request: expected an object"),
        (CHAT, {}, "messages: expected a list of messages"),
        (
            CHAT,
            GREEDY | {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            "content: expected a string",
        ),
        (CHAT, GREEDY | {"model": 3}, "model: expected a string"),
        (CHAT, GREEDY | {"n": 2}, "n is 1"),
        (CHAT, GREEDY | {"stop": ["a"] * 5}, "stop: expected at most 4"),
        (CHAT, GREEDY | {"stop": ["a", 2]}, "stop: expected at most 4"),
        (TEXT, {"prompt": ["a", "b"]}, "prompt: expected one text"),
    ],
)
def test_what_is_wrong_is_one_line(ask, path, body, line):
    answer = ask(path, body)
    assert answer.status_code == 400
    assert line in answer.json()["error"]["message"]


def test_a_password_is_the_key(make_ask, monkeypatch):
    monkeypatch.setattr("mlx_gateloop.app.server.failed_logins.DELAY_SECONDS", 0.0)
    ask = make_ask(("me", "sécret"))

    async def scene():
        for path, body in (("/v1/models", None), (CHAT, GREEDY), (TEXT, {"prompt": "a"})):
            for headers in ({}, {"authorization": "Bearer wrong"}):
                assert (await ask(path, body, **headers)).status_code == 401
            for key in ("sécret", "me:sécret"):
                answer = await ask(path, body, authorization=f"Bearer {key}".encode())
                assert answer.status_code == 200

    asyncio.run(scene())


def test_twenty_at_once_get_the_answers_of_one_and_the_next_is_told_to_wait(make_ask):
    ask = make_ask()
    sampled = GREEDY | {"temperature": 1, "stream": True}
    bodies = [sampled | {"seed": seed} for seed in range(20)]

    async def scene():
        alone = [text_of(events(await ask(CHAT, body))) for body in bodies]
        together = await asyncio.gather(*(ask(CHAT, body) for body in bodies))
        assert [text_of(events(answer)) for answer in together] == alone
        assert len(set(alone)) > 10
        many = await asyncio.gather(*(ask(CHAT, body | {"stream": False}) for body in bodies * 3))
        return {answer.status_code for answer in many}

    assert asyncio.run(scene()) == {200, 503}
