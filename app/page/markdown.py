"""Markdown of answers as HTML that keeps every character: words keep their positions.

All HTML in a text is escaped first. Links and images stay text, so nothing is ever loaded.
"""

import html
import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from ..generation.words import SHOWN
from .sessions import History

PARTS = re.compile(
    r"^(?P<fence>```[^\n`]*\n)(?P<block>.*?)(?P<end>^```[ \t]*$|\Z)"
    r"|(?<!`)(?P<ticks>`+)(?P<code>[^`\n]+)(?P=ticks)"
    r"|(?P<stars>\*\*)(?=\S)(?P<strong>[^\n]{1,1000}?)(?<=\S)\*\*"
    r"|(?<![\w*])(?P<star>\*)(?=\S)(?P<em>[^*\n]+)(?<=\S)\*(?![\w*])"
    r"|^(?P<marks>\#{1,6}[ ])(?P<heading>[^\n]+)",
    re.MULTILINE | re.DOTALL,
)
ANSWER = '<span class="answer"><button class="copy_answer" title="Copy the answer"></button>'
# Gradio's chat copies the text beside a button of this class; its second child confirms it.
BLOCK = (
    '<span class="block"><button class="copy_code_button" title="Copy the code">'
    "<span></span><span></span></button><code>"
)

INVENTED = '</span><span class="invented"></span>'  # page.css has its words, which are no answer


def escape(text: str) -> str:
    """Escape a message, which stays as it was typed."""
    return html.escape(text.translate(SHOWN), False)


@lru_cache(512)  # the chat is sent again with each update
def answer_html(text: str) -> str:
    """Style an answer; the marks of Markdown stay in it, and page.css hides them.

    Tags at the end stay open, so that a growing text only grows.
    """
    return ANSWER + PARTS.sub(_style, escape(text))


def escape_history(history: History, offered: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Format the history for gr.Chatbot, which renders HTML.

    If there are questions to offer instead, the last answer is marked as likely invented.
    """
    write: dict[str, Callable[[str], str]] = {"user": escape, "assistant": answer_html}
    shown: list[dict[str, Any]] = [
        # as an object: Gradio strips indentation from a plain string
        {**m, "content": [{"type": "text", "text": write[m["role"]](m["content"])}]}
        for m in history
    ]
    if offered:
        shown[-1]["content"][0]["text"] += INVENTED
        shown[-1]["options"] = [{"value": question} for question in offered]
    return shown


def _style(part: re.Match[str]) -> str:
    kind = str(part.lastgroup)
    if kind == "end":
        end = f"</code></span>{_hidden(part['end'])}" if part["end"] else ""
        return f"{_hidden(part['fence'])}{BLOCK}{part['block']}{end}"
    if kind == "heading":
        return f"{_hidden(part['marks'])}<strong>{part['heading']}</strong>"
    mark = _hidden(part[{"code": "ticks", "strong": "stars", "em": "star"}[kind]])
    return f"{mark}<{kind}>{part[kind]}</{kind}>{mark}"


def _hidden(mark: str) -> str:
    return f'<i class="mark">{mark}</i>'
