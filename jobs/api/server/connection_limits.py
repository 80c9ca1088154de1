"""Limits of connections: time for a request's headers, and number of open connections, in total and per address.

uvicorn has no time limit for headers. Clients that send part of a header and wait would block all connections forever.
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

    Above the limit, the connection that has waited longest for a request is closed. Clients that send half a header
    always count as waiting, so a client that sends its request is served. If no other connection is waiting, the one
    that has been inactive for the longest time while it sends a body or reads a response is closed. One address may
    have half of all connections; a proxy in front of the service is one address.
    """

    _timer: asyncio.TimerHandle | None = None
    _waiting_since_s = 0.0
    _active_s = 0.0
    _reading_timer: asyncio.TimerHandle | None = None
    _unread_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._limit_time()
        self._make_room()

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

    def on_response_complete(self) -> None:
        """Limits the time until the next request begins."""
        self._waiting_since_s = self.loop.time()
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        self._stop_reading_timer()
        super().connection_lost(exc)

    @property
    def _waits(self) -> bool:
        """True if no complete header has arrived yet, or the rest of a body is missing after its response."""
        answered = self.conn.our_state is h11.DONE and self.conn.their_state is not h11.DONE
        return self.conn.their_state is h11.IDLE or answered

    @property
    def _stalls(self) -> bool:
        """True if the client is sending a body or reading a response."""
        return self.conn.their_state is h11.SEND_BODY or self._reading_timer is not None

    def _limit_time(self) -> None:
        """Sets the timer when a wait begins; more of the same header does not set it again."""
        if not self._waits or self.transport.is_closing():
            self._stop_timer()
        elif self._timer is None:
            self._waiting_since_s = self.loop.time()
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

    def _make_room(self) -> None:
        most = max_connections()
        for limit, same_address in ((most // 2, True), (most, False)):
            group = [
                other
                for other in self.connections
                if isinstance(other, LimitedProtocol)
                and not other.transport.is_closing()
                and (not same_address or _host(other) == _host(self))
            ]
            if len(group) > limit:
                waiting = [other for other in group if other._waits and other is not self]
                stalled = [other for other in group if other._stalls]
                if waiting:
                    min(waiting, key=lambda other: other._waiting_since_s).transport.abort()
                else:
                    min(stalled, key=lambda other: other._active_s, default=self).transport.abort()


def _host(connection: LimitedProtocol) -> str | None:
    return connection.client[0] if connection.client is not None else None
