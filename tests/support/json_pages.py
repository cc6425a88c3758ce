"""A small HTTP server with the answers of a test."""

from __future__ import annotations

import socketserver
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import TYPE_CHECKING, Any, Final, Self

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable
    from socket import socket


HEALTHY: Final[dict[str, Any]] = {
    "live": True, "ready": True, "problems": [], "warnings": [], "processes": {}, "metadata_age_ms": 10_000,
    "balanced": True, "slab_in_use": 0.25,
}  # fmt: skip
"""The page `/healthz` without the head of all pages."""


class _UnixServer(socketserver.UnixStreamServer):
    def get_request(self) -> tuple[socket, tuple[str, int]]:
        request, _ = super().get_request()
        return request, ("unix", 0)  # the handler wants an address with a host


class JsonPages:
    """A server that answers GET of a path in `pages` with its function's result, as JSON or raw bytes; others get 404.

    `url` is its address; `path` makes it a UNIX socket.
    """

    def __init__(self, pages: dict[str, Callable[[], object]], path: str | None = None) -> None:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                known = pages.get(self.path)
                found = known() if known else b"no such page"
                body = found if isinstance(found, bytes) else msgspec.json.encode(found)
                self.send_response(200 if known else 404)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self._server: socketserver.BaseServer
        if path is None:
            server = HTTPServer(("127.0.0.1", 0), Handler)
            self._server, self.url = server, f"http://127.0.0.1:{server.server_port}/"
        else:
            self._server, self.url = _UnixServer(path, Handler), f"unix:{path}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
