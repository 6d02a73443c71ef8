"""Connections with limits: of their number, and of the time of a request."""

import asyncio
import resource
import sys
from typing import ClassVar

from uvicorn.protocols.http.h11_impl import H11Protocol

REQUEST_SECONDS = 10  # for the next request of a connection, and for a reader to go on reading
MOST_CONNECTIONS = 512
BACKLOG = 32  # connections accepted at once
OTHER_FILES = 64  # that the process opens besides connections; 18 were counted


class Connection(H11Protocol):
    """A connection of uvicorn that ends when its client keeps it waiting.

    At the limit a new connection takes the place of the one that has waited longest for its client:
    for the rest of a request first, or else for the client to read.
    """

    _waiting: ClassVar[dict["Connection", asyncio.TimerHandle]] = {}  # of all, the longest first

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._watch()
        if len(self.connections) > most_connections():
            idle = (other for other in self._waiting if not other._works())
            longest = next(idle, None) or next(iter(self._waiting))
            longest._stop()
            longest._end()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._stop()

    def _watch(self) -> None:
        """Start or stop the time that the client has."""
        if self._works() and not self.flow.write_paused:
            self._stop()
        elif self not in self._waiting and not self.transport.is_closing():
            self._waiting[self] = self.loop.call_later(REQUEST_SECONDS, self._late)

    def _works(self) -> bool:
        """Tell if the app has a whole request and has not answered it."""
        cycle = self.cycle
        return cycle is not None and not cycle.more_body and not cycle.response_complete

    def _late(self) -> None:
        if self.cycle is None or self.cycle.response_complete or not self.cycle.more_body:
            self._end()  # for half a body the guard has a better answer

    def _end(self) -> None:
        """Close the connection; its client may still read an answer that was sent as a whole."""
        if self.transport.get_write_buffer_size() > 0:
            self.transport.abort()
        else:
            self.transport.close()

    def _stop(self) -> None:
        timer = self._waiting.pop(self, None)
        if timer is not None:
            timer.cancel()


def most_connections() -> int:
    """Return the most connections at once, so that the process can always open files."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    # a closed connection has its file for two more rounds of the event loop
    room = sys.maxsize if soft < 0 else soft - OTHER_FILES - 3 * BACKLOG
    return max(BACKLOG, min(MOST_CONNECTIONS, room))
