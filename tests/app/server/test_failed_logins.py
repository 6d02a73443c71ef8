"""Failed logins: each waits longer, few wait at once, and nobody is locked out."""

import asyncio

from mlx_gateloop.app.server import failed_logins
from mlx_gateloop.app.server.failed_logins import FailedLogins


async def one_by_one(logins, tried):
    return [await logins.answer(*each) for each in tried]


async def test_each_waits_longer_by_address_and_by_name(delays):
    tried = [("a", "x"), ("a", "y"), ("b", "y"), ("b", "y"), ("c", "z")]
    tried += [("d", str(number)) for number in range(10)]
    assert {*await one_by_one(FailedLogins(), tried)} == {400}
    assert delays == [1, 2, 2, 3, 1, 1, 2, 3, 4, 5, 6, 7, 8, 8, 8]


async def test_few_wait_at_once(delays):
    logins = FailedLogins()
    statuses = await asyncio.gather(*(logins.answer("a", "x") for _ in range(200)))
    assert {*statuses} == {400, 429}
    assert len(delays) == statuses.count(400) == failed_logins.MAX_WAITING


async def test_what_is_remembered_is_bounded(delays):
    tried = [(str(n), "n" * n) for n in range(failed_logins.MAX_KNOWN + 500)]
    await one_by_one(logins := FailedLogins(), tried)
    assert len(logins._counts) == failed_logins.MAX_KNOWN
    assert max(len(name) for _, name in logins._counts) == 100
