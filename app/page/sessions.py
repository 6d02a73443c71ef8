"""Chats keyed by session token; the browser stores only the token."""

import threading
import weakref
from collections import Counter, OrderedDict
from dataclasses import dataclass, field

from ..generation.run import Run

History = list[dict[str, str]]
MAX_BRANCHES = 20


@dataclass
class Chat:
    """The messages of a conversation: all its branches, one of which is shown."""

    branches: list[History] = field(default_factory=lambda: [[]])
    at: int = 0  # the branch that is shown
    run: "weakref.ref[Run] | None" = None  # that answers its last message
    name: str = ""  # its file's name, once saved
    version: int = 0  # the file's version
    problem: str = ""  # why it could not be saved
    deleted: bool = False  # its file; a running answer must not write it again

    def shown(self) -> tuple[History, Run | None]:
        """Return the messages that are shown, and the run that answers the last one."""
        messages, run = self.branches[self.at], self.run() if self.run else None
        if run is not None and run.text:  # it may have generated more than the page shows
            asked = messages[:-1] if messages[-1]["role"] == "assistant" else messages
            messages = [*asked, {"role": "assistant", "content": run.text}]
        return messages, run


class Sessions:
    """The chats of the last `max_sessions` sessions; a reloaded page continues its own."""

    def __init__(self, max_sessions: int) -> None:
        self._max_sessions = max_sessions
        self._chats: OrderedDict[str, Chat] = OrderedDict()
        self._reopened: Counter[str] = Counter()
        self._lock = threading.Lock()

    def chat(self, session: str) -> Chat:
        """Return a session's chat; a new one if the session is unknown."""
        with self._lock:
            return self._chats.get(session) or Chat()

    def start(self, session: str, chat: Chat) -> None:
        """Replace a session's chat."""
        with self._lock:
            self._chats[session] = chat
            self._chats.move_to_end(session)
            while len(self._chats) > self._max_sessions:
                self._reopened.pop(self._chats.popitem(last=False)[0], None)

    def begin(self, session: str, messages: History) -> None:
        """Show messages; if they do not continue those that are shown, those stay as a branch."""
        chat = self.chat(session)
        chat.branches[chat.at] = shown = chat.shown()[0]
        if messages[: len(shown)] != shown:
            if len(chat.branches) >= MAX_BRANCHES:  # the oldest goes, but not the one just left
                del chat.branches[0 if chat.at else 1]
            chat.branches.append(messages)
            chat.at = len(chat.branches) - 1
        self.start(session, chat)
        self.put(session, messages)

    def put(self, session: str, messages: History, run: Run | None = None) -> None:
        """Replace the messages that a chat shows, and the run that answers the last one."""
        chat = self.chat(session)
        chat.branches[chat.at] = messages
        chat.run = None if run is None else weakref.ref(run)
        self.start(session, chat)

    def turn(self, session: str, step: int) -> None:
        """Show the next branch, or the one before."""
        chat = self.chat(session)
        chat.branches[chat.at] = chat.shown()[0]
        chat.at = min(max(chat.at + step, 0), len(chat.branches) - 1)
        chat.run = None
        self.start(session, chat)

    def get(self, session: str) -> tuple[History, Run | None]:
        """Return the messages and the run of a chat, or no messages if the chat is unknown."""
        return self.chat(session).shown()

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
