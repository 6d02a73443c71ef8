"""The log stays short."""

import logging
from unittest.mock import Mock

import gradio as gr
import pytest
from mlx_gateloop.app.server import log


@pytest.fixture
def logger(caplog):
    caplog.handler.addFilter(first := log.handler().filters[0])
    yield logging.getLogger("anything")
    caplog.handler.removeFilter(first)


def test_each_error_is_logged_once(logger, caplog):
    for number in range(50):
        try:
            raise KeyError(number)
        except KeyError:
            logger.exception("failed")
        logger.error("no space\n%s", number)
        logger.error("of model %s", number % 2)
    lines = [record.getMessage().split("\n")[0] for record in caplog.records]
    assert lines == ["failed", "no space", "of model 0", "of model 1"]
    assert caplog.records[0].exc_info[0] is KeyError
    for number in range(1000):
        logger.error("number %s", number)
    assert len(caplog.records) == log.MAX_ERRORS


@pytest.mark.parametrize(("error", "message", "logged"), [
    (KeyError("x"), "'x'", 1),
    (gr.Error("a wrong choice"), "a wrong choice", 1),  # Gradio's own, of a hand-made request
    (gr.Error("a user_error", print_exception=False), "a user_error", 0),
])  # fmt: skip
async def test_an_event_that_fails_is_logged_never_printed(error, message, logged, caplog, capsys):
    with log.Page() as page:  # within a loop: Gradio makes one otherwise, and never closes it
        gr.Button().click(Mock(side_effect=error), None, None)
    with pytest.raises(gr.Error) as answer:
        await page.process_api(0, [])
    assert (answer.value.message, answer.value.print_exception) == (message, False)
    assert len(caplog.records) == logged
    assert capsys.readouterr().err == ""
