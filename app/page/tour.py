"""The guided tour: a dialog with seven steps on a recorded answer.

`docs/tour_recording.py` writes its numbers to static/tour.json.
"""

import gradio as gr

from . import scripts

START = scripts.call("tour", "startOnce")  # in a browser without an earlier visit
OPEN = scripts.call("tour", "open")


def dialog() -> gr.HTML:
    """Make the closed dialog."""
    return gr.HTML(
        html_template=(scripts.STATIC / "tour.html").read_text(encoding="utf-8"),
        css_template=(scripts.STATIC / "tour.css").read_text(encoding="utf-8"),
        js_on_load=scripts.call("tour", "attach", "element"),
        elem_id="tour",
    )
