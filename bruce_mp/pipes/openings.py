"""Which opening to use with which broker: what was found out with one connection spares the next one the trouble.

It costs two connections, and with Kafka 0.9 four seconds, to find out that a broker cannot say which versions it
speaks.  That is remembered for each address, but not for long and only while it goes well: a broker that was upgraded
is known as such after its first broken connection, or after TRUSTED_S at the latest.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Final

from bruce_mp.protocol.opening import opening_for

if TYPE_CHECKING:
    from bruce_mp.protocol.opening import Opening

__all__ = ["TRUSTED_S", "Openings"]

TRUSTED_S: Final = 600.0

_Place = tuple[str, int]


class Openings:
    """The openings of a process's connections.  `release` is that of the brokers, if the configuration names it.

    `logs_in`: connections begin with a login.  `place` is host and port, `now` in seconds of a monotonic clock.
    """

    def __init__(self, release: str | None = None, *, logs_in: bool = False) -> None:
        self._first = opening_for(release, logs_in=logs_in)
        self._found: dict[_Place, tuple[Opening, float]] = {}

    def begin(self, place: _Place, now: float) -> Opening:
        """The opening for a new connection."""
        opening, until = self._found.get(place, (self._first, inf))
        if now < until:
            return opening
        del self._found[place]
        return self._first

    def succeeded(self, place: _Place, opening: Opening, now: float) -> None:
        """A connection is ready.  Only an assumption is worth to be remembered; its time is not prolonged."""
        if opening.assumed is not None:
            self._found.setdefault(place, (opening, now + TRUSTED_S))

    def failed(self, place: _Place) -> None:
        """A connection failed, ready or not."""
        self._found.pop(place, None)
