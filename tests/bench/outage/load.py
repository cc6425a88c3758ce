"""The load: numbered messages at an even pace, sent to all partitions in turn.

A message has a *home*: the partition that its key names while all partitions have leaders.  Number, home and the time
of sending follow from the value, so every reader of a record knows them.
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple

from bruce_mp.protocol.client.messages import encode

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Load", "Place", "Sent", "parse_value"]

_HEAD: Final = Struct(">QQ")
"""Number, and send time in ns since the epoch."""


class Place(NamedTuple):
    """A partition."""

    topic: str
    partition: int


class Sent(NamedTuple):
    """The contents of a value."""

    number: int
    sent_ns: int


@dataclass(frozen=True, slots=True)
class Load:
    """`rate` messages a second with values of `size` bytes, over `topics` with `partitions` each."""

    rate: int = 2000
    topics: tuple[str, ...] = ("outage-0", "outage-1", "outage-2")
    partitions: int = 6
    size: int = 100

    @property
    def places(self) -> Iterator[Place]:
        return (Place(topic, partition) for topic in self.topics for partition in range(self.partitions))

    def home(self, number: int) -> Place:
        """Return the home of a message."""
        turn, topic = divmod(number, len(self.topics))
        return Place(self.topics[topic], turn % self.partitions)

    def datagram(self, number: int, now_ns: int) -> bytes:
        """Return message `number` as a datagram, with send time `now_ns`."""
        topic, partition = self.home(number)
        value = self.value(number, now_ns)
        return encode(topic, value, partition_key=partition, timestamp_ms=now_ns // 1_000_000)

    def value(self, number: int, now_ns: int) -> bytes:
        """Return the value of message `number`."""
        return _HEAD.pack(number, now_ns).ljust(self.size, b".")


def parse_value(value: bytes) -> Sent:
    """Return the contents of a value."""
    return Sent._make(_HEAD.unpack_from(value))
