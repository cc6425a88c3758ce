"""The HTTP server: waitress on a listening socket that the supervisor owns.

The server thread polls the sockets, and worker threads run the application. A worker thread wakes the server thread
after each response, so `stop` first ends the worker threads, then the server thread, and then closes the connections.
The listening socket stays open in the supervisor, so new connections wait for the next status process.

Slow clients cannot occupy the server. A client must send a whole request, and read a whole response, within a time
limit. If there are too many connections, the server accepts a new connection all the same, and closes another: of the
connections without a running request, the oldest connection of the peer with the most of them.
"""

from __future__ import annotations

import logging
import socket
import time
from collections import Counter as Tally
from errno import EMFILE, ENFILE, ENOBUFS, ENOMEM
from threading import Thread
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from waitress import create_server, wasyncore
from waitress.channel import HTTPChannel

if TYPE_CHECKING:
    from collections.abc import Callable

    from flask import Flask

__all__ = ["HttpLimits", "HttpServer"]

THREADS: Final = 4
"""Number of requests that are answered at the same time."""
_STOP_S: Final = 2.0
"""Longest wait of `stop` for running requests, and then for the server thread."""
_EXTRA_CONNECTIONS: Final = 32
"""Room for connections that `HttpLimits.connections` does not count: with a running request, or about to be closed."""
_UCRED_BYTES: Final = 12
"""Size of Linux' `struct ucred`: pid, uid and gid, of 4 bytes each."""
_UCRED_UID: Final = slice(4, 8)
"""Place of the uid in `struct ucred`."""
_EXHAUSTED_ERRNOS: Final = frozenset({EMFILE, ENFILE, ENOBUFS, ENOMEM})
_SETTINGS: Final[dict[str, Any]] = {
    "threads": THREADS,
    "asyncore_loop_timeout": 30,  # worker threads wake the loop, so a long timeout costs no latency
    "asyncore_use_poll": True,
    "channel_timeout": 30,
    "ident": "bruce",
    "max_request_body_size": 65536,
    "max_request_header_size": 65536,
}

log = logging.getLogger(__name__)


class HttpLimits(NamedTuple):
    """Limits for clients: the number of connections without a running request, and the duration of a transfer in s."""

    connections: int = 100
    request_s: float = 10.0
    response_s: float = 30.0


class _Transfer(NamedTuple):
    """A request or response in transfer, first seen at `since_s` of the monotonic clock; it may take `limit_s`."""

    waitress_object: object
    """The object of waitress that stands for the request or response; the same object means the same transfer."""
    since_s: float
    limit_s: float


class HttpServer:
    """Server of `app` on `listener`, a listening TCP or UNIX socket.

    The caller calls `enforce_limits` about once a second. The server calls `on_accept_exhausted` when it cannot accept
    a connection because descriptors or memory are exhausted.
    """

    def __init__(
        self,
        app: Flask,
        listener: socket.socket,
        limits: HttpLimits = HttpLimits(),  # noqa: B008 - immutable
        on_accept_exhausted: Callable[[], None] = lambda: None,
    ) -> None:
        self._polled: dict[int, Any] = {}
        """The sockets that waitress's loop polls, by descriptor."""
        self._unpolled: dict[int, Any] = {}
        """The sockets that `_end_loop` has taken from `_polled` for `stop` to close."""
        # waitress warns when a request waits for a worker thread, but such a wait is normal here.
        logging.getLogger("waitress.queue").setLevel(logging.ERROR)
        logging.getLogger("waitress").addFilter(_rewrite_error)
        settings = {**_SETTINGS, "connection_limit": limits.connections + _EXTRA_CONNECTIONS}
        self._server = create_server(app, map=self._polled, sockets=[listener], **settings)
        self._waitress_accept: Callable[[], Any] = self._server.accept
        self._server.accept, self._server.channel_class = self._accept, self._open_channel
        self._thread = Thread(target=self._server.run, name="http", daemon=True)
        self._limits = limits
        self._on_accept_exhausted = on_accept_exhausted
        self._transfers: dict[HTTPChannel, _Transfer] = {}

    def start(self) -> None:
        self._thread.start()

    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def stop(self) -> None:
        """Finish the responses in progress, then close the connections."""
        self._server.task_dispatcher.shutdown(timeout=_STOP_S)
        self._server.trigger.pull_trigger(self._end_loop)
        self._thread.join(_STOP_S)
        wasyncore.close_all(self._unpolled)

    def enforce_limits(self) -> None:
        """Let the server thread close connections that exceed a time limit, and accept again after a failure."""
        if self._server.active_channels or not self._server.accepting:
            self._server.trigger.pull_trigger(self._enforce_limits)

    # --- in the server thread ----------------------------------------------------------------------------------------

    def _end_loop(self) -> None:
        """Take all sockets from the loop, so that the loop ends. Leave it to `stop` to close them.

        One of them is the pipe to which `pull_trigger` writes, and waitress may call this method before that write.
        """
        self._unpolled = dict(self._polled)
        self._polled.clear()

    def _accept(self) -> Any:
        """Accept a connection. If descriptors or memory are exhausted, accept none until the next `enforce_limits`."""
        try:
            return self._waitress_accept()
        except OSError as error:
            if error.errno not in _EXHAUSTED_ERRNOS:
                raise
            self._server.accepting = False
            self._on_accept_exhausted()
            text = "A connection to the status pages cannot be accepted: %s. The server retries in a second."
            log.error(text, error.strerror, extra={"about": error.errno})
            return None

    def _open_channel(self, *args: Any, **kwargs: Any) -> HTTPChannel:
        """Open a channel (waitress' word for a connection) for a new socket. If there are too many, close another."""
        channel = HTTPChannel(*args, **kwargs)
        # The channels without a running request.
        closable = [each for each in self._server.active_channels.values() if not each.requests and not each.will_close]
        if len(closable) > self._limits.connections:
            _choose_to_close(closable).will_close = True
        return channel

    def _enforce_limits(self) -> None:
        """Accept connections again, and close the connections with transfers that have exceeded their time limit."""
        self._server.accepting = True
        now = time.monotonic()
        before, self._transfers = self._transfers, {}
        for channel in list(self._server.active_channels.values()):
            current = self._transfer_of(channel, now)
            if current is None:
                continue
            last = before.get(channel, current)
            is_same = last.waitress_object is current.waitress_object
            self._transfers[channel] = last if is_same else current  # `last` has the earlier `since_s`
            if now - self._transfers[channel].since_s > current.limit_s:
                channel.will_close = True

    def _transfer_of(self, channel: HTTPChannel, now: float) -> _Transfer | None:
        """Return the present transfer of a channel, or None if the channel is idle or waits for the application."""
        if channel.total_outbufs_len:
            # waitress removes the request before the client has read the last bytes of the response
            response = channel.requests[0] if channel.requests else channel.outbufs[0]
            return _Transfer(response, now, self._limits.response_s)
        if channel.requests:
            return None
        return None if channel.request is None else _Transfer(channel.request, now, self._limits.request_s)


def _rewrite_error(record: logging.LogRecord) -> bool:
    """Drop waitress's records below ERROR, which only report disconnected clients, and replace the text of errors."""
    if record.levelno < logging.ERROR:
        return False
    record.msg, record.args = "The server of the status pages failed in a request. This is a bug: please report it.", ()
    return True


def _choose_to_close(channels: list[HTTPChannel]) -> HTTPChannel:
    """Return the oldest channel of the peer with the most channels."""
    peers = {channel: _peer_of(channel) for channel in channels}
    ((busiest_peer, _),) = Tally(peers.values()).most_common(1)
    return min((channel for channel in channels if peers[channel] == busiest_peer), key=lambda each: each.creation_time)


def _peer_of(channel: HTTPChannel) -> object:
    """Return the client's user id if it uses a UNIX socket, or its IP address."""
    if channel.socket.family == socket.AF_UNIX:
        return channel.socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED_BYTES)[_UCRED_UID]
    return channel.addr[0]
