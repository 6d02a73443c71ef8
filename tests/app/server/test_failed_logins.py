"""Failed logins: each waits longer, few wait at once, and nobody is locked out."""

import asyncio

from mlx_gateloop.app.server import failed_logins
from mlx_gateloop.app.server.failed_logins import FailedLogins


async def one_by_one(logins, tried):
    return [await logins.answer(*each) for each in tried]


def test_each_waits_longer_by_address_and_by_name(delays):
    tried = [("a", "x"), ("a", "y"), ("b", "y"), ("b", "y"), ("c", "z")]
    tried += [("d", str(number)) for number in range(10)]
    assert {*asyncio.run(one_by_one(FailedLogins(), tried))} == {400}
    assert delays == [1, 2, 2, 3, 1, 1, 2, 3, 4, 5, 6, 7, 8, 8, 8]


def test_few_wait_at_once(delays):
    async def at_once(logins):
        return await asyncio.gather(*(logins.answer("a", "x") for _ in range(200)))

    statuses = asyncio.run(at_once(FailedLogins()))
    assert {*statuses} == {400, 429}
    assert len(delays) == statuses.count(400) == failed_logins.MAX_WAITING


def test_what_is_remembered_is_bounded(delays):
    tried = [(str(n), "n" * n) for n in range(failed_logins.MAX_KNOWN + 500)]
    asyncio.run(one_by_one(logins := FailedLogins(), tried))
    assert len(logins._counts) == failed_logins.MAX_KNOWN
    assert max(len(name) for _, name in logins._counts) == 100
