"""Choose the opening for each broker from the experience of earlier connections.

Detection of a broker that cannot report its API versions costs two connections, and four seconds with Kafka 0.9. The
result is cached for each address until a connection fails, at most for TRUSTED_S. So an upgraded broker is recognized
after its first broken connection, or after TRUSTED_S.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Final

from bruce_mp.protocol.kafka.opening import opening_for

if TYPE_CHECKING:
    from bruce_mp.protocol.kafka.opening import Opening

__all__ = ["TRUSTED_S", "VersionProbes"]

TRUSTED_S: Final = 600.0

_Place = tuple[str, int]


class VersionProbes:
    """The openings of a process's connections.

    `release` is the brokers' release, if the configuration names it; `logs_in` means that connections begin with a
    login. `place` is host and port, `now` in seconds of a monotonic clock.
    """

    def __init__(self, release: str | None = None, *, logs_in: bool = False) -> None:
        self._first = opening_for(release, logs_in=logs_in)
        self._found: dict[_Place, tuple[Opening, float]] = {}

    def start(self, place: _Place, now: float) -> Opening:
        """Return the opening for a new connection."""
        opening, until = self._found.get(place, (self._first, inf))
        if now < until:
            return opening
        del self._found[place]
        return self._first

    def succeeded(self, place: _Place, opening: Opening, now: float) -> None:
        """Cache the opening of a connection that became ready, if it is an assumption; a later success does not prolong
        it.
        """
        if opening.assumed is not None:
            self._found.setdefault(place, (opening, now + TRUSTED_S))

    def failed(self, place: _Place) -> None:
        """Drop the cached opening of a broker after any failed connection."""
        self._found.pop(place, None)
