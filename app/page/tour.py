"""The guided tour: a dialog with four steps on a recorded answer, and that answer's picture.

`docs/tour_recording.py` writes its numbers to static/tour.json.
"""

import html
import json

import gradio as gr

from . import scripts


def dialog() -> gr.HTML:
    return gr.HTML(
        html_template=(scripts.STATIC / "tour.html").read_text(encoding="utf-8"),
        css_template=(scripts.STATIC / "tour.css").read_text(encoding="utf-8"),
        js_on_load=scripts.call("tour", "attach", "element"),
        elem_id="tour",
    )


def picture() -> str:
    """Write the recorded chat, each word as faint as in the chat when the answer has ended."""
    recorded = json.loads((scripts.STATIC / "tour.json").read_text("utf-8"))
    words = {"prompt": "", "answer": ""}
    for text, kind, kept in zip(*(recorded[k] for k in ("texts", "kinds", "kept")), strict=True):
        if kind in words:
            words[kind] += f"<span style='--kept: {kept}'>{html.escape(text)}</span>"
    return "".join(f"<p class='{kind}'>{text.strip()}</p>" for kind, text in words.items())
