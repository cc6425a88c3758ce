"""The version negotiation of a broker connection, as data: its first requests, and the fallback if they fail.

Brokers since 0.10 support ApiVersions.  Of the older ones, 0.8 closes the connection on that request, and 0.9 never
responds.  But a newer broker does the same while it starts or stops.  It may refuse old versions of requests, and with
them the daemon could not deliver exactly once.  So there are three negotiations, each the `fallback` of the previous
one:

    VERSIONS_FIRST           ApiVersions
    METADATA_THEN_VERSIONS   Metadata v0, which every Kafka supports, then ApiVersions: a broker that responds only to
                             the first is old
    assume(...)              Metadata, to confirm the assumed versions

With a login only VERSIONS_ONLY is possible: no other request may come before a login, and brokers before 0.10 have
none of the daemon's logins.

A connection uses one negotiation.  If it fails with FailureCause.NO_API_VERSIONS, its owner creates another connection
with the fallback.  If the configuration names an old release, `negotiation_for` begins with the last of the three.
"""

from __future__ import annotations

from enum import Enum, unique
from math import inf
from typing import Final

from msgspec import Struct

from bruce_mp.protocol.kafka.api_versions import BEFORE_API_VERSIONS, BrokerCapabilities

__all__ = [
    "CACHE_S",
    "METADATA_THEN_VERSIONS",
    "VERSIONS_FIRST",
    "VERSIONS_ONLY",
    "VERSIONS_TIMEOUT_S",
    "Negotiation",
    "NegotiationRequest",
    "VersionProbes",
    "assume",
    "negotiation_for",
]

VERSIONS_TIMEOUT_S: Final = 2.0
"""The timeout of ApiVersions, to which a broker can respond at once.  Each first contact with a Kafka 0.9 costs this
time twice."""
CACHE_S: Final = 600.0
"""Lifetime of a cached result, in seconds."""
FIRST_RELEASE_WITH_API_VERSIONS: Final = (0, 10)


@unique
class NegotiationRequest(Enum):
    """A request of a negotiation; the value completes "when asked ..." in error texts."""

    VERSIONS = "which versions it speaks"
    METADATA = "for metadata"


class Negotiation(Struct, frozen=True):
    """The `requests` in order.  `assumed` is None if the last one is ApiVersions, which reports the capabilities."""

    requests: tuple[NegotiationRequest, ...]
    assumed: BrokerCapabilities | None = None
    fallback: Negotiation | None = None


def assume(capabilities: BrokerCapabilities) -> Negotiation:
    """Return the negotiation for a broker without ApiVersions."""
    return Negotiation((NegotiationRequest.METADATA,), assumed=capabilities)


METADATA_THEN_VERSIONS: Final = Negotiation(
    (NegotiationRequest.METADATA, NegotiationRequest.VERSIONS), fallback=assume(BEFORE_API_VERSIONS)
)
VERSIONS_FIRST: Final = Negotiation((NegotiationRequest.VERSIONS,), fallback=METADATA_THEN_VERSIONS)
VERSIONS_ONLY: Final = Negotiation((NegotiationRequest.VERSIONS,))


def negotiation_for(release: str | None, *, logs_in: bool = False) -> Negotiation:
    """Return the first negotiation for `release`, such as "0.9.0.1"; the release None is unknown."""
    if logs_in:
        return VERSIONS_ONLY
    if release is not None and tuple(map(int, release.split("."))) < FIRST_RELEASE_WITH_API_VERSIONS:
        return assume(BEFORE_API_VERSIONS)
    return VERSIONS_FIRST


class VersionProbes:
    """A cache of the negotiations that worked, for the connections of a process.

    Detection of a broker that cannot report its API versions costs two connections, and four seconds with Kafka 0.9.
    The result is cached for each address until a connection fails, at most for CACHE_S.  So an upgraded broker is
    recognised after its first broken connection, or after CACHE_S.

    `release` is the brokers' release, if the configuration names it; `logs_in` means that connections begin with a
    login. `broker` is host and port, `now` in seconds of a monotonic clock.
    """

    def __init__(self, release: str | None = None, *, logs_in: bool = False) -> None:
        self._first = negotiation_for(release, logs_in=logs_in)
        self._cached: dict[tuple[str, int], tuple[Negotiation, float]] = {}

    def choose(self, broker: tuple[str, int], now: float) -> Negotiation:
        """Return the negotiation for a new connection."""
        negotiation, until = self._cached.get(broker, (self._first, inf))
        if now < until:
            return negotiation
        del self._cached[broker]
        return self._first

    def on_ready(self, broker: tuple[str, int], negotiation: Negotiation, now: float) -> None:
        """Cache the negotiation of a ready connection if it assumes versions; keep an earlier expiry."""
        if negotiation.assumed is not None:
            self._cached.setdefault(broker, (negotiation, now + CACHE_S))

    def on_failed(self, broker: tuple[str, int]) -> None:
        """Drop the cached negotiation of a broker after any failed connection."""
        self._cached.pop(broker, None)
