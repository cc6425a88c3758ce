"""The frames between inputs, router and dispatchers.

A frame is a list of *parcels*. Some parcels name records in the slab, usually of one topic and partition; other parcels
pause and resume partitions or synchronize a dispatcher with the router. A parcel is a header of 16 bytes and its
segments; a segment names neighboring records in the slab (`slab.runs`). The messages themselves stay in the slab.
Messages of a partition are delivered in the order in which the frames on a link name them.

    parcel header: u8 kind, 3 bytes 0, u32 topic number, i32 partition (-1: none or EVERYTHING), u32 number of segments
"""

from __future__ import annotations

from enum import IntEnum, unique
from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple

from bruce_mp.errors import SlabError
from bruce_mp.kernels import pack_segments
from bruce_mp.slab.runs import SEGMENT, Segment, unpack_segments

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["EVERYTHING", "Parcel", "ParcelKind", "pack_parcels", "unpack_parcels"]

_HEADER: Final = Struct("<B3xIiI")
EVERYTHING: Final = -1
"""The partition number of a PAUSED, HAND_BACK or HANDED_BACK parcel that covers all partitions of the dispatcher."""


@unique
class ParcelKind(IntEnum):
    """The kind of a parcel. A *run* is a sequence of records that an input hands over as one unit."""

    RUNS = 1
    """Input to router: runs that the input has completed, of any topics."""
    BATCH = 2
    """Router to dispatcher: records that form a complete batch, ready to send."""
    QUEUE = 3
    """Router to dispatcher: records of any topics, already assigned to partitions, for the dispatcher to batch."""
    SENT = 4
    """Router to dispatcher: record batches that a dispatcher has built, and perhaps sent. Send each batch unchanged:
    its partition, sequence numbers and boundaries are final.
    """
    HAND_BACK = 5
    """Router to dispatcher: return all records of this partition, or of EVERYTHING."""
    RETURNED = 6
    """Dispatcher to router: returned records that were never sent."""
    RETURNED_SENT = 7
    """Dispatcher to router: returned record batches that were built and perhaps sent."""
    PAUSED = 8
    """Dispatcher to router: the dispatcher has stopped sending to this partition, or to EVERYTHING.

    The router answers with HAND_BACK.
    """
    HANDED_BACK = 9
    """Dispatcher to router: all records that HAND_BACK requested have been returned."""
    SENDER = 10
    """Between router and dispatchers, first in each frame: the identity of the sender.

    From a dispatcher, `topic` is the dispatcher slot; from the router, `topic` is 0. `partition` is the sender's
    incarnation, by which the receiver recognizes frames of a dead process.
    """
    HELLO = 11
    """Dispatcher to router: the dispatcher has started and ignores all frames until RESYNC."""
    RESYNC = 12
    """Router to dispatcher, second in a frame: the frame lists all records that are assigned to the dispatcher.

    All earlier frames in both directions are void, so the dispatcher repeats RETURNED for the records that the router
    has not taken over. `topic` is the number of this RESYNC.
    """
    SYNCED = 13
    """Dispatcher to router: the dispatcher has processed RESYNC and accepts frames.

    `topic` is the number of the RESYNC, `partition` the incarnation of the router that sent the RESYNC.
    """
    WAITED = 14
    """Router to dispatcher: records that have waited in the router; send them without waiting for a full batch.

    The dispatcher first sends its accumulated records of the same topic, which are older than these records.
    """
    FLUSH = 15
    """Input to router, router to dispatchers: a client waits for messages of this topic; send the topic's batches now.

    The input repeats FLUSH while the client's barrier waits. The router sends FLUSH to each dispatcher only once: if
    the frame is lost, the dispatcher sends the batches when they reach their age limit.
    """


_KIND_BY_NUMBER: Final = {int(kind): kind for kind in ParcelKind}


class Parcel(NamedTuple):
    """One entry of a frame. In some kinds, `topic` and `partition` have another meaning: see `ParcelKind`."""

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
    offset = 0
    while offset < len(view):
        segments_offset = offset + _HEADER.size
        if segments_offset > len(view):
            left = len(view) - offset
            raise SlabError(
                f"A frame between processes ends within a parcel's header, after {left} of {_HEADER.size} bytes."
            )
        kind_number, topic, partition, segment_count = _HEADER.unpack_from(view, offset)
        offset = segments_offset + segment_count * SEGMENT.size
        kind = _KIND_BY_NUMBER.get(kind_number)
        if offset > len(view) or kind is None:
            raise SlabError(
                f"A frame between processes has a malformed parcel of kind {kind_number} with {segment_count} segments."
            )
        parcels.append(Parcel(kind, topic, partition, unpack_segments(view[segments_offset:offset])))
    return parcels
