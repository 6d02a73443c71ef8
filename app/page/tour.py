"""The guided tour: seven steps on a recorded answer, in a dialog of the page.

`docs/tour_recording.py` makes static/tour.json, the numbers that it shows.
"""

import gradio as gr

from . import scripts

START = scripts.call("tour", "startOnce")  # for a browser that was never here
OPEN = scripts.call("tour", "open")


def dialog() -> gr.HTML:
    """Make the dialog, which is closed."""
    return gr.HTML(
        html_template=(scripts.STATIC / "tour.html").read_text(encoding="utf-8"),
        css_template=(scripts.STATIC / "tour.css").read_text(encoding="utf-8"),
        js_on_load=scripts.call("tour", "attach", "element"),
        elem_id="tour",
    )
