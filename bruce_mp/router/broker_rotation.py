"""Connections to brokers one after another, until one responds.

The owner sends the request: `metadata_fetch.py` for metadata, `topic_creation.py` to create topics.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from bruce_mp.network.broker_socket import BrokerSocket
from bruce_mp.protocol.kafka.connection_events import Event
from bruce_mp.router.cluster import Address

if TYPE_CHECKING:
    from collections.abc import Iterable

    from bruce_mp.ipc.loop import Loop
    from bruce_mp.network.connection_security import Security
    from bruce_mp.network.resolver import Resolver
    from bruce_mp.network.version_probe import VersionProbes

__all__ = ["BrokerRotation", "Connect", "connector"]

PATIENCE_S: Final = 10.0
"""The longest wait for a silent broker, since partitions wait and other brokers can respond."""

Connect = Callable[[Address, Callable[[Event], None]], BrokerSocket]
"""Create a socket to a broker, not yet open, with the callback for its events."""


def connector(
    loop: Loop,
    resolver: Resolver,
    *,
    client_id: str,
    timeout_s: float,
    openings: VersionProbes,
    security: Security | None,
) -> Connect:
    """Return a factory of sockets that differ only in address and callback."""

    def connect(address: Address, on_event: Callable[[Event], None]) -> BrokerSocket:
        return BrokerSocket(
            loop,
            resolver,
            host=address.host,
            port=address.port,
            client_id=client_id,
            timeout_s=min(timeout_s, PATIENCE_S),
            on_event=on_event,
            openings=openings,
            security=security,
        )

    return connect


class BrokerRotation:
    """One connection at a time; `on_event` gets the events of the present one."""

    def __init__(self, connect: Connect, on_event: Callable[[Event], None]) -> None:
        self.connect = connect
        self._on_event = on_event
        self._socket: BrokerSocket | None = None
        self.left: list[Address] = []
        """The brokers not tried yet."""
        self.asked: Address | None = None
        """The broker tried last."""

    @property
    def is_busy(self) -> bool:
        """True while a connection exists."""
        return self._socket is not None

    @property
    def socket(self) -> BrokerSocket:
        """The connection to the present broker."""
        assert self._socket is not None
        return self._socket

    def start(self, brokers: Iterable[Address]) -> None:
        """Set the brokers to try, each once; the next `ask_next` connects to the first."""
        self.left = list(dict.fromkeys(brokers))

    def ask_next(self) -> bool:
        """Close the connection and connect to the next broker; return False if none is left."""
        self.close()
        if not self.left:
            return False
        self.asked = self.left.pop(0)
        self._socket = self.connect(self.asked, self._on_event)
        self._socket.open()
        return True

    def close(self) -> None:
        """Close the connection; its events end."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
