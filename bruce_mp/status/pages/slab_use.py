"""How full the slab is: how much of it holds unsettled messages, which are neither delivered nor discarded.

A *place* is a chunk or span that has messages.
"""

from __future__ import annotations

from collections import Counter as Tally
from typing import TYPE_CHECKING, Final

import msgspec

from bruce_mp.slab import layout as lay
from bruce_mp.slab.chunks import is_settled, used_chunk_headers
from bruce_mp.slab.holdings import TopicKey, topic_of_chunk
from bruce_mp.slab.tables import TopicTable

if TYPE_CHECKING:
    from bruce_mp.slab.file import Slab

__all__ = ["SizeClass", "SlabUse", "largest_topics", "read_slab_use"]

MAX_NAMED_TOPICS: Final = 3
"""Limit of the topics that `/healthz` names."""
MIN_NAMED_RATIO: Final = 0.01
"""`/healthz` names only topics that hold at least this ratio of the slab."""


class SizeClass(msgspec.Struct, frozen=True):
    """The class of the places with a size of more than `bytes` / 2 and at most `bytes`; `places` is their number.

    `in_use` is the total size in bytes of the places with unsettled messages. `settled` is the total size of the other
    places, which can be reclaimed.
    """

    bytes: int
    places: int
    in_use: int
    settled: int


class SlabUse(msgspec.Struct, frozen=True):
    """Use of the slab in bytes. `in_use` and `settled` are as in `SizeClass`; the rest of `size` is free.

    `chunk` is the size of a chunk. A message that, with its header, is larger than a chunk has a separate place.
    `classes` begins with the smallest places.
    """

    size: int
    chunk: int
    in_use: int
    settled: int
    classes: list[SizeClass]

    @property
    def in_use_ratio(self) -> float:
        """Return the ratio of `in_use` to `size`, from 0 to 1."""
        return round(self.in_use / self.size, 4)


def read_slab_use(slab: Slab) -> SlabUse:
    places, in_use, settled = Tally[int](), Tally[int](), Tally[int]()
    for chunk, _, span_chunks, _ in used_chunk_headers(slab):
        class_bytes = lay.CHUNK_BYTES << (span_chunks - 1).bit_length()  # `span_chunks`, rounded up to a power of two
        places[class_bytes] += 1
        (settled if is_settled(slab, chunk) else in_use)[class_bytes] += span_chunks * lay.CHUNK_BYTES
    return SlabUse(
        size=slab.geometry.chunks * lay.CHUNK_BYTES,
        chunk=lay.CHUNK_BYTES,
        in_use=in_use.total(),
        settled=settled.total(),
        classes=[SizeClass(limit, count, in_use[limit], settled[limit]) for limit, count in sorted(places.items())],
    )


def largest_topics(slab: Slab) -> dict[bytes, float]:
    """Return the ratio of the slab that each of the largest topics holds, the largest topic first."""
    held_chunks = Tally[TopicKey]()  # the key of a topic is its number in the slab, or its name if it has no number
    for chunk, _, span_chunks, _ in used_chunk_headers(slab):
        topic = topic_of_chunk(slab, chunk)
        if topic is not None and not is_settled(slab, chunk):
            held_chunks[topic] += span_chunks
    table, chunk_count = TopicTable(slab), slab.geometry.chunks
    return {
        topic if isinstance(topic, bytes) else table.name_of(topic): held / chunk_count
        for topic, held in held_chunks.most_common(MAX_NAMED_TOPICS)
        if held >= MIN_NAMED_RATIO * chunk_count and (isinstance(topic, bytes) or table.has(topic))
    }
