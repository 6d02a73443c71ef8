"""The Memory lab's tab: a gr.HTML with scripts that run both models."""

from pathlib import Path

import gradio as gr

from mlx_gateloop.io.models import LOADED
from mlx_gateloop.watch.lab import NAMES, accuracies, lab_data
from mlx_gateloop.watch.sharing import PARTS

from ..generation.files import sha256, verify_checksums
from . import scripts

FOLDER = Path(__file__).parents[1] / "embedded_models" / "lab"


def memory_lab() -> gr.HTML:
    """Make the component of the Memory lab."""
    for name in NAMES:
        directory = FOLDER / name
        files = [file for kind in LOADED for file in directory.glob(kind)]
        verify_checksums(name, directory, {file.name: sha256(file) for file in files})
    return gr.HTML(
        html_template=(PARTS / "lab.html").read_text("utf-8"),
        css_template=(PARTS / "lab.css").read_text("utf-8"),
        js_on_load=scripts.call("lab", "attach", "element", "props", folder=scripts.SHARED_URL),
        elem_id="lab",
        tested=accuracies(FOLDER),
        **lab_data(FOLDER),
    )
