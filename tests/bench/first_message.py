"""The duration of a start for a waiting client, which retries until the daemon accepts its message."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from bench.corpus import datagrams
from bruce_mp.errors import SlabError
from bruce_mp.telemetry.counters import Counter

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.daemon import Daemon

__all__ = ["FirstMessage"]

TIMEOUT_S: Final = 20.0
PAUSE_S: Final = 0.002


class FirstMessage(threading.Thread):
    """A thread that tries to send a message from the start on, and records the time of its receipt."""

    def __init__(self, daemon: Daemon) -> None:
        super().__init__(daemon=True)
        self._daemon = daemon
        self._start = time.monotonic()
        self.taken_s = 0.0
        self.received_s = 0.0

    def run(self) -> None:
        datagram = datagrams(["bench-0"], 100)[0]
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
            self.taken_s = self._wait_for(lambda: self._send(sock, datagram))
        self.received_s = self._wait_for(self._is_received)

    def _wait_for(self, done: Callable[[], bool]) -> float:
        """Return the seconds from the start until `done` is true."""
        while (spent := time.monotonic() - self._start) < TIMEOUT_S and not done():
            time.sleep(PAUSE_S)
        return spent

    def _send(self, sock: socket.socket, datagram: bytes) -> bool:
        with suppress(FileNotFoundError, ConnectionRefusedError):
            sock.sendto(datagram, str(self._daemon.socket_path))
            return True
        return False

    def _is_received(self) -> bool:
        with suppress(SlabError):
            return self._daemon.counted(Counter.MsgReceived) > 0
        return False
