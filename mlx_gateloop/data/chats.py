"""Conversations as a chat template writes them, and which of their tokens are answers."""

from collections.abc import Sequence
from typing import Any

from mlx_gateloop.data.documents import Message
from mlx_gateloop.errors import InputError
from mlx_gateloop.tokenizer import template_ids


def chat_ids(
    messages: Sequence[Message], tokenizer: Any, tools: list[Any] | None = None, **options: Any
) -> list[int]:
    """Return the tokens of messages, after the tools that they may call."""
    if tokenizer.chat_template is None:
        reason = "the text has conversations and this tokenizer has no chat template"
        raise InputError(f"{reason}; give plain text, or one with a template")
    return template_ids(tokenizer, messages, tools, **options)


def answer_positions(
    messages: Sequence[Message], ids: list[int], tokenizer: Any, tools: list[Any] | None = None
) -> list[int]:
    """Return the positions of the assistant's tokens among the `ids` of a conversation.

    An answer begins after what the template writes before one, and ends with its message: the
    token that ends a turn is included, and a line end that the template writes after it.
    """
    from mlx_lm.utils import common_prefix_len

    positions: list[int] = []
    for number, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        if number == 0:
            reason = "a conversation begins with an answer; give the message before it"
            raise InputError(f"data.loss_on: answers, but {reason}")
        opened = chat_ids(messages[:number], tokenizer, tools, add_generation_prompt=True)
        whole = chat_ids(messages[: number + 1], tokenizer, tools)
        begin, end = (common_prefix_len(part, ids) for part in (opened, whole))
        # A tokenizer may merge one token with the next.
        changed = end < len(whole) - 1 or begin >= end
        if begin < len(opened) - 1:  # the template opens an answer otherwise than it writes one
            before = chat_ids(messages[:number], tokenizer, tools)
            changed |= min(begin, common_prefix_len(before, ids)) < len(before) - 1
        if changed:
            reason = "this chat template changes messages when others follow"
            raise InputError(f"data.loss_on: answers, but {reason}; give single turns")
        positions += range(begin, end)
    return positions
