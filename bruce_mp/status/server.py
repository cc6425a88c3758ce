"""The HTTP server: waitress on a socket that somebody else opened and keeps.

It runs in threads beside the loop of the process.  Stopping goes in two steps, because a thread that answers a request
wakes the server when it has done so: first these threads end, then the sockets are closed, in the server's own thread.
The listening socket itself goes on in the supervisor, so that connections wait for the next status process.
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
    "asyncore_loop_timeout": 30,  # it is woken when there is something to do
    "asyncore_use_poll": True,
    "channel_timeout": 30,
    "ident": "bruce",
    "max_request_body_size": 65536,
    "max_request_header_size": 65536,
}


class HttpServer:
    """Serves `app` on `listener`, a listening TCP or UNIX socket."""

    def __init__(self, app: Flask, listener: socket) -> None:
        self._map: dict[int, Any] = {}
        # It warns of each request that waits for a thread, which is what threads are for.
        logging.getLogger("waitress.queue").setLevel(logging.ERROR)
        self._server = create_server(app, map=self._map, sockets=[listener], **_SETTINGS)
        self._thread = Thread(target=self._server.run, name="http", daemon=True)

    def start(self) -> None:
        """Begin to serve."""
        self._thread.start()

    def is_alive(self) -> bool:
        """Whether it serves; False before `start`, and after `stop` or an error."""
        return self._thread.is_alive()

    def stop(self) -> None:
        """Answer what is being answered, then close."""
        self._server.task_dispatcher.shutdown(timeout=_STOP_S)
        self._server.trigger.pull_trigger(lambda: wasyncore.close_all(self._map))
        self._thread.join(_STOP_S)
