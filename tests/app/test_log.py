"""The log stays short."""

import logging

import pytest
from gradio import queueing, routes
from mlx_gateloop.app import log


@pytest.fixture
def logger(monkeypatch):
    for module in (queueing, routes):
        monkeypatch.setattr(module, "traceback", module.traceback)
    log.keep_short()
    yield logging.getLogger(log.LOGGERS[0])
    for name in log.LOGGERS:
        for added in list(logging.getLogger(name).filters):
            logging.getLogger(name).removeFilter(added)


def fail(logger, number):
    try:
        raise KeyError(number)
    except KeyError:
        logger.exception("failed")


def test_each_error_is_logged_once(logger, caplog):
    for number in range(50):
        fail(logger, number)
        logger.error("no room\n%s", number)
        logger.error("of model %s", number % 2)
    assert [record.getMessage().split("\n")[0] for record in caplog.records] == [
        "failed",
        "no room",
        "of model 0",
        "of model 1",
    ]
    assert caplog.records[0].exc_info[0] is KeyError


def test_the_number_of_errors_is_bounded(logger, caplog):
    for number in range(1000):
        logger.error("number %s", number)
    assert len(caplog.records) == log.MOST_ERRORS


def test_what_gradio_prints_is_logged_once_too(logger, caplog, capsys):
    for _ in range(50):
        try:
            raise ValueError("not enough input values")
        except ValueError:
            queueing.traceback.print_exc()
    assert [record.getMessage() for record in caplog.records] == ["an event failed"]
    assert "not enough input values" in caplog.text
