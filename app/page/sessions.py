"""Chat histories keyed by session token; the browser stores only the token."""

import threading
import weakref
from collections import Counter, OrderedDict

from ..generation.run import Run

History = list[dict[str, str]]


class Sessions:
    """The chats of the last `max_sessions` sessions; a reloaded page continues its own."""

    def __init__(self, max_sessions: int) -> None:
        self._max_sessions = max_sessions
        self._chats: OrderedDict[str, tuple[History, weakref.ref[Run] | None]] = OrderedDict()
        self._reopened: Counter[str] = Counter()
        self._lock = threading.Lock()

    def put(self, session: str, messages: History, run: Run | None = None) -> None:
        """Store a chat and the run that answers its last message."""
        with self._lock:
            self._chats[session] = messages, None if run is None else weakref.ref(run)
            self._chats.move_to_end(session)
            while len(self._chats) > self._max_sessions:
                self._reopened.pop(self._chats.popitem(last=False)[0], None)

    def get(self, session: str) -> tuple[History, Run | None]:
        """Return the messages and the run of a chat, or no messages if the chat is unknown."""
        with self._lock:
            messages, kept = self._chats.get(session, ([], None))
        run = kept() if kept else None
        if run is not None and run.text:  # it may have generated more than the page shows
            asked = messages[:-1] if messages[-1]["role"] == "assistant" else messages
            messages = [*asked, {"role": "assistant", "content": run.text}]
        return messages, run

    def resume(self, session: str) -> bool:
        """Let another page continue a chat; return False if the chat is unknown."""
        with self._lock:
            if session in self._chats:
                self._reopened[session] += 1
            return session in self._chats

    def close(self, session: str) -> bool:
        """Drop a chat when its last page closes; return False if another page continues it."""
        with self._lock:
            if self._reopened[session] > 0:
                self._reopened[session] -= 1
                return False
            del self._reopened[session]
            self._chats.pop(session, None)
            return True
