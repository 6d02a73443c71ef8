"""The Memory lab: two models that read digits and resets, which the page runs by its scripts."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from mlx_gateloop.io.models import load_model
from mlx_gateloop.watch.page import coded_weights
from mlx_gateloop.watch.sharing import HIGH, LOW, filled, part

NAMES = ("data-controlled", "fixed")  # directories of the models
MODULUS = RESET = 5  # digits are 0 to 4, as in training
MAX_CELLS = 64  # the training length
SPANS = ((0, 8), (9, 16), (17, 32), (33, 64))  # digits since the last reset
SCRIPTS = ("data.js", "model.js", "lab_cells.js", "lab.js", "lab_page.js")


def lab_data(folder: Path) -> dict[str, Any]:
    """Read the models in a folder for lab.js."""
    return {
        "max": MAX_CELLS,
        "modulus": MODULUS,
        "reset": RESET,
        "rates": [LOW, HIGH],
        "models": [
            {"config": asdict(load_model(path).args), "weights": coded_weights(path)}
            for path in (folder / name for name in NAMES)
        ],
    }


def accuracies(folder: Path) -> str:
    """Format the accuracy of both models on held-out data, by `SPANS`, as table rows."""
    tests = [json.loads((folder / name / "test.json").read_text()) for name in NAMES]
    rows = []
    for first, last in SPANS:
        span = slice(first, last + 1)
        shares = [sum(t["right_by_span"][span]) / sum(t["asked_by_span"][span]) for t in tests]
        cells = "".join(f"<td>{share:.1%}</td>" for share in shares)
        rows.append(f"<tr><th scope='row'>{first} to {last}</th>{cells}</tr>")
    return "".join(rows)


def lab_page(folder: Path, title: str) -> str:
    body = part("lab.html").replace("${tested}", accuracies(folder))
    return filled(lab_data(folder), title, SCRIPTS, body, ("page.css", "lab.css"))
