"""The Memory lab's scripts: their answers and shares are those of the models."""

import json
from pathlib import Path

import mlx.core as mx
import numpy as np
from helpers.embedded import MODELS
from helpers.node import needs_node, node

import mlx_gateloop as gl
from mlx_gateloop.data.memory_horizon import answers
from mlx_gateloop.io.models import load_model
from mlx_gateloop.watch import lab

FOLDER = MODELS / "lab"
SCRIPT = Path(__file__).parent / "shared" / "solve.mjs"


@needs_node
def test_answers_and_shares_are_those_of_the_models():
    chance = np.random.default_rng(0)
    cells = [[5], [0], [5] * 64, [5, *[4] * 15] * 4]
    cells += [chance.integers(0, 6, length).tolist() for length in (8, 64)]
    found = node(SCRIPT, given=json.dumps({"lab": lab.lab_data(FOLDER), "cells": cells}))
    models = [load_model(FOLDER / name) for name in lab.NAMES]
    for each, solved in zip(cells, json.loads(found), strict=True):
        right, _ = answers(np.array([each]), lab.RESET, lab.MODULUS, "running_sum")
        assert solved["right"] == right[0].tolist()
        for number, model in enumerate(models):
            assert solved["answers"][number] == model(mx.array([each]))[0].argmax(-1).tolist()
            trace = gl.watch.trace_of(model, np.array(each))
            for token, row in enumerate(solved["left"][number]):
                np.testing.assert_allclose(row, trace.retention(token), atol=1e-4)


def test_the_page_has_both_models_and_its_accuracies():
    page = lab.lab_page(FOLDER, "Sums")
    assert page.count('"weights":') == len(lab.NAMES)
    assert page.count("<th scope='row'>") == len(lab.SPANS)
    assert "${" not in page.split('<script type="application/json"')[0]
