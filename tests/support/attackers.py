"""Attackers of a daemon's pages and streams, bounded in number and pace, for the time of a `with` block.

* Slow clients of the pages hold connections with unfinished requests.
* Stream clients hold connections with unfinished messages.
* A client requests metadata again and again.
* A client reads with a foreign `Host` header. Each of its readings must be refused.

The attackers outlive the daemon: a refused or closed connection is opened again.
"""

from __future__ import annotations

import socket
import threading
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException
from typing import TYPE_CHECKING, Final

from bruce_mp.supervisor.run_dir import HTTP_ADDRESS

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self

    from support.daemon import Daemon

__all__ = ["Attackers"]

SLOW_CLIENTS: Final = 40
SLOW_ROUNDS: Final = 20
UNFINISHED: Final = 20
UNFINISHED_BYTES: Final = 200_000
"""Size field of an unfinished message, of which the client sends only `SENT_BYTES`."""
SENT_BYTES: Final = 50_000
ROUND_S: Final = 0.5
PAUSE_S: Final = 0.05
"""Pause between two requests of the same client."""
TIMEOUT_S: Final = 5.0
FORBIDDEN: Final = 403


@dataclass(slots=True)
class Tally:
    """The attackers' numbers of connections and answers; `leaks` counts pages that a foreign host could read."""

    slow: int = 0
    unfinished: int = 0
    posts: int = 0
    refused: int = 0
    leaks: list[int] = field(default_factory=list)


class Attackers:
    """All attackers of a daemon."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        self._stopped = threading.Event()
        attacks = (
            self._send_requests_slowly,
            self._leave_messages_unfinished,
            self._request_metadata,
            self._read_under_foreign_name,
        )
        self._threads = [threading.Thread(target=self._repeat, args=(attack,), daemon=True) for attack in attacks]
        self.tally = Tally()

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        for thread in self._threads:
            thread.join()

    def _repeat(self, attack: Callable[[], None]) -> None:
        while not self._stopped.is_set():
            with suppress(OSError, HTTPException, ValueError):  # the daemon is down, or refuses the attack
                attack()
            self._stopped.wait(PAUSE_S)

    def _address(self) -> tuple[str, int]:
        host, _, port = (self._daemon.run_dir / HTTP_ADDRESS).read_text().strip().rpartition(":")
        return host, int(port)

    def _send_requests_slowly(self) -> None:
        """Send a byte of each request now and then."""
        with ExitStack() as stack:
            clients = [
                stack.enter_context(socket.create_connection(self._address(), TIMEOUT_S)) for _ in range(SLOW_CLIENTS)
            ]
            self.tally.slow += len(clients)
            for byte in b"GET / HTTP/1.1\r\nX-Slow: "[:SLOW_ROUNDS]:
                for client in clients:
                    client.send(bytes((byte,)))
                if self._stopped.wait(ROUND_S):
                    return

    def _leave_messages_unfinished(self) -> None:
        """Send the beginning of a message on each connection, then close it."""
        with ExitStack() as stack:
            for _ in range(UNFINISHED):
                client = stack.enter_context(socket.socket(socket.AF_UNIX))
                client.settimeout(TIMEOUT_S)
                client.connect(str(self._daemon.stream_path))
                client.sendall(UNFINISHED_BYTES.to_bytes(4, "big") + b"\x01\x00\x00\x00" + bytes(SENT_BYTES))
                self.tally.unfinished += 1
            self._stopped.wait(ROUND_S)

    def _request_metadata(self) -> None:
        self._request("POST", "/metadata_update", {})
        self.tally.posts += 1

    def _read_under_foreign_name(self) -> None:
        status = self._request("GET", "/books/json", {"Host": "rebound.example"})
        self.tally.refused += status == FORBIDDEN
        if status == 200:
            self.tally.leaks.append(status)

    def _request(self, method: str, path: str, headers: dict[str, str]) -> int:
        host, port = self._address()
        with closing(HTTPConnection(host, port, timeout=TIMEOUT_S)) as connection:
            connection.request(method, path, headers=headers)
            return connection.getresponse().status
