"""Connections to brokers, one after another, until one of the brokers responds to a request."""

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
    from bruce_mp.protocol.kafka.version_negotiation import NegotiationCache

__all__ = ["BrokerSequence", "SocketFactory", "socket_factory"]

MAX_TIMEOUT_S: Final = 10.0
"""The longest timeout of a request.  It is short, because messages or an operator wait for the response, and another
broker may respond sooner."""

SocketFactory = Callable[[Address, Callable[[Event], None]], BrokerSocket]
"""Creates a socket to the broker at an address; the caller must open the socket.  The callback gets the socket's
events."""


def socket_factory(
    loop: Loop,
    resolver: Resolver,
    *,
    client_id: str,
    timeout_s: float,
    negotiation_cache: NegotiationCache,
    security: Security | None,
) -> SocketFactory:
    def create_socket(address: Address, on_event: Callable[[Event], None]) -> BrokerSocket:
        return BrokerSocket(
            loop,
            resolver,
            host=address.host,
            port=address.port,
            client_id=client_id,
            timeout_s=min(timeout_s, MAX_TIMEOUT_S),
            on_event=on_event,
            negotiation_cache=negotiation_cache,
            security=security,
        )

    return create_socket


class BrokerSequence:
    """Connects to each broker of `set_brokers` once, one at a time; `on_event` gets the current connection's events."""

    def __init__(self, create_socket: SocketFactory, on_event: Callable[[Event], None]) -> None:
        self.create_socket = create_socket
        self._on_event = on_event
        self._socket: BrokerSocket | None = None
        self._listed: set[Address] = set()
        """All brokers since `set_brokers`, tried or not."""
        self.untried: list[Address] = []
        """The brokers to which the next calls of `connect_next` connect, in this order."""
        self.current: Address | None = None
        """The broker of the current connection, or of the previous one if there is none now."""

    @property
    def has_connection(self) -> bool:
        return self._socket is not None

    @property
    def socket(self) -> BrokerSocket:
        assert self._socket is not None
        return self._socket

    def set_brokers(self, brokers: Iterable[Address]) -> None:
        """Begin a new sequence; a repeated address keeps only its first place."""
        self.untried = list(dict.fromkeys(brokers))
        self._listed = set(self.untried)

    def append_unlisted(self, brokers: Iterable[Address]) -> None:
        """Append the brokers that have no place in the sequence, not even a place among the tried ones."""
        self.untried += [broker for broker in dict.fromkeys(brokers) if broker not in self._listed]
        self._listed.update(self.untried)

    def connect_next(self) -> bool:
        """Close the connection and connect to the next broker; return False if no broker is left."""
        self.close()
        if not self.untried:
            return False
        self.current = self.untried.pop(0)
        self._socket = self.create_socket(self.current, self._on_event)
        self._socket.open()
        return True

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None
