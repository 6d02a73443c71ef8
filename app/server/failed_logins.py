"""Delay failed logins, longer after each failure."""

import asyncio
import time
from collections import OrderedDict

DELAY_SECONDS = 1.0  # after the first failure; n times as long after the n-th
MAX_DELAYS = 8
MAX_WAITING = 32  # delayed answers at once; others get 429 without a delay
MAX_KNOWN = 1_024  # addresses and names
FORGOTTEN_SECONDS = 900


class FailedLogins:
    """Counts failed logins by address and name; nobody is locked out."""

    def __init__(self) -> None:
        self._counts: OrderedDict[tuple[str, str], tuple[int, float]] = OrderedDict()
        self._waiting = 0

    async def answer(self, address: str, name: str) -> int:
        """Count a failed login and wait; return the status of the response."""
        count = max(self._count(("address", address)), self._count(("name", name[:100])))
        if self._waiting >= MAX_WAITING:
            return 429
        self._waiting += 1
        try:
            await asyncio.sleep(DELAY_SECONDS * min(count, MAX_DELAYS))
        finally:
            self._waiting -= 1
        return 400

    def _count(self, key: tuple[str, str]) -> int:
        now = time.monotonic()
        count, last = self._counts.pop(key, (0, now))
        count = 1 if now - last > FORGOTTEN_SECONDS else count + 1
        self._counts[key] = count, now
        if len(self._counts) > MAX_KNOWN:
            self._counts.popitem(last=False)
        return count
