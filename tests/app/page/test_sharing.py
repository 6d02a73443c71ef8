"""Views as pages of one file: whose words are in it, and what is not."""

import json
import re

import pytest
from mlx_gateloop.app.generation.counterfactual import answer_again
from mlx_gateloop.app.generation.run import MessageSpan, Token
from mlx_gateloop.app.generation.words import Words
from mlx_gateloop.app.page import sharing

from mlx_gateloop.watch import sharing as library

SECRET = "You are the SECRET prompt. </script>"
HOSTILE = "</script><script>document.title='owned'</script>\u202e<!--\x00 日本"


@pytest.fixture
def run(chat):
    """The second answer of a chat with a system prompt."""
    chat.messages.append({"role": "system", "content": SECRET})
    chat.say("hello", max_tokens=6)
    run = chat.say(HOSTILE, max_tokens=8)
    run.prompt, run.model = HOSTILE, "/home/somebody/models/tiny"
    return run


def data_of(page):
    (found,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page)
    return json.loads(found)


def shared(run, with_system=False):
    return sharing.shared_page(run, run.trace, with_system, "a-name")


def test_the_words_of_the_messages_are_in_it_and_nothing_else(run):
    answer = shared(run)
    assert (answer["name"], answer["message"]) == ("a-name.html", "Saved a-name.html.")
    data = data_of(answer["page"])
    texts = {"prompt": "", "answer": "", "special": ""}
    for text, kind in zip(data["texts"], data["kinds"], strict=True):
        texts[kind] += text
    assert texts["prompt"] == "hello" + HOSTILE
    assert texts["answer"] == "".join(p.text for p in run.pieces if p.kind == "answer")
    assert texts["answer"].endswith(run.text)
    assert texts["special"] == ""
    for leak in ("SECRET", "im_start", "somebody", "/home", "models/"):
        assert leak not in answer["page"]
    assert "&#183; tiny</title>" in answer["page"]
    assert answer["page"].isascii()
    assert answer["page"].count("<script") == 2
    assert "\\u202e" in answer["page"].partition("</title>")[0]  # message_words as a code


def test_the_system_prompt_is_in_it_if_it_is_asked_for(run):
    data = data_of(shared(run, with_system=True)["page"])
    pairs = zip(data["texts"], data["kinds"], strict=True)
    assert "".join(text for text, kind in pairs if kind == "system") == SECRET
    assert sharing.has_system(run)
    without = data_of(shared(run)["page"])
    assert len(without["texts"]) < len(data["texts"])


def test_of_a_long_conversation_the_last_tokens_are_kept_and_that_is_said(run, monkeypatch):
    shown = len(data_of(shared(run)["page"])["texts"])
    for module in (sharing, library):
        monkeypatch.setattr(module, "MAX_TOKENS", 20)
    answer = shared(run)
    assert answer["message"] == f"Saved a-name.html, the last 20 of {shown} tokens."
    data = data_of(answer["page"])
    assert len(data["texts"]) == 20
    assert "".join(data["texts"]).endswith(run.text)
    assert f"The {len(run.pieces) - 20} tokens before these are omitted." in answer["page"]
    assert "SECRET" not in answer["page"]


def test_a_run_that_goes_on_is_shared_up_to_now(run):
    run.pieces.pop()  # the trace has read more
    assert "".join(data_of(shared(run)["page"])["texts"]).endswith(run.pieces[-1].text)
    del run.pieces[:]
    assert shared(run) is None


def test_a_token_at_the_edge_of_a_message_shows_no_more_than_the_message():
    ends = (("system", 2, 6), ("assistant", 0, 0), ("user", 8, 11), ("assistant", 20))
    spans = [MessageSpan(*each) for each in ends]
    texts = ["<s>", "SYS.", "|u", "se", "r|a", "", "", "!", "?"]
    begins = [0, 2, 6, 8, 10, 13, None, 20, 21]
    pieces = [
        Token(text, 0, "answer" if begin and begin >= 20 else "prompt", begin=begin)
        for text, begin in zip(texts, begins, strict=True)
    ]
    assert sharing.message_words(pieces, spans) == [
        *((">", "system"), ("SYS.", "system")),  # its third character is the message's first
        *(("", "special"), ("se", "prompt"), ("r", "prompt"), ("", "special"), ("", "special")),
        *(("!", "answer"), ("?", "answer")),
    ]
    plain = [Token("<s>", 1, "prompt", special=True), Token("a", 0, "prompt")]  # to continue
    assert sharing.message_words(plain, ()) == [("", "special"), ("a", "prompt")]


def test_an_answer_given_again_without_a_word_is_recorded_in_it(run, engine, finished):
    run.model = "tiny"
    words = Words().update(run)
    left_out = next(word for word in words if word.text == "hello")
    again = finished(answer_again(engine, run, [left_out]))
    data = data_of(shared(run)["page"])
    (forgotten,) = data["forgotten"]
    assert "".join(data["texts"][index] for index in forgotten["left_out"]) == "hello"
    assert "".join(forgotten["answer"]) == again.text
