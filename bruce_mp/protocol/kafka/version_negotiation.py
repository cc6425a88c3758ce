"""Describe the version negotiation of a broker connection: its first requests, and the fallback after a failure.

Kafka 0.10 and later support the request ApiVersions, by which a broker reports the versions of its APIs.  Kafka 0.8
closes the connection at this request, and 0.9 never responds.  But a newer broker may do the same while it starts or
stops.  The daemon must not take such a broker for an old one: the broker may refuse old versions of requests, and with
old versions the daemon cannot deliver exactly once.  So there are three negotiations, each the `fallback` of the
previous one:

    VERSIONS_FIRST           ApiVersions
    METADATA_THEN_VERSIONS   Metadata v0, to which every Kafka responds, then ApiVersions: a broker that responds only
                             to Metadata is old
    assume(...)              Metadata only, to check that the broker accepts the assumed versions

If a login is configured, VERSIONS_ONLY is the only negotiation: no other request may come before a login, and brokers
before 0.10 support none of the daemon's logins.

A connection uses one negotiation.  If a connection fails with FailureCause.NO_API_VERSIONS, its owner creates another
connection with the fallback.  If the configuration names a release before 0.10, the first negotiation is `assume(...)`.
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
    "NegotiationCache",
    "NegotiationRequest",
    "assume",
    "negotiation_for",
]

VERSIONS_TIMEOUT_S: Final = 2.0
"""The timeout of the request ApiVersions.  It is short, because a broker can respond at once, and because with Kafka
0.9 two such requests time out before the daemon assumes an old release."""
CACHE_S: Final = 600.0
"""Lifetime of a cached negotiation, in seconds."""
FIRST_RELEASE_WITH_API_VERSIONS: Final = (0, 10)


@unique
class NegotiationRequest(Enum):
    """A request of a negotiation; the value completes "when asked ..." in error texts."""

    VERSIONS = "which versions it speaks"
    METADATA = "for metadata"


class Negotiation(Struct, frozen=True):
    """One way to find out the versions of a broker: send the `requests` in this order.

    If the last request is ApiVersions, the response to it reports the capabilities of the broker, and `assumed` is
    None.  Otherwise no request is ApiVersions, and the connection uses the `assumed` capabilities.
    """

    requests: tuple[NegotiationRequest, ...]
    assumed: BrokerCapabilities | None = None
    fallback: Negotiation | None = None


def assume(capabilities: BrokerCapabilities) -> Negotiation:
    """Return the negotiation for a broker that does not support ApiVersions, but has these capabilities."""
    return Negotiation((NegotiationRequest.METADATA,), assumed=capabilities)


METADATA_THEN_VERSIONS: Final = Negotiation(
    (NegotiationRequest.METADATA, NegotiationRequest.VERSIONS), fallback=assume(BEFORE_API_VERSIONS)
)
VERSIONS_FIRST: Final = Negotiation((NegotiationRequest.VERSIONS,), fallback=METADATA_THEN_VERSIONS)
VERSIONS_ONLY: Final = Negotiation((NegotiationRequest.VERSIONS,))


def negotiation_for(release: str | None, *, logs_in: bool = False) -> Negotiation:
    """Return the first negotiation for brokers of `release`, such as "0.9.0.1", or None if the release is unknown."""
    if logs_in:
        return VERSIONS_ONLY
    if release is not None and tuple(map(int, release.split("."))) < FIRST_RELEASE_WITH_API_VERSIONS:
        return assume(BEFORE_API_VERSIONS)
    return VERSIONS_FIRST


class NegotiationCache:
    """A cache of the negotiations that have worked with old brokers, for all connections of a process.

    The detection of a broker that cannot report its API versions costs two failed connections, and with Kafka 0.9 also
    four seconds.  So the result is cached for each address until a connection fails, or for CACHE_S.  An upgraded
    broker is thus recognized after its first broken connection, or after CACHE_S.

    `release` is the brokers' release, or None if the configuration does not name it; `logs_in` is True if a login is
    configured. In the methods, `broker` is host and port, and `now` is in seconds of a monotonic clock.
    """

    def __init__(self, release: str | None = None, *, logs_in: bool = False) -> None:
        self._first = negotiation_for(release, logs_in=logs_in)
        self._cached: dict[tuple[str, int], tuple[Negotiation, float]] = {}

    def choose(self, broker: tuple[str, int], now: float) -> Negotiation:
        """Return the negotiation for a new connection."""
        negotiation, expires_at = self._cached.get(broker, (self._first, inf))
        if now < expires_at:
            return negotiation
        del self._cached[broker]
        return self._first

    def on_ready(self, broker: tuple[str, int], negotiation: Negotiation, now: float) -> None:
        """Cache the negotiation of a ready connection if it assumes capabilities; an earlier entry keeps its expiry."""
        if negotiation.assumed is not None:
            self._cached.setdefault(broker, (negotiation, now + CACHE_S))

    def on_failed(self, broker: tuple[str, int]) -> None:
        """Drop the cached negotiation of a broker after a failed connection, whatever the cause is."""
        self._cached.pop(broker, None)
