"""What dispatchers and the router tell status about brokers, once a second: connections, pauses, and why.

How many messages wait is not in it: status counts them in the slab.  Times are ms since the epoch.
"""

# No `from __future__ import annotations` here: what the annotations name is used at run time.

from typing import Final

import msgspec

__all__ = [
    "ALL_PARTITIONS",
    "CONNECTED",
    "CONNECTING",
    "FAILED",
    "IDLE",
    "NO_LEADER",
    "BrokerStanding",
    "PartitionTrouble",
    "PausedScope",
    "RouterStanding",
]

IDLE: Final = "not connected"
"""There was nothing to send since the last connection was closed, or ever."""
CONNECTING: Final = "connecting"
CONNECTED: Final = "connected"
FAILED: Final = "failed"

NO_LEADER: Final = "no leader"
"""Of a pause: the cluster names no leader that is in service."""
ALL_PARTITIONS: Final = -1
"""In place of a partition's number."""

MOST_LISTED: Final = 100


class PartitionTrouble(msgspec.Struct, frozen=True):
    """A partition whose last answer was an error that is tried again: its name and since when."""

    topic: bytes
    partition: int
    error: str
    since_ms: int


class BrokerStanding(msgspec.Struct, frozen=True, tag=True):
    """A dispatcher about its broker.

    `connection` is one of the words above, since `since_ms`.  `last_error` is empty if there was none.  `exactly_once`:
    the broker recognises what it has already; None before the first connection.  `needs_operator`: its connections
    fail, and will until somebody changes the set-up.  `certificate_ends_s`: when the broker's certificate expires (s).
    """

    slot: int
    node: int
    host: str
    port: int
    connection: str
    since_ms: int
    requests_in_flight: int
    last_error: str
    last_error_ms: int
    exactly_once: bool | None
    troubles: tuple[PartitionTrouble, ...] = ()
    needs_operator: bool = False
    certificate_ends_s: float | None = None


class PausedScope(msgspec.Struct, frozen=True):
    """A pause: of the dispatcher of `slot`, or of a partition or all of a topic, whose name is not empty then.

    `state` is the router's, or `NO_LEADER`.
    """

    slot: int | None
    topic: bytes
    partition: int
    state: str
    since_ms: int


class RouterStanding(msgspec.Struct, frozen=True, tag=True):
    """The router about the cluster.

    `brokers` are (node, host, port) as the metadata has them.  `failing_since_ms` is None if the last fetch of the
    metadata worked, else `error` says why it did not; `needs_operator`, as above.  `paused` lists some of the
    `paused_count` pauses.  `producer_error` is the error code for which we have no producer id, 0 if there is none.
    `forbidden` are topics whose messages wait because brokers hide them from our user.  `asking` is the broker that is
    asked for metadata now, and `asked_in_vain` why the one before it gave none; both empty while none is asked.
    """

    brokers: tuple[tuple[int, str, int], ...]
    failing_since_ms: int | None
    error: str
    paused: tuple[PausedScope, ...]
    paused_count: int
    needs_operator: bool = False
    producer_error: int = 0
    forbidden: tuple[bytes, ...] = ()
    asking: str = ""
    asked_in_vain: str = ""
