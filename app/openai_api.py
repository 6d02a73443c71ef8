"""OpenAI's chat and text completions over HTTP, for programs such as Open WebUI."""

import asyncio
import json
import re
import secrets
import time
from collections.abc import AsyncIterator
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Route

from mlx_gateloop.errors import InputError

from .generation.engine import FAILED, SHUT_DOWN, STUCK, Engine
from .generation.run import Run
from .server import request_values
from .server.failed_logins import FailedLogins

CONVERSATION = "openai"  # whose cached states all requests share; messages are their keys
POLL_SECONDS = 0.02
BEARER = re.compile("^bearer +", re.IGNORECASE)
DEFAULTS = {"temperature": 0.7, "top_p": 0.95, "seed": -1}
# mlx_lm.server's further settings, off.
DEFAULTS |= {"top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0}
# by the beginnings of errors; others are the request's
STATUS = {"the server is busy": 503, SHUT_DOWN: 503, FAILED: 500, STUCK: 500}
STATUS["model: there is no "] = 404


class OpenAI:
    """The endpoints under /v1 on one engine; with a login, the API key is the password."""

    def __init__(self, engine: Engine, first_model: str, auth: tuple[str, str] | None) -> None:
        self.engine, self.first_model = engine, first_model
        self.keys = [] if auth is None else [auth[1].encode(), ":".join(auth).encode()]
        self.failed_logins = FailedLogins()

    def routes(self) -> list[BaseRoute]:
        return [
            Route("/v1/models", self.answer),
            Route("/v1/models/{name:path}", self.answer),
            Route("/v1/chat/completions", self.answer, methods=["POST"]),
            Route("/v1/completions", self.answer, methods=["POST"]),
        ]

    async def answer(self, request: Request) -> Response:
        """List the models, answer messages or continue a text; a wrong key gets its answer late."""
        key = BEARER.sub("", request.headers.get("authorization", "")).encode("latin-1")
        if self.keys and not any(secrets.compare_digest(key, right) for right in self.keys):
            address = request.client.host if request.client else ""
            busy = await self.failed_logins.answer(address, "API key") == 429
            return _error("API key: expected the app's password", 429 if busy else 401)
        try:
            if request.method != "POST":
                return JSONResponse(self._models(request.path_params.get("name")))
            chat = request.url.path.endswith("/chat/completions")
            return await self._complete(request, await request.json(), chat)
        except RecursionError:
            return _error("request: nested too deeply", 400)
        except InputError as error:
            return _error(str(error))

    def _models(self, name: str | None) -> dict[str, Any]:
        """Describe a model, or all."""
        if name:
            self.engine.models.check(name)
            return {"id": name, "object": "model", "created": 0, "owned_by": "local"}
        return {"object": "list", "data": [*map(self._models, self.engine.models.names())]}

    async def _complete(self, request: Request, body: Any, chat: bool) -> Response:
        if not isinstance(body, dict) or body.get("n") not in (None, 1):
            raise InputError("request: expected an object, in which n is 1")
        model = request_values.check_type("model", body.get("model") or self.first_model, str)
        await self.engine.fetch(model)
        chosen = {name: body[name] for name in DEFAULTS if body.get(name) is not None}
        chosen["repetition_penalty"] = chosen.get("repetition_penalty") or 1.0  # 0 is off, too
        limit = self.engine.limits.max_tokens
        asked = (body.get(name) for name in ("max_completion_tokens", "max_tokens"))
        most = next((number for number in asked if number is not None), limit)
        stops = body.get("stop") or []
        stops = tuple(stops if isinstance(stops, list) else [stops])
        if len(stops) > 4 or not all(isinstance(s, str) and 0 < len(s) < 65 for s in stops):
            raise InputError("stop: expected at most 4 strings of 1 to 64 characters")
        messages = _messages(body.get("messages")) if chat else []
        prompt = messages if chat else _text("prompt", body.get("prompt"))
        given = [m["content"] for m in messages[-1:] if m["role"] == "assistant"]
        sampling = request_values.sampling(**DEFAULTS | chosen)
        count = min(request_values.integer("max_tokens", most), limit)
        run = self.engine.submit(model, prompt, sampling, count, False, CONVERSATION, stops)
        answer = _Answer(run, stops, chat, len("".join(given)))
        if body.get("stream") is True:
            options = body.get("stream_options")
            usage = isinstance(options, dict) and options.get("include_usage") is True
            return StreamingResponse(answer.events(usage), media_type="text/event-stream")
        await run.ended(request.is_disconnected)
        return JSONResponse(answer.whole())


class _Answer:
    """A run as OpenAI's objects; the first `given` letters of its answer are the request's."""

    def __init__(self, run: Run, stops: tuple[str, ...], chat: bool, given: int) -> None:
        self.run, self.stops, self.chat, self.given = run, stops, chat, given
        self.kind = "chat.completion" if chat else "text_completion"
        self.head = {"id": f"cmpl-{run.id}", "created": int(time.time()), "model": run.model}

    def whole(self) -> dict[str, Any]:
        answer = self._object("message", self._text(), self._reason())
        return answer | {"object": self.kind, "usage": self._usage()}

    async def events(self, usage: bool) -> AsyncIterator[str]:
        """Yield server-sent events; closing the generator cancels the run."""
        sent, done, run = 0, False, self.run
        try:
            while not done:
                done = run.done  # read first: the last event has all of the text
                text = self._text()
                if text[sent:] or (done and not run.error):
                    reason = self._reason() if done else None
                    yield _data(self._object("delta", text[sent:], reason))
                sent = len(text)
                await asyncio.sleep(0 if done else POLL_SECONDS)
            if run.error:
                yield f"data: {bytes(_error(run.error).body).decode()}\n\n"
                return
            if usage:
                last = self._object("delta", "", None)
                yield _data(last | {"choices": [], "usage": self._usage()})
            yield "data: [DONE]\n\n"
        finally:
            run.cancel()

    def _object(self, name: str, text: str, reason: str | None) -> dict[str, Any]:
        part = {name: {"role": "assistant", "content": text}} if self.chat else {"text": text}
        choice = {"index": 0, **part, "finish_reason": reason}
        kind = f"{self.kind}.chunk" if self.chat else self.kind
        return {**self.head, "object": kind, "choices": [choice]}

    def _text(self) -> str:
        """Return the text so far, without the first stop string or what may become one."""
        text = self.run.text[self.given :]
        found = [(at + len(stop), at) for stop in self.stops if (at := text.find(stop)) >= 0]
        if found:
            return text[: min(found)[1]]
        held = 0 if self.run.done else max(map(len, self.stops), default=1) - 1
        return text[: max(0, len(text) - held)]

    def _reason(self) -> str:
        return "length" if self.run.reason == "limit" else "stop"

    def _usage(self) -> dict[str, int]:
        read, new = self.run.stats.prompt_tokens, self.run.stats.tokens
        return {"prompt_tokens": read, "completion_tokens": new, "total_tokens": read + new}


def _messages(messages: object) -> list[dict[str, Any]]:
    if not isinstance(messages, list) or not all(isinstance(each, dict) for each in messages):
        raise InputError("messages: expected a list of messages, each with role and content")
    roles = {"developer": "system"}
    return [
        {"role": roles.get(role, role), "content": _text("content", each.get("content"))}
        for each in messages
        for role in [str(each.get("role"))]
    ]


def _text(name: str, value: object) -> str:
    """Return a text; a list of one text, or of a message's parts, is one, too."""
    parts = value if isinstance(value, list) else [value]
    texts = [part.get("text") if isinstance(part, dict) else part for part in parts]
    if len(texts) > 1 and not all(isinstance(part, dict) for part in parts):
        raise InputError(f"{name}: expected one text")
    return "".join(request_values.check_type(name, text, str) for text in texts)


def _data(value: dict[str, Any]) -> str:
    return f"data: {json.dumps(value)}\n\n"


def _error(message: str, status: int = 0) -> JSONResponse:
    status = status or next((STATUS[key] for key in STATUS if message.startswith(key)), 400)
    kind = "invalid_request_error" if status < 500 else "server_error"
    return JSONResponse({"error": {"message": message, "type": kind}}, status)
