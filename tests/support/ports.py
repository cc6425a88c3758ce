"""TCP ports on loopback that stay ours for as long as a server of ours may want them, also while it is down.

A port that is only looked up and given back can be taken before the server binds it; worse, while a killed broker is
down, a client that connects to its port can get that very port as its own and end up talking to itself.  A socket that
is bound, but never listens, prevents both: the kernel gives the port to no other socket, and a server that binds with
SO_REUSEADDR (Java does, Python's asyncio does) may still have it.
"""

from __future__ import annotations

import socket


class ReservedPort:
    """One port of 127.0.0.1, chosen by the kernel."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind(("127.0.0.1", 0))
        self.number: int = self._socket.getsockname()[1]

    def release(self) -> None:
        self._socket.close()
