"""Limits of connections: time for a request's headers, time until a client reads, and number of open connections.

uvicorn has no time limit for headers. Clients that send part of a header and wait would hold all connections forever.
"""

import asyncio
import resource

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

# Seconds. A client sends its headers at once; a slow network takes a second.
HEADER_TIMEOUT_S = 10.0
# Seconds. A client that has requested a large response reads some of it in this time.
READ_TIMEOUT_S = 30.0
MAX_CONNECTIONS = 2000
# Connections that are accepted at once, before the limit counts them.
BACKLOG = 64


def max_connections() -> int:
    """Returns the limit of open connections: half of the files that this process may open, at most MAX_CONNECTIONS."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MAX_CONNECTIONS if soft == resource.RLIM_INFINITY else min(MAX_CONNECTIONS, max(8, soft // 2))


class LimitedProtocol(H11Protocol):
    """A connection that is closed if its client stalls in a request or a response.

    Above the limit, the connection on which a client has sent and read nothing for the longest time is closed.
    """

    _timer: asyncio.TimerHandle | None = None
    _active_s = 0.0
    _reading_timer: asyncio.TimerHandle | None = None
    _unread_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._active_s = self.loop.time()
        self._limit_time()
        opened = [
            each for each in self.connections if isinstance(each, LimitedProtocol) and not each.transport.is_closing()
        ]
        if len(opened) > max_connections():
            min(opened, key=lambda each: each._active_s).transport.abort()

    def data_received(self, data: bytes) -> None:
        self._active_s = self.loop.time()
        super().data_received(data)
        self._limit_time()

    def pause_writing(self) -> None:
        """Limits the time until the client reads what was sent."""
        super().pause_writing()
        self._active_s = self.loop.time()
        self._unread_bytes = self.transport.get_write_buffer_size()
        self._reading_timer = self.loop.call_later(READ_TIMEOUT_S, self._limit_reading)

    def resume_writing(self) -> None:
        self._stop_reading_timer()
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        self._stop_reading_timer()
        super().connection_lost(exc)

    def _limit_time(self) -> None:
        """Sets the timer while a header is incomplete, or the rest of a body is still to come after its response."""
        answered = self.conn.our_state is h11.DONE and self.conn.their_state is not h11.DONE
        if not (self.conn.their_state is h11.IDLE or answered) or self.transport.is_closing():
            self._stop_timer()
        elif self._timer is None:  # more of the same header does not set it again
            self._timer = self.loop.call_later(HEADER_TIMEOUT_S, self.transport.abort)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _limit_reading(self) -> None:
        """Closes the connection unless the client has read something since the timer was set."""
        unread_bytes = self.transport.get_write_buffer_size()
        if unread_bytes >= self._unread_bytes:
            self.transport.abort()
            return
        self._active_s, self._unread_bytes = self.loop.time(), unread_bytes
        self._reading_timer = self.loop.call_later(READ_TIMEOUT_S, self._limit_reading)

    def _stop_reading_timer(self) -> None:
        if self._reading_timer is not None:
            self._reading_timer.cancel()
            self._reading_timer = None
