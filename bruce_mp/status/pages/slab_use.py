"""Slab use: the chunks that hold unsettled messages, by size class.

A *place* on the page is a chunk, or a span of neighbouring chunks for a large message or a busy lane.
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

MAX_LARGEST: Final = 3
"""Topics that `/healthz` names."""
MIN_RATIO: Final = 0.01
"""Ratio of the slab from which `/healthz` names a topic."""


class SizeClass(msgspec.Struct, frozen=True):
    """Places of at most `bytes` and more than half of it.

    `places` is their number. `in_use` bytes hold unsettled messages; `settled` bytes can be reclaimed.
    """

    bytes: int
    places: int
    in_use: int
    settled: int


class SlabUse(msgspec.Struct, frozen=True):
    """Slab use in bytes. Space that is neither in use nor settled is free. `classes` begin with the smallest.

    `chunk` is the size of the smallest place. A message that exceeds it, header included, has a separate place.
    """

    size: int
    chunk: int
    in_use: int
    settled: int
    classes: list[SizeClass]

    @property
    def in_use_ratio(self) -> float:
        """Return the ratio of the slab that unsettled messages use, from 0 to 1."""
        return round(self.in_use / self.size, 4)


def read_slab_use(slab: Slab) -> SlabUse:
    places, in_use, settled = Tally[int](), Tally[int](), Tally[int]()
    for chunk, _, span_chunks, _ in used_chunk_headers(slab):
        class_bytes = lay.CHUNK_BYTES << (span_chunks - 1).bit_length()  # rounded up to a power of two chunks
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
    """Return the topics that use most of the slab, the largest first, each with the ratio of the slab that it uses."""
    held_chunks = Tally[TopicKey]()
    for chunk, _, span_chunks, _ in used_chunk_headers(slab):
        topic = topic_of_chunk(slab, chunk)
        if topic is not None and not is_settled(slab, chunk):
            held_chunks[topic] += span_chunks
    table, chunks = TopicTable(slab), slab.geometry.chunks
    return {
        topic if isinstance(topic, bytes) else table.name_of(topic): held / chunks
        for topic, held in held_chunks.most_common(MAX_LARGEST)
        if held >= MIN_RATIO * chunks and (isinstance(topic, bytes) or table.has(topic))
    }
