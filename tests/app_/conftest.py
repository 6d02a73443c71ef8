"""A tiny model with random weights, and an engine on it."""

import mlx.core as mx
import pytest

import mlx_gateloop as gl
from app.engine import Engine, Limits
from app.models import Models
from mlx_gateloop.tokenizer import byte_tokenizer


@pytest.fixture(scope="session")
def models_folder(tmp_path_factory):
    """Models "tiny" and "fixed"; what they say is noise of UTF-8 bytes."""
    folder, tokenizer = tmp_path_factory.mktemp("models"), byte_tokenizer()
    for seed, (name, transition) in enumerate(
        {"tiny": "data_controlled", "fixed": "fixed"}.items()
    ):
        mx.random.seed(seed)
        args = gl.ModelArgs(
            vocab_size=len(tokenizer),
            hidden_size=16,
            intermediate_size=32,
            num_hidden_layers=2,
            transition=transition,
        )
        gl.save(gl.Model(args), tokenizer, folder / name)
    return folder


@pytest.fixture
def make_engine(models_folder):
    """Engines with the given limits; all are shut down after the test."""
    engines = []

    def make(folder=models_folder, **limits):
        engines.append(Engine(Models([folder]), Limits(**limits)))
        return engines[-1]

    yield make
    for engine in engines:
        engine.close()


@pytest.fixture
def engine(make_engine):
    return make_engine()


@pytest.fixture
def finished():
    """Waits for a run to end well."""

    def wait(run):
        while not run.done:
            run.wait(len(run.pieces), 10)
        assert run.error is None
        return run

    return wait
