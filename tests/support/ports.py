"""TCP ports on loopback that stay reserved for a server of a test, also while the server is down.

Another process could bind a port that is only looked up and released.  While a killed broker is down, a client that
connects to its port could even get that port as its own end, and connect to itself.  A socket that is bound, but never
listens, prevents both: the kernel gives the port to no other socket, and a server that binds with SO_REUSEADDR (as Java
and Python's asyncio do) can still bind it.
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
