"""The Memory lab's tab: a gr.HTML that runs both models on the cells of the page."""

from pathlib import Path

import gradio as gr

from mlx_gateloop.errors import InputError

from ..generation.engine import Engine
from ..generation.lab import MAX_CELLS, MODULUS, RESET, Lab, check_cells
from . import scripts

FOLDER = Path(__file__).parents[1] / "embedded_models" / "lab"
SPANS = ((0, 8), (9, 16), (17, 32), (33, 64))  # digits since the last reset


def memory_lab(engine: Engine) -> gr.HTML:
    """Make the component of the Memory lab; the engine's worker thread runs the models."""
    lab = Lab(FOLDER)

    async def solve(request: object) -> dict[str, object]:
        try:
            cells = check_cells(request)
            return await engine.call(lambda: lab.solve(cells))
        except InputError as error:
            return {"error": str(error)}

    return gr.HTML(
        html_template=(scripts.STATIC / "lab.html").read_text(encoding="utf-8"),
        css_template=(scripts.STATIC / "lab.css").read_text(encoding="utf-8"),
        js_on_load=scripts.call("lab", "attach", "element", "props", "server"),
        server_functions=[solve],
        elem_id="lab",
        max=MAX_CELLS,
        modulus=MODULUS,
        reset=RESET,
        tested=_tested(lab),
    )


def _tested(lab: Lab) -> str:
    """Format the accuracy of both models on held-out data as table rows."""
    return "".join(
        f"<tr><th scope='row'>{first} to {last}</th><td>{free:.1%}</td><td>{fixed:.1%}</td></tr>"
        for (first, last), free, fixed in zip(SPANS, *lab.accuracy(SPANS), strict=True)
    )
