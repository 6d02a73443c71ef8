"""Views as pages of one file: whose words are in it, and what is not."""

import json
import re

import pytest
from mlx_gateloop.app.generation.counterfactual import answer_again
from mlx_gateloop.app.generation.run import MessageSpan, Run, Token
from mlx_gateloop.app.generation.words import Words
from mlx_gateloop.app.page import sharing

from mlx_gateloop.watch import sharing as library

SECRET = "You are the SECRET prompt. </script>"
HOSTILE = "</script><script>document.title='owned'</script>\u202e<!--\x00 日本"
NAME = "tiny-script-script-document-title-owned-script-日.html"


@pytest.fixture
def run(chat):
    """The second answer of a chat with a system prompt."""
    chat.messages.append({"role": "system", "content": SECRET})
    chat.say("hello", max_tokens=6)
    run = chat.say(HOSTILE, max_tokens=8)
    run.prompt, run.model = HOSTILE, "/home/somebody/models/tiny"
    return run


def shared(run, with_system=0):
    """Share a view; return its page, its message, and the texts of each kind."""
    answer = sharing.share(run, run.trace, with_system)
    (found,) = re.findall(r'type="application/json" id="data">(.*?)</script>', answer["page"])
    data = json.loads(found)
    pairs = [*zip(data["texts"], data["kinds"], strict=True)]
    kinds = ("prompt", "answer", "special", "system")
    texts = {kind: "".join(text for text, its in pairs if its == kind) for kind in kinds}
    return answer["page"], answer["message"], texts, data


def test_the_words_of_the_messages_are_in_it_and_nothing_else(run):
    page, message, texts, data = shared(run)
    assert message == f"Saved {NAME}."
    answers = "".join(p.text for p in run.pieces if p.kind == "answer")
    assert texts == {"prompt": "hello" + HOSTILE, "answer": answers, "special": "", "system": ""}
    assert answers.endswith(run.text)
    for leak in ("SECRET", "im_start", "somebody", "/home", "models/"):
        assert leak not in page
    assert "&#183; tiny</title>" in page
    assert page.isascii()
    assert page.count("<script") == 2
    assert "\\u202e" in page.partition("</title>")[0]  # as a code
    _, _, texts, more = shared(run, with_system=1)
    assert texts["system"] == SECRET
    assert sharing.has_system(run)
    assert len(data["texts"]) < len(more["texts"])


def test_of_a_long_conversation_the_last_tokens_are_kept_and_that_is_said(run, monkeypatch):
    shown = len(shared(run)[3]["texts"])
    for module in (sharing, library):
        monkeypatch.setattr(module, "MAX_TOKENS", 20)
    page, message, _, data = shared(run)
    assert message == f"Saved {NAME}, the last 20 of {shown} tokens."
    assert len(data["texts"]) == 20
    assert "".join(data["texts"]).endswith(run.text)
    assert f"The {len(run.pieces) - 20} tokens before these are omitted." in page
    assert "SECRET" not in page


def test_a_run_that_goes_on_is_shared_up_to_now(run):
    run.pieces.pop()  # the trace has read more
    assert "".join(shared(run)[3]["texts"]).endswith(run.pieces[-1].text)
    del run.pieces[:]
    assert sharing.share(run, run.trace, 0) is None


def test_a_token_at_the_edge_of_a_message_shows_no_more_than_the_message():
    ends = (("system", 2, 6), ("assistant", 0, 0), ("user", 8, 11), ("assistant", 20))
    spans = [MessageSpan(*each) for each in ends]
    texts = ["<s>", "SYS.", "|u", "se", "r|a", "", "", "!", "?"]
    pieces = [
        Token(text, 0, "answer" if begin and begin >= 20 else "prompt", begin=begin)
        for text, begin in zip(texts, [0, 2, 6, 8, 10, 13, None, 20, 21], strict=True)
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
    left_out = next(word for word in Words().update(run) if word.text == "hello")
    again = finished(answer_again(engine, run, [left_out]))
    data = shared(run)[3]
    (forgotten,) = data["forgotten"]
    assert "".join(data["texts"][index] for index in forgotten["left_out"]) == "hello"
    assert "".join(forgotten["answer"]) == again.text


def test_a_file_is_named_after_model_and_prompt():
    assert sharing.file_name(Run("models/mine", prompt="What's *this*?")) == "mine-What-s-this"
    assert sharing.file_name(Run("..", prompt="\u202e/../é_x")) == "é-x"
    assert sharing.file_name(Run("..")) == "gateloop"
