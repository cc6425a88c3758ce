"""The HTTP server: waitress on a listening socket that the supervisor owns.

The server runs in threads beside the event loop of the process. It stops in two steps, because a worker thread wakes
the server thread after each response: first the worker threads end, then the server thread closes the connections. The
listening socket stays open in the supervisor, so new connections wait for the next status process.

Separate because no other module needs waitress.
"""

from __future__ import annotations

import logging
from threading import Thread
from typing import TYPE_CHECKING, Any, Final

from waitress import create_server, wasyncore

if TYPE_CHECKING:
    from socket import socket

    from flask import Flask

__all__ = ["HttpServer"]

THREADS: Final = 4
_STOP_S: Final = 2.0
_SETTINGS: Final[dict[str, Any]] = {
    "threads": THREADS,
    "asyncore_loop_timeout": 30,  # worker threads wake the loop, so a long timeout costs no latency
    "asyncore_use_poll": True,
    "channel_timeout": 30,
    "ident": "bruce",
    "max_request_body_size": 65536,
    "max_request_header_size": 65536,
}


class HttpServer:
    """Server of `app` on `listener`, a listening TCP or UNIX socket."""

    def __init__(self, app: Flask, listener: socket) -> None:
        self._map: dict[int, Any] = {}
        # waitress warns whenever a request waits for a worker thread, which is normal here.
        logging.getLogger("waitress.queue").setLevel(logging.ERROR)
        self._server = create_server(app, map=self._map, sockets=[listener], **_SETTINGS)
        self._thread = Thread(target=self._server.run, name="http", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def is_alive(self) -> bool:
        """Return True while the server thread runs."""
        return self._thread.is_alive()

    def stop(self) -> None:
        """Finish the responses in progress, then close the connections."""
        self._server.task_dispatcher.shutdown(timeout=_STOP_S)
        self._server.trigger.pull_trigger(lambda: wasyncore.close_all(self._map))
        self._thread.join(_STOP_S)
