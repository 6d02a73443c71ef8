"""Many clients at once of `gateloop mlx-lm server`; `benchmarks/serving.py` is the long form."""

from pathlib import Path

import httpx
import mlx.core as mx
import pytest
from helpers.mlx_lm_server import serving, text_of
from helpers.models import close
from helpers.recurrent import save_recurrent_model
from helpers.scripts import load_script
from mlx_lm import stream_generate
from mlx_lm.models.cache import LRUPromptCache, make_prompt_cache

from mlx_gateloop.commands.mlx_lm import keeping_beginnings, with_a_token_to_read
from mlx_gateloop.io.models import load_any
from mlx_gateloop.model.cache import MAX_BYTES


@pytest.fixture(scope="module")
def server(directory, tmp_path_factory):
    log = tmp_path_factory.mktemp("server") / "log"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HUB_CACHE", str(log.parent / "hub"))
        with serving(directory, log) as server:
            yield server
    assert "generation thread died" not in log.read_text()


def test_the_model_is_listed_where_no_hub_cache_is(directory, server):
    (listed,) = httpx.get(f"http://127.0.0.1:{server.port}/v1/models").json()["data"]
    assert listed["id"] == str(Path(directory).resolve())


def test_many_clients_get_the_answers_of_single_runs(directory, server):
    long_form = load_script("benchmarks/serving.py")
    clients = long_form.Clients(server, long_form.Single(directory))
    clients.run(requests=40, clients=8)
    assert clients.wrong == []
    assert clients.cached > 0
    assert clients.counts["cancelled"] > 0
    assert server.is_healthy()


def test_the_patch_of_the_prompt_cache_is_necessary(directory):
    """If this fails, mlx-lm leaves a token to read: remove `with_a_token_to_read`."""
    model, _ = load_any(directory)
    prompts = LRUPromptCache()
    prompts.insert_cache("model", [1, 2], make_prompt_cache(model))
    assert prompts.fetch_nearest_cache("model", [1, 2])[1] == []
    fetch = with_a_token_to_read(LRUPromptCache.fetch_nearest_cache)
    assert fetch(prompts, "model", [1, 2])[1] == [1, 2]


@pytest.mark.parametrize("max_bytes", [MAX_BYTES, 0])
def test_prompts_that_share_a_beginning_read_only_what_is_new(directory, monkeypatch, max_bytes):
    """From the longest known beginning that a cache can go back to, or that one ends at."""
    monkeypatch.setattr("mlx_gateloop.model.cache.MAX_BYTES", max_bytes)
    model, _ = load_any(directory)
    fetch = with_a_token_to_read(LRUPromptCache.fetch_nearest_cache)
    insert = keeping_beginnings(LRUPromptCache.insert_cache)
    prompts, known = LRUPromptCache(), list(range(40, 70))
    for end, parts in ((6, [6]), (30, [22, *range(23, 30)])):
        cache = make_prompt_cache(model)
        for part in mx.split(mx.array([known[:end]]), [at for at in parts if at < end], axis=1):
            model(part, cache)
        insert(prompts, "model", known[:end], cache)
    into_a_call = 12 if max_bytes else 6
    shared = [(30, 30), (29, 29), (26, 26), (12, into_a_call), (6, 6)]
    texts = [([*known[:end], 90, 91], goes_back_to) for end, goes_back_to in shared]
    for prompt, goes_back_to in [*texts, (known, 29)]:
        cache, rest = fetch(prompts, "model", prompt)
        assert rest == prompt[goes_back_to:]
        close(model(mx.array([rest]), cache)[0, -1], model(mx.array([prompt]))[0, -1])


def assert_known_prompts_are_answered_again(server, path):
    model, tokenizer = load_any(path)

    def answer(prompt):
        return "".join(r.text for r in stream_generate(model, tokenizer, prompt, max_tokens=4))

    first = "The cat"
    for prompt in (first, first, first + answer(first), first[:-1], first[:-2], first):
        body = {"prompt": prompt, "max_tokens": 4, "temperature": 0.0}
        status, data = server.post("/v1/completions", body)
        assert (status, text_of(data)) == (200, answer(prompt)), prompt
    assert server.is_healthy()


def test_a_request_may_name_a_draft_that_can_go_back(directory, server, tmp_path):
    """The same words as of `--draft-model`, and every later request is answered."""
    mamba = save_recurrent_model(tmp_path / "mamba", "mamba")
    for draft in (mamba, directory, tmp_path / "none"):
        body = {"prompt": "The cat", "max_tokens": 4, "draft_model": str(draft)}
        status, data = server.post("/v1/completions", body)
        assert (status == 200) == (draft == directory), data
        assert (b"--draft-model: a state of mamba" in data) == (draft == mamba), data
    assert_known_prompts_are_answered_again(server, directory)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["falcon_h1", "llama"])
def test_a_prompt_that_the_server_knows_is_answered_again_by_others(kind, tmp_path):
    path = save_recurrent_model(tmp_path / "model", kind)
    with serving(path, tmp_path / "log") as server:
        assert_known_prompts_are_answered_again(server, path)
