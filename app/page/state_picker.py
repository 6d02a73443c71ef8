"""State files of `gateloop read` and `tune`: a list, an upload by drag and drop, and a line."""

import json
from typing import Any

import gradio as gr

from mlx_gateloop.errors import InputError

from ..generation.probes import Probe
from ..generation.run import public_line
from ..generation.state_files import given_file
from . import scripts
from .controls import PRIVATE, QUICK
from .handlers import Handlers
from .status import note

DROP = (
    "<label tabindex='0' role='button'>Drop a .state file of gateloop read or tune, or choose one"
    "<input type='file' accept='.state' hidden></label>"
)


def state_picker(handlers: Handlers, model: gr.Dropdown, tab: str, title: str) -> gr.JSON:
    """Make a tab's controls; return the component of the state to begin from, None without one."""
    state, models = gr.JSON(visible=False), handlers.engine.models
    with gr.Accordion(title, open=False, elem_id=f"{tab}-states"):
        names = list(models.state_files())
        chosen = gr.Dropdown([("None", ""), *names], value="", label="State", visible=bool(names))
        attach = scripts.call("state_drop", "attach", "element", "props", "trigger")
        dropped = gr.HTML(html_template=DROP, js_on_load=attach, elem_classes="state-drop")
        line = gr.HTML("")

    async def check(given: object, name: str) -> tuple[Any, str]:
        try:
            if (file := given_file(given, models)) is None:
                return None, ""
            work = Probe(file.tokens_read)
            await handlers.engine.enqueue(name, work).ended()
        except InputError as error:
            return None, note(public_line(str(error)))
        kind = f"{work.result:,} tokens read" if work.result else "a tuned state"
        return json.dumps(given), note(f"{file.name}: {kind}")  # gr.JSON would parse a name

    for event, source in ((chosen.input, chosen), (dropped.input, dropped)):
        event(check, [source, model], [state, line], **QUICK)
    # in the browser: a server's answer could come after that to a file dropped meanwhile
    model.change(None, None, [state, chosen, line], js="() => [null, '', '']", **PRIVATE)
    return state
