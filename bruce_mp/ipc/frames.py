"""The frames between input, router and dispatchers.

A frame is a list of *parcels*. Some parcels name records in the slab, usually of one topic and partition; the
others pause and resume partitions or synchronize a dispatcher. A parcel is a header of 16 bytes and its segments. The
messages themselves stay in the slab. The order of frames on a link is the delivery order within a partition.

    parcel header: u8 kind, 3 bytes 0, u32 topic number, i32 partition (-1 = none, or EVERYTHING), u32 segments
"""

from __future__ import annotations

from enum import IntEnum, unique
from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple

from bruce_mp.errors import SlabError
from bruce_mp.slab.runs import SEGMENT, Segment, pack_segments, unpack_segments

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["EVERYTHING", "Parcel", "ParcelKind", "pack_parcels", "unpack_parcels"]

_HEADER: Final = Struct("<B3xIiI")
EVERYTHING: Final = -1
"""Partition number in a PAUSED, HAND_BACK or HANDED_BACK that covers all partitions of the dispatcher."""


@unique
class ParcelKind(IntEnum):
    RUNS = 1
    """Input to router: closed runs of any topics."""
    BATCH = 2
    """Router to dispatcher: a complete batch, ready to send."""
    QUEUE = 3
    """Router to dispatcher: records that the dispatcher batches, bound to partitions of any topics.

    One parcel has the records that the router sends at a time, for perhaps a thousand partitions.
    """
    SENT = 4
    """Router to dispatcher: record batches that a dispatcher has built, and perhaps sent; partition, sequence numbers
    and boundaries are final.
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
    SENDER = 10
    """Between router and dispatchers, first in each frame: the identity of the sender.

    `topic` is the slot of a dispatcher, 0 for the router. `partition` is the sender's incarnation, by which the
    receiver recognizes frames of a dead process.
    """
    HELLO = 11
    """Dispatcher to router: the dispatcher has started and ignores all frames until RESYNC."""
    RESYNC = 12
    """Router to dispatcher, second in a frame: the frame lists all records that are assigned to the dispatcher.

    The dispatcher repeats its RETURNED parcels. `topic` is the number of the RESYNC. All earlier frames are void.
    """
    SYNCED = 13
    """Dispatcher to router: the dispatcher has processed RESYNC and accepts frames.

    `topic` is the number of the RESYNC, `partition` the incarnation of the router that sent it.
    """
    WAITED = 14
    """Router to dispatcher: records that waited in the router; the dispatcher sends them without further delay.

    It sends them after the records of the same topic that it accumulates.
    """
    FLUSH = 15
    """Input to router, router to dispatchers: a barrier waits for messages of this topic; send the topic's batches now.

    The input repeats it while the barrier waits. The router does not: if a FLUSH to a dispatcher is lost, the batches
    wait for their age limit.
    """


_KINDS: Final = {int(kind): kind for kind in ParcelKind}


class Parcel(NamedTuple):
    """One entry of a frame; some kinds give `topic` and `partition` another meaning, see `ParcelKind`."""

    kind: ParcelKind
    topic: int = 0
    partition: int = -1
    segments: Sequence[Segment] = ()


def pack_parcels(parcels: Iterable[Parcel]) -> bytes:
    """Encode parcels as one frame."""
    return b"".join(
        [
            part
            for kind, topic, partition, segments in parcels
            for part in (_HEADER.pack(kind, topic, partition, len(segments)), pack_segments(segments))
        ]
    )


def unpack_parcels(data: bytes) -> list[Parcel]:
    """Decode a frame into its parcels, the inverse of `pack_parcels`. Raises SlabError for a malformed frame."""
    parcels: list[Parcel] = []
    view = memoryview(data)
    end = 0
    while end < len(view):
        at = end + _HEADER.size
        if at > len(view):
            left = len(view) - end
            raise SlabError(f"A frame between processes ends within a parcel's header ({left} bytes).")
        kind_number, topic, partition, segment_count = _HEADER.unpack_from(view, end)
        end = at + segment_count * SEGMENT.size
        kind = _KINDS.get(kind_number)
        if end > len(view) or kind is None:
            raise SlabError(
                f"A frame between processes has a malformed parcel of kind {kind_number} with {segment_count} segments."
            )
        parcels.append(Parcel(kind, topic, partition, unpack_segments(view[at:end])))
    return parcels
