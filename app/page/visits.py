"""Chats as their pages show them, so that a page that is loaded again goes on with its own."""

import threading
import weakref
from collections import Counter, OrderedDict

from ..generation.run import Run

History = list[dict[str, str]]


class Visits:
    """The last `most` chats by session secret; the browser's tab stores only the secret."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._chats: OrderedDict[str, tuple[History, weakref.ref[Run] | None]] = OrderedDict()
        self._returns: Counter[str] = Counter()
        self._lock = threading.Lock()

    def put(self, session: str, messages: History, run: Run | None = None) -> None:
        """Keep a chat as the page shows it, with the run that answers its last message."""
        with self._lock:
            self._chats[session] = messages, None if run is None else weakref.ref(run)
            self._chats.move_to_end(session)
            while len(self._chats) > self._most:
                self._returns.pop(self._chats.popitem(last=False)[0], None)

    def get(self, session: str) -> tuple[History, Run | None]:
        """Return the messages and the run of a chat; none if it is not kept."""
        with self._lock:
            messages, kept = self._chats.get(session, ([], None))
        run = kept() if kept else None
        if run is not None and run.text:  # it may have written more than the page has shown
            asked = messages[:-1] if messages[-1]["role"] == "assistant" else messages
            messages = [*asked, {"role": "assistant", "content": run.text}]
        return messages, run

    def come_back(self, session: str) -> bool:
        """Let another page go on with a chat; returns False if it is not kept."""
        with self._lock:
            if session in self._chats:
                self._returns[session] += 1
            return session in self._chats

    def leave(self, session: str) -> bool:
        """Drop a chat with its last page; returns False if another page goes on with it."""
        with self._lock:
            if self._returns[session] > 0:
                self._returns[session] -= 1
                return False
            del self._returns[session]
            self._chats.pop(session, None)
            return True
