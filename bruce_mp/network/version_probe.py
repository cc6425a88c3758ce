"""Choose the opening for each broker by the results of earlier connections.

Detection of a broker that cannot report its API versions costs two connections, and four seconds with Kafka 0.9. The
result is cached for each address until a connection fails, at most for CACHE_S. So an upgraded broker is recognized
after its first broken connection, or after CACHE_S.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Final

from bruce_mp.protocol.kafka.opening import opening_for

if TYPE_CHECKING:
    from bruce_mp.protocol.kafka.opening import Opening

__all__ = ["CACHE_S", "VersionProbes"]

CACHE_S: Final = 600.0

_BrokerKey = tuple[str, int]


class VersionProbes:
    """A cache of the openings that worked, for the connections of a process.

    `release` is the brokers' release, if the configuration names it; `logs_in` means that connections begin with a
    login. `broker` is host and port, `now` in seconds of a monotonic clock.
    """

    def __init__(self, release: str | None = None, *, logs_in: bool = False) -> None:
        self._first = opening_for(release, logs_in=logs_in)
        self._cached: dict[_BrokerKey, tuple[Opening, float]] = {}

    def choose(self, broker: _BrokerKey, now: float) -> Opening:
        """Return the opening for a new connection."""
        opening, until = self._cached.get(broker, (self._first, inf))
        if now < until:
            return opening
        del self._cached[broker]
        return self._first

    def on_ready(self, broker: _BrokerKey, opening: Opening, now: float) -> None:
        """Cache the opening of a ready connection if it is an assumption; a later success does not extend the time."""
        if opening.assumed is not None:
            self._cached.setdefault(broker, (opening, now + CACHE_S))

    def on_failed(self, broker: _BrokerKey) -> None:
        """Drop the cached opening of a broker after any failed connection."""
        self._cached.pop(broker, None)
