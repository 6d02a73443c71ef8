"""Limits on the number of connections and the time of a request."""

import asyncio
import resource
import sys
from typing import ClassVar

from uvicorn.protocols.http.h11_impl import H11Protocol

REQUEST_SECONDS = 10  # for the next request of a connection, and for a slow reader
MAX_CONNECTIONS = 512
BACKLOG = 32  # connections accepted at once
OTHER_FILES = 64  # open files besides connections; 18 were counted


class Connection(H11Protocol):
    """A connection of uvicorn with a timeout for slow clients; a new one may replace a slow one."""

    _waiting: ClassVar[dict["Connection", asyncio.TimerHandle]] = {}  # oldest first

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._update_timer()
        if len(self.connections) > max_connections():
            idle = (other for other in self._waiting if not other._is_answering())
            longest = next(idle, None) or next(iter(self._waiting))
            longest._stop_timer()
            longest._close()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._update_timer()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._update_timer()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._update_timer()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._update_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._stop_timer()

    def _update_timer(self) -> None:
        if self._is_answering() and not self.flow.write_paused:
            self._stop_timer()
        elif self not in self._waiting and not self.transport.is_closing():
            self._waiting[self] = self.loop.call_later(REQUEST_SECONDS, self._timed_out)

    def _is_answering(self) -> bool:
        """Return True if the app has a complete request and has not answered it."""
        cycle = self.cycle
        return cycle is not None and not cycle.more_body and not cycle.response_complete

    def _timed_out(self) -> None:
        if self.cycle is None or self.cycle.response_complete or not self.cycle.more_body:
            self._close()  # for an incomplete body the middleware answers 408

    def _close(self) -> None:
        """Close the connection; the client may still read an answer that was sent completely."""
        if self.transport.get_write_buffer_size() > 0:
            self.transport.abort()
        else:
            self.transport.close()

    def _stop_timer(self) -> None:
        if (timer := self._waiting.pop(self, None)) is not None:
            timer.cancel()


def max_connections() -> int:
    """Return the maximum number of connections that leaves the process enough files."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    # a closed connection keeps its file for two more rounds of the event loop
    allowed = sys.maxsize if soft < 0 else soft - OTHER_FILES - 3 * BACKLOG
    return max(BACKLOG, min(MAX_CONNECTIONS, allowed))
