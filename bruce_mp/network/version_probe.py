"""Choose the negotiation for each broker by the results of earlier connections.

Detection of a broker that cannot report its API versions costs two connections, and four seconds with Kafka 0.9. The
result is cached for each address until a connection fails, at most for CACHE_S. So an upgraded broker is recognised
after its first broken connection, or after CACHE_S.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Final

from bruce_mp.protocol.kafka.version_negotiation import negotiation_for

if TYPE_CHECKING:
    from bruce_mp.protocol.kafka.version_negotiation import Negotiation

__all__ = ["CACHE_S", "VersionProbes"]

CACHE_S: Final = 600.0
"""Lifetime of a cached result, in seconds."""

_BrokerKey = tuple[str, int]


class VersionProbes:
    """A cache of the negotiations that worked, for the connections of a process.

    `release` is the brokers' release, if the configuration names it; `logs_in` means that connections begin with a
    login. `broker` is host and port, `now` in seconds of a monotonic clock.
    """

    def __init__(self, release: str | None = None, *, logs_in: bool = False) -> None:
        self._first = negotiation_for(release, logs_in=logs_in)
        self._cached: dict[_BrokerKey, tuple[Negotiation, float]] = {}

    def choose(self, broker: _BrokerKey, now: float) -> Negotiation:
        """Return the negotiation for a new connection."""
        negotiation, until = self._cached.get(broker, (self._first, inf))
        if now < until:
            return negotiation
        del self._cached[broker]
        return self._first

    def on_ready(self, broker: _BrokerKey, negotiation: Negotiation, now: float) -> None:
        """Cache the negotiation of a ready connection if it assumes versions; keep an earlier expiry."""
        if negotiation.assumed is not None:
            self._cached.setdefault(broker, (negotiation, now + CACHE_S))

    def on_failed(self, broker: _BrokerKey) -> None:
        """Drop the cached negotiation of a broker after any failed connection."""
        self._cached.pop(broker, None)
