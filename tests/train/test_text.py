"""Text as the source of a run."""

import pytest

from mlx_gateloop.tokenizer import CHAT_TEMPLATE, byte_tokenizer
from mlx_gateloop.train.text import _set_chat_template

CHAT = [{"role": "user", "content": "Hi"}]


@pytest.mark.parametrize(
    ("own", "documents", "template"),
    [("own", ["a text"], None), (None, ["a text", CHAT], CHAT_TEMPLATE), ("own", [CHAT], "own")],
)
def test_conversations_alone_bring_a_template_and_leave_the_tokenizers_own(
    own, documents, template
):
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = own
    _set_chat_template(tokenizer, documents)
    assert tokenizer.chat_template == template
