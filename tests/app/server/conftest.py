"""Delays that take no time."""

import asyncio

import pytest


@pytest.fixture
def delays(monkeypatch):
    """The seconds of each wait; others come meanwhile."""
    delays, sleep = [], asyncio.sleep

    async def short(seconds):
        delays.append(seconds)
        await sleep(0)

    monkeypatch.setattr(asyncio, "sleep", short)
    return delays
