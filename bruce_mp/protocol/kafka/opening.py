"""The opening of a connection to a broker, as data: its first requests, and the fallback if they fail.

Brokers since 0.10 support ApiVersions.  Of the older ones, 0.8 closes the connection on that request, and 0.9 never
responds.  But a newer broker does the same while it starts or stops, and to mistake it for an old one would cost
exactly-once delivery, or all delivery.  So there are three openings, each the `fallback` of the previous one:

    ASK          ApiVersions
    LOOK_AGAIN   Metadata, which every Kafka supports in version 0, then ApiVersions: a broker that responds only to the
                 first is an old one
    assume(...)  Metadata, to confirm the assumed versions

With a login only the first one is possible, ASK_ONLY: no other request may come before a login, and brokers before 0.10
support none.

A connection uses one opening.  If it fails with Cause.NO_API_VERSIONS, its owner creates another connection with the
fallback.  If the configuration names an old release, `opening_for` begins with the last one.
"""

from __future__ import annotations

from enum import Enum, unique
from typing import Final

from msgspec import Struct

from bruce_mp.protocol.kafka.api_versions import BEFORE_API_VERSIONS, BrokerAbilities

__all__ = ["ASK", "ASK_ONLY", "LOOK_AGAIN", "VERSIONS_TIMEOUT_S", "Opening", "OpeningRequest", "assume", "opening_for"]

VERSIONS_TIMEOUT_S: Final = 2.0
"""The timeout of ApiVersions, to which a broker can respond at once.  Each first contact with a Kafka 0.9 costs this
time twice."""
FIRST_RELEASE_TO_ASK: Final = (0, 10)


@unique
class OpeningRequest(Enum):
    """A request of an opening."""

    VERSIONS = "which versions it speaks"
    METADATA = "for metadata"


class Opening(Struct, frozen=True):
    """`questions` in order.  `assumed` are the abilities to use if the last question is not for versions."""

    questions: tuple[OpeningRequest, ...]
    assumed: BrokerAbilities | None = None
    fallback: Opening | None = None


def assume(abilities: BrokerAbilities) -> Opening:
    """Return the opening for a broker without ApiVersions."""
    return Opening((OpeningRequest.METADATA,), assumed=abilities)


LOOK_AGAIN: Final = Opening((OpeningRequest.METADATA, OpeningRequest.VERSIONS), fallback=assume(BEFORE_API_VERSIONS))
ASK: Final = Opening((OpeningRequest.VERSIONS,), fallback=LOOK_AGAIN)
ASK_ONLY: Final = Opening((OpeningRequest.VERSIONS,))


def opening_for(release: str | None, *, logs_in: bool = False) -> Opening:
    """Return the first opening for a release such as "0.9.0.1", or None for an unknown release."""
    if logs_in:
        return ASK_ONLY
    if release is not None and tuple(map(int, release.split("."))) < FIRST_RELEASE_TO_ASK:
        return assume(BEFORE_API_VERSIONS)
    return ASK
