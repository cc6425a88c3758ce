"""Brokers that are asked one after another, until one has answered.

What is asked is the owner's business: `fetch.py` asks for metadata, `making.py` to make topics.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from bruce_mp.pipes.broker_socket import BrokerSocket
from bruce_mp.protocol.connection_events import Event
from bruce_mp.router.cluster import Address

if TYPE_CHECKING:
    from collections.abc import Iterable

    from bruce_mp.pipes.loop import Loop
    from bruce_mp.pipes.openings import Openings
    from bruce_mp.pipes.resolver import Resolver
    from bruce_mp.pipes.security import Security

__all__ = ["BrokersInTurn", "Connect", "connector"]

PATIENCE_S: Final = 10.0
"""A broker that is silent for so long is not worth waiting for: there are others to ask, and partitions that wait."""

Connect = Callable[[Address, Callable[[Event], None]], BrokerSocket]
"""A socket to a broker, not yet open, and who hears of its events."""


def connector(
    loop: Loop, resolver: Resolver, *, client_id: str, timeout_s: float, openings: Openings, security: Security | None
) -> Connect:
    """Sockets that have all but the address in common."""

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


class BrokersInTurn:
    """One connection at a time; `on_event` hears of what happens to the present one."""

    def __init__(self, connect: Connect, on_event: Callable[[Event], None]) -> None:
        self.connect = connect
        self._on_event = on_event
        self._socket: BrokerSocket | None = None
        self.left: list[Address] = []
        """Those that have not been asked."""
        self.asked: Address | None = None
        """The last one that was."""

    @property
    def is_busy(self) -> bool:
        """Whether one of them is being asked."""
        return self._socket is not None

    @property
    def socket(self) -> BrokerSocket:
        """The connection to the broker that is being asked."""
        assert self._socket is not None
        return self._socket

    def begin(self, brokers: Iterable[Address]) -> None:
        """Ask these, each once; `turn` begins with the first."""
        self.left = list(dict.fromkeys(brokers))

    def turn(self) -> bool:
        """Leave the present broker and connect to the next; whether there is one."""
        self.leave()
        if not self.left:
            return False
        self.asked = self.left.pop(0)
        self._socket = self.connect(self.asked, self._on_event)
        self._socket.open()
        return True

    def leave(self) -> None:
        """End the connection; nothing is heard of it any more."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
