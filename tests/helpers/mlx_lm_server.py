"""`gateloop mlx-lm server` as a process, and many clients of it: for tests and benchmarks."""

import http.client
import json
import random
import socket
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

from mlx_lm import stream_generate

from mlx_gateloop.io.models import load_any

OURS = (sys.executable, "-m", "mlx_gateloop", "mlx-lm")
START_SECONDS = 180
ANSWER_SECONDS = 180
ATTEMPTS = 10
SYSTEM = "You answer questions about Python in a few words. " * 8
WORDS = ("print", "str.split", "a list", "sorted()", "json", "3 plus 4", "pathlib", "é \N{SNOWMAN}")
Body = dict[str, Any]


@dataclass(frozen=True)
class Server:
    """A server that has begun to answer."""

    process: subprocess.Popen[bytes]
    port: int

    def connect(self):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=ANSWER_SECONDS)

    def post(self, path, body):
        """Send a request and read the whole answer.

        Python's http.server lets five connections wait, and Linux resets some of those beyond.
        """
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        for attempt in range(ATTEMPTS):
            try:
                return self._request("POST", path, data)
            except ConnectionResetError:
                if attempt == ATTEMPTS - 1:
                    raise
        raise AssertionError

    def _request(self, method, path, data=b""):
        with closing(self.connect()) as connection:
            connection.request(method, path, data, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            return answer.status, answer.read()

    def is_healthy(self):
        with suppress(OSError):
            return self._request("GET", "/health")[0] == 200
        return False

    def memory(self):
        pages = Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]
        return int(pages) * 4096


@contextmanager
def serving(model, log, *options, mlx_lm=OURS):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [*mlx_lm, "server", "--model", model, "--port", port, *options]
    with log.open("wb") as out:
        process = subprocess.Popen(list(map(str, command)), stdout=out, stderr=out)
    server = Server(process, port)
    try:
        end = time.monotonic() + START_SECONDS
        while not server.is_healthy():
            if process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"the server did not start: {log.read_text()}")
            time.sleep(0.05)
        yield server
    finally:
        process.terminate()
        process.wait()


def text_of(answer):
    if answer.startswith(b"{"):
        parts = [json.loads(answer)]
    else:
        lines = [line for line in answer.decode().split("\n") if line.startswith("data: {")]
        parts = [json.loads(line.removeprefix("data: ")) for line in lines]
        assert answer.endswith(b"data: [DONE]\n\n"), "the stream broke off"
    texts = []
    for choice in (part["choices"][0] for part in parts):
        message = choice.get("message") or choice.get("delta") or {}
        texts.append(choice.get("text") or message.get("content") or "")
    return "".join(texts)


class Single:
    """Answers of the same model in this process, one request after another."""

    def __init__(self, path):
        self.model, self.tokenizer = load_any(path)
        self.answer = cache(self._answer)

    def __call__(self, body):
        """Return the text that the server must give to a request."""
        if "messages" in body:
            prompt = self.tokenizer.apply_chat_template(
                body["messages"], add_generation_prompt=True, tokenize=True, return_dict=False
            )
        else:
            prompt = self.tokenizer.encode(body["prompt"])
        return self.answer(tuple(prompt), body["max_tokens"])

    def _answer(self, prompt, count):
        parts = stream_generate(self.model, self.tokenizer, list(prompt), max_tokens=count)
        return "".join(part.text for part in parts)


class Clients:
    """Greedy requests, sent by many clients at once, some of whom leave; `single` knows answers."""

    def __init__(self, server, single, seed=0):
        self.server, self.single = server, single
        self.chance = random.Random(seed)
        self.counts: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.memory: list[int] = []  # after each answer
        self.cached = 0  # answers, of those not streamed, whose prompt was in part in the cache

    def run(self, requests, clients):
        jobs = [self._job() for _ in range(requests)]
        with ThreadPoolExecutor(clients) as pool:
            for kind, problem in pool.map(_done, jobs):
                self.counts[kind] += 1
                self.memory.append(self.server.memory())
                if problem:
                    self.wrong.append(f"{kind}: {problem}")

    def _job(self):
        """Draw a request; what it must give is computed here, before the server is busy."""
        path, body = self._body()
        if self.chance.random() < 0.2:
            body["max_tokens"] = 200
            return partial(self._leave, path, body, self.chance.choice((0, 1, 40, 400)))
        return partial(self._check, path, body, self.single(body))

    def _body(self):
        """A completion, or a conversation of one or two questions; half of them stream."""
        draw = self.chance
        body: Body = {"max_tokens": draw.choice((4, 12, 24)), "temperature": 0.0}
        body["stream"] = draw.random() < 0.5
        one, two = draw.choices(WORDS, k=2)
        if draw.random() < 0.4:
            return "/v1/completions", body | {"prompt": f"The {one} example"}
        messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": one}]
        if draw.random() < 0.5:
            answer = self.single(body | {"messages": messages})
            messages.append({"role": "assistant", "content": answer})
            messages.append({"role": "user", "content": two})
        return "/v1/chat/completions", body | {"messages": messages}

    def _check(self, path, body, expected):
        status, answer = self.server.post(path, body)
        if status != 200:
            return "whole", f"{status} {answer[:200]!r}"
        text = text_of(answer)
        if not body["stream"]:
            details = json.loads(answer)["usage"]["prompt_tokens_details"]
            self.cached += details["cached_tokens"] > 0
        kind = "streamed" if body["stream"] else "whole"
        return kind, "" if text == expected else f"{text!r} for {expected!r} of {body}"

    def _leave(self, path, body, read):
        """Leave after some bytes of the answer, or before it has begun."""
        connection = self.server.connect()
        with suppress(OSError):
            connection.request("POST", path, json.dumps(body))
            if read:
                connection.getresponse().read(read)
        connection.close()
        return "cancelled", ""


def _done(job):
    try:
        return job()
    except OSError as error:
        return "unanswered", repr(error)
