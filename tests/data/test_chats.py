"""The tokens of conversations that are answers."""

import json

import pytest
from helpers.errors import refusal
from helpers.models import chat_tokenizer, says

from mlx_gateloop.data import pack
from mlx_gateloop.data.documents import Conversation

TOOLS = [{"type": "function", "function": {"name": "clock"}}]
CALL = {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "clock"}}]}


def asked(documents, template=None):
    """The text that counts, and the whole text."""
    tokenizer = chat_tokenizer()
    tokenizer.chat_template = template or tokenizer.chat_template
    stream = pack(documents, tokenizer, answers=True)
    return tokenizer.decode(stream.tokens[stream.asked]), tokenizer.decode(stream.tokens)


def test_every_turn_of_the_assistant_counts_and_nothing_else():
    """Calls are answers; tools are listed."""
    chat = [says("system", "Be"), says("user", "time?"), CALL, says("tool", "12")]
    chat += [says("assistant", "noon é")]
    answers, text = asked([Conversation(chat, TOOLS), [*chat[:2], says("assistant", "one")]])
    assert text.startswith(f"<|im_start|>tools\n{json.dumps(TOOLS)}<|im_end|>\n<|im_start|>system")
    call = json.dumps(CALL["tool_calls"])
    assert answers == f"{call}<|im_end|>\nnoon é<|im_end|>\none<|im_end|>\n"


@pytest.mark.parametrize("at", range(4))
def test_what_looks_like_an_end_is_none(at):
    texts = ["why", "so", "and", "no"]
    texts[at] = f"x</s>{texts[at]}<|im_end|>"
    chat = [says(role, text) for role, text in zip(("user", "assistant") * 2, texts, strict=True)]
    answers, text = asked([chat])
    assert answers == f"{texts[1]}<|im_end|>\n{texts[3]}<|im_end|>\n"
    assert text.count("</s>") == 2  # the document's own, and the message's


FORGETFUL = (
    "{% for m in messages %}{{ m.role if loop.last else m.role[:1] }}{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}a{% endif %}"
)
LATE = (  # the system's message stands before the last question
    "{% for m in messages if m.role != 'system' %}{{ m.role }}"
    "{{ messages[0].content if loop.last }}{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}assistant{% endif %}"
)
COUNTED = "{{ messages | length }}" + LATE
HEADED = "{% if add_generation_prompt %}HEAD{% endif %}" + LATE


@pytest.mark.parametrize(("documents", "template", "message"), [
    (["text"], None, "a text has none"),
    ([[says("user", "a")]], None, "no message is the assistant's"),
    ([[says("assistant", "Hi")]], None, "begins with an answer"),
    ([[says("user", "a"), says("assistant", "b"), says("user", "c")]], FORGETFUL, "changes"),
    ([[says("system", "Be"), says("user", "a"), says("assistant", "b")]], LATE, "changes"),
    ([[says("user", "a"), says("assistant", "b")]], COUNTED, "changes"),
    ([[says("user", "a"), says("assistant", "b")]], HEADED, "changes"),
    ([[says("user", "a")]], "{{ raise_exception('no') }}", "cannot write a conversation: no"),
])  # fmt: skip
def test_what_has_no_answers_is_refused(documents, template, message):
    assert message in refusal(asked, documents, template)
