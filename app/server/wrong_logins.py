"""Wrong logins: they are answered the later the more of them there were."""

import asyncio
import time
from collections import OrderedDict

DELAY_SECONDS = 1.0  # of the answer to the first one; that of the n-th is n times as long
MOST_DELAYS = 8
MOST_WAITING = 32  # answers at once; further ones get 429 without a delay
MOST_KNOWN = 1_024  # addresses and names
FORGOTTEN_SECONDS = 900


class WrongLogins:
    """Counts wrong logins by address and by name.

    Every password is checked, so nobody who knows it is kept out while others guess.
    """

    def __init__(self) -> None:
        self._counts: OrderedDict[tuple[str, str], tuple[int, float]] = OrderedDict()
        self._waiting = 0

    async def answer(self, address: str, name: str) -> int:
        """Count a wrong login and wait; returns the status of its answer."""
        count = max(self._count(("address", address)), self._count(("name", name[:100])))
        if self._waiting >= MOST_WAITING:
            return 429
        self._waiting += 1
        try:
            await asyncio.sleep(DELAY_SECONDS * min(count, MOST_DELAYS))
        finally:
            self._waiting -= 1
        return 400

    def _count(self, key: tuple[str, str]) -> int:
        now = time.monotonic()
        count, last = self._counts.pop(key, (0, now))
        count = 1 if now - last > FORGOTTEN_SECONDS else count + 1
        self._counts[key] = count, now
        if len(self._counts) > MOST_KNOWN:
            self._counts.popitem(last=False)
        return count
