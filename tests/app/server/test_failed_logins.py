"""Failed logins: each waits longer, few wait at once, and nobody is locked out."""

import asyncio

import pytest
from mlx_gateloop.app.server import failed_logins
from mlx_gateloop.app.server.failed_logins import FailedLogins


@pytest.fixture
def failed(monkeypatch):
    """Failed logins by address and name; returns their statuses and delays."""
    logins, delays, sleep = FailedLogins(), [], asyncio.sleep

    async def short(seconds):
        delays.append(seconds)
        await sleep(0)  # the others come meanwhile

    async def answers(tried, at_once):
        if at_once:
            return await asyncio.gather(*(logins.answer(*each) for each in tried))
        return [await logins.answer(*each) for each in tried]

    monkeypatch.setattr(asyncio, "sleep", short)
    failed = lambda tried, at_once=False: (asyncio.run(answers(tried, at_once)), delays)  # noqa: E731
    failed.logins = logins
    return failed


def test_each_waits_longer_by_address_and_by_name(failed):
    tried = [("a", "x"), ("a", "y"), ("b", "y"), ("b", "y"), ("c", "z")]
    tried += [("d", str(number)) for number in range(10)]
    statuses, delays = failed(tried)
    assert {*statuses} == {400}
    assert delays == [1, 2, 2, 3, 1, 1, 2, 3, 4, 5, 6, 7, 8, 8, 8]


def test_few_wait_at_once(failed):
    statuses, delays = failed([("a", "x")] * 200, at_once=True)
    assert {*statuses} == {400, 429}
    assert len(delays) == statuses.count(400) == failed_logins.MAX_WAITING


def test_what_is_remembered_is_bounded(failed):
    failed([(str(n), "n" * n) for n in range(failed_logins.MAX_KNOWN + 500)])
    known = failed.logins._counts
    assert len(known) == failed_logins.MAX_KNOWN
    assert max(len(name) for _, name in known) == 100
