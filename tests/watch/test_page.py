"""The page that runs a model: it computes what Python computes, in any variant."""

import base64
import json
import re
from importlib import import_module
from pathlib import Path

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from helpers.browser import CHROMIUM, chromium
from helpers.cases import first
from helpers.errors import refusal
from helpers.models import VARIANTS, chat_tokenizer, never_end, save_tiny_model, tiny_model
from helpers.node import needs_node, node
from hypothesis import given, settings
from hypothesis import strategies as st
from mlx_lm.utils import dequantize_model

import mlx_gateloop as gl
from mlx_gateloop.cli import main
from mlx_gateloop.io.model_file import PACKAGE_ONLY
from mlx_gateloop.io.models import load_weights
from mlx_gateloop.tokenizer import train_tokenizer
from mlx_gateloop.watch import page

RUNNER = Path(__file__).parent / "shared" / "continue.mjs"
OTHER = {*PACKAGE_ONLY, "transition"}
SHOWN = [name for name in VARIANTS if not {*VARIANTS[name]} & OTHER or name == "fixed"]
RUNS = [("paper", 8), ("output gate", 4), *((name, None) for name in sorted(SHOWN))]
HOSTILE = "</script><img src=x onerror=\"document.title='owned'\">\u202e \U0001f600 caf\u00e9"
STOPPED = """milliseconds => {
    document.querySelector(".wipe").click();
    for (const end = Date.now() + milliseconds; Date.now() < end; );
    document.querySelector(".stop").click(); }"""
pytestmark = needs_node


def written(file, asked):
    return json.loads(node(RUNNER, file, given=json.dumps(asked)))


def save_page(model, folder):
    file = folder / "page.html"
    page(*gl.load(model), file)
    return file


def with_weights_of(file, model):
    (coded,) = re.findall(r'id="weights">(.*?)<', file.read_text("utf-8"))
    path = file.with_suffix(".safetensors")
    path.write_bytes(base64.b64decode(coded))
    weights = mx.load(str(path))
    model = dequantize_model(model)
    nn.quantize(model, 64, 8, class_predicate=lambda name, _: f"{name}.scales" in weights)
    model.load_weights(list(weights.items()))
    return model


def greedy(model, tokenizer, ids, count):
    """The logits of the first token of an answer, and its text."""
    cache, answer = model.make_cache(), []
    first = logits = model(mx.array([ids]), cache)[0, -1]
    while len(answer) < count and (token := int(logits.argmax())) not in tokenizer.eos_token_ids:
        answer.append(token)
        logits = model(mx.array([[token]]), cache)[0, -1]
    return first, tokenizer.decode(answer, skip_special_tokens=False)


@pytest.mark.parametrize(("name", "bits"), first(6, RUNS))
def test_every_variant_computes_the_same(tmp_path, name, bits):
    options = VARIANTS[name] | {"hidden_size": 64 if bits else 8, "intermediate_size": 64}
    directory = save_tiny_model(tmp_path / "model", **options)
    if bits:
        model, tokenizer = gl.load(directory)
        nn.quantize(model, 64, bits)
        gl.save(model, tokenizer, directory)
    file = save_page(directory, tmp_path)
    (found,) = written(file, [{"prompt": "what is left", "maxTokens": 8}])
    model = with_weights_of(file, load_weights(directory))
    blocks = mx.softmax(mx.array(gl.watch.lens(model, found["ids"])[:, -1]), -1)
    probabilities = [probability for _, probability in found["guesses"]]
    np.testing.assert_allclose(probabilities, blocks.max(-1), atol=1e-5)
    with gl.watch.recording(model) as recorder:
        logits, answer = greedy(model, gl.load(directory)[1], found["ids"], 8)
    np.testing.assert_allclose(found["logits"], logits, atol=1e-4, rtol=1e-4)
    assert "".join(found["answer"]) == answer
    trace = recorder.trace
    np.testing.assert_allclose(found["shares"], trace.retention(trace.tokens - 1), atol=1e-5)
    for layer, codes in enumerate(found["codes"]):
        difference = np.array(codes, int) - trace.columns(layer)[:, 0]
        assert abs(difference).max() <= 1  # the rounding of codes


def test_the_answer_without_a_word_is_that_of_the_text_without_it(tmp_path):
    directory = save_tiny_model(tmp_path / "model", chat=True, conv_size=4)
    file = save_page(directory, tmp_path)
    (whole,) = written(file, [{"prompt": "one two", "maxTokens": 0}])
    positions = [position for position, kind in enumerate(whole["kinds"]) if kind == "prompt"][:4]
    (found,) = written(file, [{"prompt": "one two", "left_out": positions, "maxTokens": 0}])
    model = with_weights_of(file, load_weights(directory))
    cache = gl.watch.without(model, whole["ids"][:-1], positions)
    logits = model(mx.array([whole["ids"][-1:]]), cache)[0, -1]
    np.testing.assert_allclose(found["logits"], logits, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("chat", [True, False])
def test_texts_are_read_as_the_tokenizer_reads_them(tmp_path, chat):
    text = "The cat sat on the mat, and the cat's hat sat on the rat. " * 20
    tokenizer = train_tokenizer([text + "3.14 caf\u00e9 na\u00efve"], 320)
    tokenizer.chat_template = chat_tokenizer().chat_template if chat else None
    gl.save(tiny_model(vocab_size=len(tokenizer)), tokenizer, tmp_path / "model")
    file = save_page(tmp_path / "model", tmp_path)
    alphabet = "the catsh. \n\t<|im_end|>\u00e9\u4e16\U0001f600\u2581"
    prompts = [HOSTILE, "<|im_start|>", "\u2581\u0000"]
    plain = getattr(tokenizer, "backend_tokenizer", tokenizer)
    plain.encode_special_tokens = True  # a user's text has none

    @given(st.lists(st.text(st.sampled_from(alphabet), min_size=1), max_size=40))
    @settings(max_examples=5)
    def same(more):
        asked = [{"prompt": prompt, "maxTokens": 0} for prompt in prompts + more]
        for each, found in zip(asked, written(file, asked), strict=True):
            pairs = zip(found["ids"], found["kinds"], strict=True)
            ids = [token for token, kind in pairs if kind == "prompt"]
            text = each["prompt"].encode("utf-16", "surrogatepass").decode("utf-16", "replace")
            assert ids == plain.encode(text, add_special_tokens=False).ids

    same()


@pytest.mark.parametrize(("options", "message"), [
    ({"sub_norm": True}, "sub_norm: a page runs False, got True"),
    ({"transition": "lru"}, "transition: a page runs data_controlled or fixed, got lru"),
    ({"hidden_size": 64, "intermediate_size": 64}, "a page runs at most 30,000 parameters"),
])  # fmt: skip
def test_a_model_that_a_page_cannot_run(tmp_path, capsys, monkeypatch, options, message):
    monkeypatch.setattr(import_module("mlx_gateloop.watch.page"), "MAX_PARAMETERS", 30_000)
    save_tiny_model(tmp_path / "model", **options)
    out = tmp_path / "new" / "page.html"
    assert main(["page", "--model", str(tmp_path / "model"), "--out", str(out)]) == 2
    assert message in capsys.readouterr().err
    assert not out.parent.exists()
    assert "is a folder" in refusal(page, tiny_model(), chat_tokenizer(), tmp_path)


@pytest.mark.parametrize("template", ["{{ messages[0].content }}", "{{ raise_exception('no') }}"])
def test_a_template_that_a_page_cannot_use(tmp_path, template):
    tokenizer = chat_tokenizer()
    tokenizer.chat_template = template
    gl.save(tiny_model(vocab_size=len(tokenizer)), tokenizer, tmp_path / "model")
    assert "cannot use its chat template" in refusal(save_page, tmp_path / "model", tmp_path)


def test_a_tokenizer_that_a_page_cannot_run(tmp_path):
    save_tiny_model(tmp_path / "model")
    file = tmp_path / "model" / "tokenizer.json"
    whole = json.loads(file.read_text())
    added, letter = whole["added_tokens"], {"content": "a", "id": whole["model"]["vocab"]["a"]}
    odd = [{"normalizer": {"type": "NFC"}}, {"pre_tokenizer": {"type": "Whitespace"}}]
    odd.append({"model": whole["model"] | {"end_of_word_suffix": "</w>"}})
    for kind in ({"special": False}, {"lstrip": True}):
        odd.append({"added_tokens": [*added, added[0] | letter | kind]})
    for changed in odd:
        file.write_text(json.dumps(whole | changed))
        assert "encodings with byte_fallback" in refusal(page, *gl.load(file.parent), file)


@pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium on this machine")
@pytest.mark.slow
def test_in_a_browser(tmp_path):
    pytest.importorskip("playwright")
    tokenizer = chat_tokenizer()
    model = tiny_model(vocab_size=len(tokenizer))
    never_end(model, tokenizer)
    gl.save(model, tokenizer, tmp_path / "model")
    file = tmp_path / "new" / "page.html"
    assert main(["page", "--model", str(tmp_path / "model"), "--out", str(file)]) == 0
    problems = []
    with chromium() as browser:
        tab = browser.new_page(viewport={"width": 390, "height": 844}, color_scheme="dark")
        tab.on("console", lambda message: problems.append(message.text))
        tab.on("pageerror", lambda error: problems.append(str(error)))
        tab.on("request", lambda request: problems.append(request.url.split(":")[0]))
        tab.goto(file.as_uri())
        tab.fill(".prompt", HOSTILE)
        tab.press(".prompt", "Enter")
        tab.wait_for_selector(".stop:disabled")
        assert tab.locator(".words [data-kind=answer]").count() == 200
        assert tab.title().startswith("model")
        assert HOSTILE.split("\u202e")[0] in tab.inner_text(".words")
        assert tab.locator(".words img").count() == 0
        assert tab.locator(".wipe").is_disabled()  # the view is at the answer
        tab.locator(".words [data-kind=prompt]", has_text="c").first.click()
        tab.wait_for_selector(".guesses:has-text('block 2')")
        for milliseconds in (0, 500):  # in which the answer may end
            tab.evaluate(STOPPED, milliseconds)
            tab.wait_for_selector(".stop:disabled")
            assert tab.locator(".forget").is_hidden()  # a cut answer is not compared
        tab.click(".wipe")
        tab.wait_for_selector(".forget:not([hidden])")
        assert tab.locator(".original span").count() == 200
        assert tab.locator(".without span").count() == 200
        assert tab.locator(".words .forgotten").count() > 0
        call = "(seed) => gateloop.generate('x', {maxTokens: 9, temperature: 1, seed})"
        first, again, other = (tab.evaluate(call, seed) for seed in (3, 3, 4))
        assert first == again != other
        assert tab.evaluate("document.documentElement.scrollWidth") == 390
        tab.set_viewport_size({"width": 780, "height": 844})
        tab.evaluate("document.documentElement.style.zoom = 2")
        assert tab.locator("html").evaluate("root => root.scrollWidth <= root.clientWidth")
        tab.click(".new")
        tab.wait_for_selector(".stop:disabled")
        assert tab.inner_text(".words") == ""
        tab.fill(".prompt", "x" * 2000)
        tab.press(".prompt", "Enter")
        tab.wait_for_selector(".tip:has-text('at most')")
        assert problems == ["file", "blob"]
        text = file.read_text()
        for part, damaged, reason in (
            ('"config":', '"config"', "JSON"),
            ('(?<=id="weights">)[^<]+', "AAAAAAAAAAA=", "JSON"),
            ('(?<=id="worker">)', ")", "SyntaxError"),
            ("worker-src blob:", "worker-src 'none'", "No worker starts"),
        ):
            file.write_text(re.sub(part, damaged, text, count=1))
            tab.goto(file.as_uri())
            tab.wait_for_selector(f".view:has-text('{reason}')")
        tab.locator(".prompt").press_sequentially("again\n")
        assert tab.input_value(".prompt") == "again"


@pytest.mark.parametrize("count", first(1, [4, 200]))
def test_the_demo_answers_as_in_python(tmp_path, count):
    types = (bytes, str, dict, list, set)
    names = [f"{each.__name__}.{name}" for each in types for name in dir(each)][-count:]
    asked = [{"prompt": f"What does `{name}` do?", "maxTokens": 60} for name in names]
    assert len(asked) == count
    model, tokenizer = gl.load("demo")
    for each, found in zip(asked, written(save_page("demo", tmp_path), asked), strict=True):
        message = [{"role": "user", "content": each["prompt"]}]
        ids = tokenizer.apply_chat_template(message, add_generation_prompt=True)
        assert found["ids"] == list(ids)
        logits, answer = greedy(model, tokenizer, ids, 60)
        np.testing.assert_allclose(found["logits"], logits, atol=1e-3, rtol=1e-3)
        assert "".join(found["answer"]) == answer
