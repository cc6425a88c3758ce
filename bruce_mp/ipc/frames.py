"""The frames between input, router and dispatchers.

A frame is a list of *parcels*. A parcel names records in the slab that share a kind, and mostly a topic and a
partition, or is one message of the pause and reroute protocol. A parcel is a head of 16 bytes and its segments; message
bodies never travel. The order of frames in a pipe is the delivery order within a partition.

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

__all__ = ["EVERYTHING", "FrameKind", "Parcel", "pack_parcels", "unpack_parcels"]

_HEAD: Final = Struct("<B3xIiI")
EVERYTHING: Final = -1
"""Partition number in a HAND_BACK or PAUSED that covers all partitions of the dispatcher."""


@unique
class FrameKind(IntEnum):
    """The kind of a parcel."""

    RUNS = 1
    """Input to router: closed runs of any topics."""
    BATCH = 2
    """Router to dispatcher: a complete batch, ready to send."""
    QUEUE = 3
    """Router to dispatcher: records for the dispatcher's own batching, bound to partitions of any topics.

    One parcel covers all partitions of a send, instead of one parcel for each of a thousand partitions.
    """
    SENT = 4
    """Router to dispatcher: record batches that were built before; partition, sequence numbers and boundaries are
    final.
    """
    HAND_BACK = 5
    """Router to dispatcher: return all records of this partition, or of EVERYTHING."""
    RETURNED = 6
    """Dispatcher to router: returned records that were never sent."""
    RETURNED_SENT = 7
    """Dispatcher to router: returned record batches that were built and perhaps sent."""
    PAUSED = 8
    """Dispatcher to router: sending to this partition, or to EVERYTHING, has stopped; the router answers HAND_BACK."""
    HANDED_BACK = 9
    """Dispatcher to router: the hand-back is complete."""
    FROM = 10
    """Between router and dispatchers, first in each frame: the sender.

    `topic` is the slot of a dispatcher, `partition` the sender's incarnation, by which the receiver recognizes frames
    of a dead process.
    """
    HELLO = 11
    """Dispatcher to router: the dispatcher has started and ignores all frames before RESYNC."""
    RESYNC = 12
    """Router to dispatcher, second in a frame: the frame lists all records that are assigned to the dispatcher, which
    repeats its RETURNED parcels.

    `topic` is the number of the RESYNC. All earlier frames are void.
    """
    HELD = 14
    """Router to dispatcher: records that have waited long enough elsewhere; they follow the records that gather here.
    """
    FLUSH = 15
    """Input to router, router to dispatchers: a client waits for messages of this topic; send its batches now.

    A lost FLUSH costs the rest of the batch delay.
    """
    SYNCED = 13
    """Dispatcher to router: the dispatcher has processed RESYNC and accepts frames.

    `topic` is the number of the RESYNC, `partition` the incarnation of the router that sent it.
    """


class Parcel(NamedTuple):
    """A kind, a topic, a partition and the segments that share them."""

    kind: FrameKind
    topic: int = 0
    partition: int = -1
    segments: Sequence[Segment] = ()


def pack_parcels(parcels: Iterable[Parcel]) -> bytes:
    """Encode parcels as one frame."""
    return b"".join(
        [
            part
            for kind, topic, partition, segments in parcels
            for part in (_HEAD.pack(kind, topic, partition, len(segments)), pack_segments(segments))
        ]
    )


def unpack_parcels(data: bytes) -> list[Parcel]:
    """Decode a frame into its parcels, the inverse of `pack_parcels`. Raises SlabError for a malformed frame."""
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


_KINDS: Final = {int(kind): kind for kind in FrameKind}
