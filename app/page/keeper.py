"""Conversations that are saved by themselves, with each message and each answer."""

import json
import threading
from typing import Any

from mlx_gateloop.errors import InputError

from ..conversations.folder import ConversationFolder, title
from ..generation.prefix_cache import as_messages
from ..generation.run import Limits, public_line
from ..generation.worker_pool import WorkerPool
from .sessions import Chat, History, Sessions

MAX_IMPORT = 240_000  # bytes, as JSON; a request has at most 256 KiB


class Keeper:
    """Saves the chats of sessions in a folder, if there is one, and opens them."""

    def __init__(self, folder: ConversationFolder | None, sessions: Sessions) -> None:
        self.folder, self.sessions = folder, sessions
        self._pool = WorkerPool(threads=1, max_jobs=64)
        self._lock = threading.Lock()  # of the chats' names and versions

    async def keep(self, chat: Chat, session: str, model: str, system: str) -> None:
        """Save a session's chat in another thread; see `save`."""
        await self._pool(self.save, chat, session, model, system)

    def save(self, chat: Chat, session: str, model: str, system: str) -> None:
        """Save a session's chat; a failure is in `Chat.problem`."""
        folder, (messages, _) = self.folder, chat.shown()
        with self._lock:
            if folder is None or not messages or chat.deleted:
                return
            branches = [b for at, b in enumerate(chat.branches) if b and at != chat.at]
            name, whole = chat.name or title(messages), with_system(system, messages)
            try:
                saved = folder.keep(name, chat.version, session, model, whole, branches)
                taken = f"Another tab changed {name}. This conversation is now {saved[0]}."
                chat.problem = taken if chat.version and saved[0] != name else ""
                chat.name, chat.version = saved
            except InputError as error:
                chat.problem = public_line(str(error))

    def open(self, name: str) -> tuple[str, str, str, History]:
        """Open a conversation; return a new session, the model, the system prompt, the messages."""
        assert self.folder is not None
        session, model, messages, branches, version = self.folder.open(name)
        system, messages = without_system(messages)
        chat = Chat([*branches, messages], len(branches), name=name, version=version)
        self.sessions.start(session, chat)
        return session, model, system, messages

    def rename(self, session: str, new: str) -> bool:
        """Give a session's conversation another name; return whether it is new."""
        chat, new = self.sessions.chat(session), new.strip()
        if self.folder is None or new in ("", chat.name):
            return False
        if not chat.name:
            raise InputError(chat.problem or "Not saved yet: send a message first.")
        with self._lock:
            self.folder.rename(chat.name, new)
            chat.name = new
        return True

    def delete(self, chat: Chat) -> str:
        """Delete a chat's file; return its name for `ConversationFolder.restore`."""
        assert self.folder is not None
        with self._lock:
            deleted = self.folder.delete(chat.name)
            chat.deleted = True
        return deleted

    def export(self, session: str, system: str, kind: str) -> list[str]:
        """Write a session's messages as Markdown or JSON; return the file's name and content."""
        (messages, _), name = self.sessions.get(session), self.sessions.chat(session).name
        name, messages = name or title(messages), with_system(system, messages)
        if kind == "json":
            text = json.dumps({"messages": messages}, ensure_ascii=False, indent=1)
            return [f"{name}.json", text]
        who = {"user": "You", "assistant": "Answer", "system": "System prompt"}
        parts = [f"## {who[m['role']]}\n\n{m['content']}\n" for m in messages]
        return [f"{name}.md", "\n".join([f"# {name}\n", *parts])]


def imported(file: object) -> History:
    """Check a file that the page has read, its name, size and text, and return its messages."""
    name, size, text = file if isinstance(file, list) and len(file) == 3 else ("", 0, "")
    name = str(name)[:80]
    if not isinstance(size, int) or not isinstance(text, str) or size > MAX_IMPORT:
        raise InputError(f"{name}: not imported: more than {MAX_IMPORT:,} bytes as JSON")
    try:
        content: Any = json.loads(text)
        messages = content["messages"] if isinstance(content, dict) else content
        pairs = as_messages(messages, complete=False)
        "".join(text for _, text in pairs).encode()  # a lone surrogate cannot be shown
    except InputError as error:
        raise InputError(f"{name}: not imported: {error}") from None
    except (ValueError, KeyError, RecursionError):
        raise InputError(f"{name}: not imported: not the JSON of a conversation") from None
    longest, limits = max(len(text) for _, text in pairs), Limits()
    if longest > limits.characters or len(pairs) > limits.messages:
        allowed = f"{limits.messages} messages of {limits.characters:,} characters are allowed"
        raise InputError(f"{name}: not imported: at most {allowed}")
    return [{"role": role, "content": text} for role, text in pairs]


def with_system(system: str, history: History) -> History:
    """Prepend the system prompt, if there is one."""
    return [{"role": "system", "content": system}, *history] if system.strip() else history


def without_system(messages: History) -> tuple[str, History]:
    """Split the system prompt from the other messages."""
    system = "\n\n".join(m["content"] for m in messages if m["role"] == "system")
    return system, [m for m in messages if m["role"] != "system"]
