"""Many clients of `gateloop mlx-lm server`: `python benchmarks/serving.py --requests 1000`.

Completions and chats, streamed and whole, with prompts in the cache, and clients that leave. Every
answer is compared with that of a single run. Ends with 1 if one differs or is missing, if the
server does not answer at the end, or if its memory in the last quarter of the requests is a quarter
above that in the second one.
"""

import argparse
import json
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from statistics import median
from typing import Any

import mlx.core as mx
from mlx_lm import stream_generate

sys.path.append(str(Path(__file__).parents[1] / "tests"))
from helpers.browser import memory_mb
from helpers.mlx_lm_commands import printable, saved
from helpers.mlx_lm_server import Server, serving, text_of
from helpers.models import chat_tokenizer
from helpers.recurrent import save_recurrent_model

from mlx_gateloop.io.models import load_any
from mlx_gateloop.io.tables import name_value_lines

SYSTEM = "You answer questions about Python in a few words. " * 8
WORDS = ("print", "str.split", "a list", "sorted()", "json", "3 plus 4", "pathlib", "é \N{SNOWMAN}")
Body = dict[str, Any]
Job = Callable[[], tuple[str, str]]  # returns the kind of a request, and what was wrong


class Single:
    """Answers of the same model in this process, one request after another."""

    def __init__(self, path: Path) -> None:
        self.model, self.tokenizer = load_any(path)
        self.answer = cache(self._answer)

    def __call__(self, body: Body) -> str:
        """Return the text that the server must give to a request."""
        if "messages" in body:
            prompt = self.tokenizer.apply_chat_template(
                body["messages"], add_generation_prompt=True, tokenize=True, return_dict=False
            )
        else:
            prompt = self.tokenizer.encode(body["prompt"])
        return self.answer(tuple(prompt), body["max_tokens"])

    def _answer(self, prompt: tuple[int, ...], count: int) -> str:
        parts = stream_generate(self.model, self.tokenizer, list(prompt), max_tokens=count)
        return "".join(part.text for part in parts)


class Clients:
    """Greedy requests, sent by many clients at once, some of whom leave."""

    def __init__(self, server: Server, single: Single, seed: int = 0) -> None:
        self.server, self.single = server, single
        self.chance = random.Random(seed)
        self.counts: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.memory: list[float] = []  # MB after each answer
        self.cached = 0  # answers, of those not streamed, whose prompt was in part in the cache

    def run(self, requests: int, clients: int) -> None:
        jobs = [self._job() for _ in range(requests)]
        with ThreadPoolExecutor(clients) as pool:
            for kind, problem in pool.map(_done, jobs):
                self.counts[kind] += 1
                self.memory.append(memory_mb(self.server.process.pid))
                if problem:
                    self.wrong.append(f"{kind}: {problem}")

    def _job(self) -> Job:
        """Draw a request; what it must give is computed here, before the server is busy."""
        path, body = self._body()
        if self.chance.random() < 0.2:
            body["max_tokens"] = 200
            return partial(self._leave, path, body, self.chance.choice((0, 1, 40, 400)))
        return partial(self._check, path, body, self.single(body))

    def _body(self) -> tuple[str, Body]:
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

    def _check(self, path: str, body: Body, expected: str) -> tuple[str, str]:
        status, answer = self.server.post(path, body)
        if status != 200:
            return "whole", f"{status} {answer[:200]!r}"
        text = text_of(answer)
        if not body["stream"]:
            details = json.loads(answer)["usage"]["prompt_tokens_details"]
            self.cached += details["cached_tokens"] > 0
        kind = "streamed" if body["stream"] else "whole"
        return kind, "" if text == expected else f"{text!r} for {expected!r} of {body}"

    def _leave(self, path: str, body: Body, read: int) -> tuple[str, str]:
        """Leave after some bytes of the answer, or before it has begun."""
        connection = self.server.connect()
        with suppress(OSError):
            connection.request("POST", path, json.dumps(body))
            if read:
                connection.getresponse().read(read)
        connection.close()
        return "cancelled", ""


def _done(job: Job) -> tuple[str, str]:
    try:
        return job()
    except OSError as error:
        return "unanswered", repr(error)


def save_llama(path: Path) -> None:
    """Save a llama of mlx-lm that answers in printable characters, as a control."""
    sizes = {"max_position_embeddings": 32768, "tie_word_embeddings": False}
    weights = mx.load(str(save_recurrent_model(path, "llama", **sizes) / "model.safetensors"))
    # No head bias here: words that are not printable get no logit at all.
    weights["lm_head.weight"] *= mx.where(printable(chat_tokenizer()), 1, 0)[:, None]
    mx.eval(weights)
    mx.save_safetensors(str(path / "model.safetensors"), weights, {"format": "mlx"})


def main() -> int:
    """Run the requests; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", help="a directory, or `llama`; default: a tiny GateLoop model")
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "model"
        if arguments.model is None:
            saved(made, output_gate=True)
        elif arguments.model == "llama":
            save_llama(made)
        else:
            made = Path(arguments.model)
        single = Single(made)
        with serving(made, Path(folder) / "log") as server:
            clients = Clients(server, single, arguments.seed)
            began = time.perf_counter()
            clients.run(arguments.requests, arguments.clients)
            seconds = time.perf_counter() - began
            healthy = server.is_healthy()
    quarter = max(1, len(clients.memory) // 4)
    second, last = (
        median(clients.memory[n * quarter :][:quarter] or clients.memory) for n in (1, 3)
    )
    kinds = ", ".join(f"{count} {kind}" for kind, count in clients.counts.most_common())
    lines = {
        "requests": kinds,
        "wrong or missing": str(len(clients.wrong)),
        "prompts in the cache": str(clients.cached),
        "memory": f"{second:.0f} MB in the second quarter, {last:.0f} MB in the last",
        "healthy at the end": str(healthy),
        "seconds": f"{seconds:.0f}",
    }
    print(name_value_lines(lines))
    print(*clients.wrong[:10], sep="\n")
    return int(bool(clients.wrong) or not healthy or last > 1.25 * second)


if __name__ == "__main__":
    sys.exit(main())
