"""What goes through the pipes between input, router and dispatchers.

A message is a list of *parcels*: places in the slab that share a kind, and most a topic and a partition, or one *word*
of the pause/reroute protocol.  A parcel is 16 bytes of head and its segments; bodies never travel.  Order in a pipe is
the order of delivery within a partition.

    parcel head: u8 kind, 3 bytes 0, u32 topic id, i32 partition (-1 = undesignated), u32 number of segments
"""

from __future__ import annotations

from enum import IntEnum, unique
from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple

from bruce_mp.errors import SlabError
from bruce_mp.slab.runs import SEGMENT, Segment, pack_segments, unpack_segments

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["EVERYTHING", "Kind", "Parcel", "pack_parcels", "unpack_parcels"]

_HEAD: Final = Struct("<B3xIiI")
EVERYTHING: Final = -1
"""As the partition of a HAND_BACK: whatever the dispatcher holds."""


@unique
class Kind(IntEnum):
    """What a parcel is."""

    RUNS = 1
    """Input to router: runs handed over, of any topics."""
    BATCH = 2
    """Router to dispatcher: a finished batch; it waits for nothing more."""
    QUEUE = 3
    """Router to dispatcher: records for the dispatcher's own batching, of any topics and partitions, to which they are
    bound; so what the router sends at a time is one parcel, not one for each of a thousand partitions."""
    SENT = 4
    """Router to dispatcher: record batches that were built before; partition, sequences and boundaries are final."""
    HAND_BACK = 5
    """Router to dispatcher: give back what you hold of this partition, or EVERYTHING."""
    RETURNED = 6
    """Dispatcher to router: records never sent."""
    RETURNED_SENT = 7
    """Dispatcher to router: record batches that were built."""
    PAUSED = 8
    """Dispatcher to router: I stopped sending to this partition, or to EVERYTHING; give me the word to hand it back."""
    HANDED_BACK = 9
    """Dispatcher to router: that was all of it."""
    FROM = 10
    """Between router and dispatchers, first in each message: who says what follows.  `topic` is the slot, if it is a
    dispatcher, `partition` its incarnation, by which the receiver knows what somebody said who is dead."""
    HELLO = 11
    """Dispatcher to router: I have started, and take nothing before you say RESYNC."""
    RESYNC = 12
    """Router to dispatcher, second in a message: what follows is everything that is assigned to you; say again what you
    returned.  `topic` numbers the word.  All that was said before is void."""
    HELD = 14
    """Router to dispatcher: records that have waited long enough elsewhere; they go right behind what gathers here."""
    FLUSH = 15
    """Input to router, router to dispatchers: somebody waits for the messages of this topic; what is batched of it
    goes now.  One that is lost costs the time that the batch may take anyway."""
    SYNCED = 13
    """Dispatcher to router: said; from now on I take what comes.  `topic` is the number of the RESYNC,
    `partition` the incarnation of the router that said it."""


class Parcel(NamedTuple):
    """Segments that travel together."""

    kind: Kind
    topic: int = 0
    partition: int = -1
    segments: Sequence[Segment] = ()


def pack_parcels(parcels: Iterable[Parcel]) -> bytes:
    """Parcels as one message."""
    return b"".join(
        [
            part
            for kind, topic, partition, segments in parcels
            for part in (_HEAD.pack(kind, topic, partition, len(segments)), pack_segments(segments))
        ]
    )


def unpack_parcels(data: bytes) -> list[Parcel]:
    """The reverse of `pack_parcels`.  Raises SlabError for bytes that are no parcels."""
    parcels: list[Parcel] = []
    view = memoryview(data)
    end = 0
    while end < len(view):
        at = end + _HEAD.size
        if at > len(view):
            left = len(view) - end
            raise SlabError(f"A message between processes ends in the middle of a parcel's head ({left} bytes).")
        number, topic, partition, count = _HEAD.unpack_from(view, end)
        end = at + count * SEGMENT.size
        kind = _KINDS.get(number)
        if end > len(view) or kind is None:
            raise SlabError(f"A message between processes has an unsound parcel of kind {number} and {count} segments.")
        parcels.append(Parcel(kind, topic, partition, unpack_segments(view[at:end])))
    return parcels


_KINDS: Final = {int(kind): kind for kind in Kind}
