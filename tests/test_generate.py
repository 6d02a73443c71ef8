from itertools import chain, repeat, zip_longest

import mlx.core as mx
import pytest
from helpers.errors import refusal
from helpers.mlx_lm_commands import greedy
from helpers.models import save_tiny_model, tiny_model
from helpers.tokenizers import KINDS, begin_with
from hypothesis import given
from hypothesis import strategies as st
from mlx.utils import tree_map
from mlx_lm import stream_generate
from mlx_lm.models.cache import KVCache, RotatingKVCache

import mlx_gateloop as gl
from mlx_gateloop import generate
from mlx_gateloop.data import pack
from mlx_gateloop.generate import Draw, Sampling, Speed, check_draft, prompt_ids, stream, until


@pytest.fixture(scope="module")
def model_and_tokenizer(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "tiny"
    sizes = {"hidden_size": 16, "intermediate_size": 32}
    return gl.load(save_tiny_model(path, seed=3, chat=True, **sizes))


def text(pair, prompt="abc", **options):
    sampling = Sampling(**{"temperature": 0.0, **options.pop("sampling", {})})
    return "".join(stream(*pair, prompt, sampling, max_tokens=24, **options))


def test_greedy_text_is_the_likeliest_next_token_each_time(model_and_tokenizer):
    tokens = greedy(*model_and_tokenizer, "abc", 24)
    decode = model_and_tokenizer[1].decode
    assert text(model_and_tokenizer) == decode(tokens, skip_special_tokens=True)


@pytest.mark.parametrize("share", [1.0, 0.7, 0.0])
def test_a_draft_changes_no_greedy_text(model_and_tokenizer, share):
    """Drafts that are right always, often and by chance, at several positions of the prompt."""
    model, tokenizer = model_and_tokenizer
    draft = tiny_model(seed=8, vocab_size=len(tokenizer), hidden_size=16, intermediate_size=32)
    both = model.parameters(), draft.parameters()
    draft.update(tree_map(lambda w, v: share * w + (1 - share) * v, *both))
    check_draft(model, tokenizer, draft, tokenizer)
    for prompt in ("abc", "a" * 40, "x y"):
        assert text(model_and_tokenizer, prompt, draft=draft) == text(model_and_tokenizer, prompt)


def test_a_state_stays_as_it_is(model_and_tokenizer):
    model, tokenizer = model_and_tokenizer
    state = gl.State(model.make_cache())
    state.read(model, tokenizer.encode("abc"))
    texts = [text(model_and_tokenizer, prompt, state=state) for prompt in ("", "de", "", "de")]
    assert texts[:2] == texts[2:]
    assert [texts[0], state.tokens] == [text(model_and_tokenizer), 3]
    line = refusal(text, model_and_tokenizer, state=state, draft=model)
    assert line.startswith("draft: has not read the state")
    line = refusal(text, model_and_tokenizer, lookup=True, draft=model)
    assert line.startswith("draft: the text proposes")
    line = refusal(stream, *model_and_tokenizer, "a", Sampling(repetition_penalty=2), draft=model)
    assert line.startswith("repetition_penalty: not with a draft")


def test_drafts_of_other_tokens_and_caches_that_cannot_go_back(model_and_tokenizer):
    line = refusal(check_draft, *model_and_tokenizer, *gl.load("demo"))
    assert line.startswith("--draft-model: has not the tokens of --model")
    caches = [[KVCache()], [KVCache(), RotatingKVCache(8)]]
    assert [generate.can_go_back(each) for each in caches] == [True, False]


def test_streams_that_take_turns_do_not_touch_each_others_random_numbers(model_and_tokenizer):
    def begin(seed):
        sampling = Sampling(temperature=1.0, top_k=50, seed=seed)
        return stream(*model_and_tokenizer, "abc", sampling, max_tokens=24)

    alone = [list(begin(seed)) for seed in (1, 2)]
    mx.random.seed(5)
    after_nothing = mx.random.uniform(shape=(4,)).tolist()
    mx.random.seed(5)
    first, second = begin(1), begin(2)
    sides = zip(*zip_longest(first, second), strict=True)
    assert [[piece for piece in side if piece is not None] for side in sides] == alone
    assert mx.random.uniform(shape=(4,)).tolist() == after_nothing


def test_settings_reach_the_sampler(model_and_tokenizer):
    greedy = text(model_and_tokenizer)
    for near in ({"top_k": 1}, {"top_p": 1e-300}, {"temperature": 1e-45}):
        assert text(model_and_tokenizer, sampling={"temperature": 5.0} | near) == greedy
    assert text(model_and_tokenizer, sampling={"repetition_penalty": 5.0}) != greedy


def test_chat_and_empty_prompts_and_speed(model_and_tokenizer):
    speed = Speed()
    text(model_and_tokenizer, [{"role": "user", "content": "hello"}], speed=speed)
    assert speed.prompt_tokens > len("hello")
    assert speed.tokens > 0
    assert speed.tokens_per_second > 0
    text(model_and_tokenizer, "", speed=speed)
    assert speed.prompt_tokens == 1


@pytest.mark.parametrize("kind", KINDS)
def test_a_continuation_is_what_decode_adds_to_the_prompt(kind, tmp_path, monkeypatch):
    made = KINDS[kind]()
    gl.save(tiny_model(vocab_size=len(made)), made, tmp_path)
    prompt, answer = made.encode("river"), made.encode("state it is\n  it\0 é \u2581.")
    drawn = chain(answer, repeat(0))
    monkeypatch.setattr(generate, "sampler", lambda _: (lambda logs: mx.array([next(drawn)]), []))
    shown = stream(*gl.load(tmp_path), "river", Sampling(), max_tokens=len(answer))
    assert made.decode(prompt) + "".join(shown) == made.decode(prompt + answer)


@pytest.mark.parametrize("text", ["ab", "<s>ab", ""])
def test_a_text_begins_with_the_token_that_the_tokenizer_adds(text, tmp_path):
    begin_with("<s>", save_tiny_model(tmp_path))
    model, tokenizer = gl.load(tmp_path)
    ids = prompt_ids(model, tokenizer, text)
    assert len(ids) == next(stream_generate(model, tokenizer, text, max_tokens=1)).prompt_tokens
    assert ids == [tokenizer.bos_token_id, *text.removeprefix("<s>").encode()]
    packed = [*tokenizer.encode("ab"), tokenizer.eos_token_id]
    assert pack(["ab"], tokenizer).tokens.tolist() == packed


def test_an_empty_prompt_without_special_tokens_is_refused(tmp_path):
    gl.save(tiny_model(vocab_size=500), KINDS["byte-level"](), tmp_path)
    assert refusal(stream, *gl.load(tmp_path), "", Sampling()).startswith("prompt: empty, ")


IMPOSSIBLE = [("temperature", -1), ("temperature", float("nan")), ("top_p", 0), ("top_p", 1.5)]
IMPOSSIBLE += [("top_k", -1), ("min_p", 2), ("repetition_penalty", 0), ("seed", -1)]


@pytest.mark.parametrize(("name", "value"), IMPOSSIBLE)
def test_impossible_sampling_is_named(name, value):
    assert refusal(Sampling, **{name: value}).startswith(f"{name}: expected a number")


def test_a_low_temperature_takes_the_likeliest_in_float16():
    logs = mx.linspace(-7, -20, 50_000)[None].astype(mx.float16)
    assert logs[0, Draw(Sampling(1e-4, seed=1))(logs).item()] == logs.max()


def test_no_tokens_and_an_empty_stop_string_are_refused(model_and_tokenizer):
    assert "max_tokens" in refusal(stream, *model_and_tokenizer, "a", Sampling(), max_tokens=0)
    assert "stop string" in refusal(list, stream(*model_and_tokenizer, "a", Sampling(), stop=[""]))


def until_by_characters(text, stop):
    """The rule of `until`, one character after another."""
    for end in range(len(text) + 1):
        if matches := [s for s in stop if text[:end].endswith(s)]:
            return text[: end - max(map(len, matches))]
    return text


@given(
    pieces=st.lists(st.text("ab", max_size=3), max_size=12),
    stop=st.lists(st.text("ab", min_size=1, max_size=4), max_size=3) | st.text("ab", min_size=1),
)
def test_until_cuts_wherever_the_pieces_end(pieces, stop):
    whole = "".join(pieces)
    expected = until_by_characters(whole, [stop] if isinstance(stop, str) else stop)
    shown = list(until(iter(pieces), stop))
    assert "".join(shown) == expected
    assert "".join(until(iter([whole]), stop)) == expected
    assert "" not in shown
