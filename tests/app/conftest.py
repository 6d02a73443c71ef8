"""Tiny models with random weights, and engines on them."""

import asyncio
import inspect

import pytest
from helpers.models import save_tiny_model
from helpers.waiting import wait_for
from mlx_gateloop.app.generation.engine import Engine
from mlx_gateloop.app.generation.models import Models
from mlx_gateloop.app.generation.run import Limits

from benchmarks.embedded_models import library
from mlx_gateloop.generate import Sampling


def pytest_pyfunc_call(pyfuncitem):
    """Run tests that are coroutines."""
    if not inspect.iscoroutinefunction(test := pyfuncitem.obj):
        return None
    asyncio.run(test(**{n: pyfuncitem.funcargs[n] for n in inspect.signature(test).parameters}))
    return True


@pytest.fixture(scope="session")
def unread():
    """The files of Python's library that the embedded model `code` has not read."""
    try:
        return library.unread(library.MODELS / "code")
    except SystemExit as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def models_folder(tmp_path_factory):
    """Models "tiny" and "fixed"; what they say is noise of UTF-8 bytes."""
    folder = tmp_path_factory.mktemp("models")
    options = {"chat": True, "hidden_size": 16, "intermediate_size": 32}
    save_tiny_model(folder / "tiny", seed=35, conv_size=4, **options)
    save_tiny_model(folder / "fixed", seed=1, transition="fixed", **options)
    return folder


@pytest.fixture
def make_engine(models_folder):
    """Engines with the given limits; all are shut down after the test."""
    engines = []

    def make(folder=models_folder, bounds=None, **limits):
        trusted = None if bounds else folder  # a process for every engine's tokenizer takes long
        engines.append(Engine(Models([folder], trusted=trusted, bounds=bounds), Limits(**limits)))
        return engines[-1]

    yield make
    for engine in engines:
        engine.close()


@pytest.fixture
def engine(make_engine):
    return make_engine()


@pytest.fixture
def until():
    return lambda run, pieces=float("inf"): wait_for(lambda: run.done or len(run.pieces) > pieces)


@pytest.fixture
def finished(until):
    def finished(run):
        until(run)
        assert run.error is None
        return run

    return finished


class Chat:
    """A chat as the page has it: all messages are sent each time."""

    def __init__(self, engine, finished, conversation="c", model="tiny"):
        self.engine, self.finished = engine, finished
        self.conversation, self.model, self.messages = conversation, model, []

    def say(self, text, seed=0, **options):
        self.messages.append({"role": "user", "content": text})
        return self.answer(seed, **options)

    def answer(self, seed=0, max_tokens=20, record=True):
        options = Sampling(1.0, seed=seed), max_tokens, record, self.conversation
        run = self.finished(self.engine.submit(self.model, self.messages, *options))
        self.messages.append({"role": "assistant", "content": run.text})
        return run

    def prefix_states(self):
        pairs = tuple((m["role"], m["content"]) for m in self.messages)
        fingerprint = self.engine.models.fingerprint(self.model)
        return self.engine.prefix_cache.prefixes(self.conversation, fingerprint, pairs)


@pytest.fixture
def make_chat(finished):
    return lambda engine, *names: Chat(engine, finished, *names)


@pytest.fixture
def chat(make_chat, engine):
    return make_chat(engine)
