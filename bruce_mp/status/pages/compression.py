"""The page `/compression`: bytes saved and CPU time spent by topic, since the start of the status process."""

from __future__ import annotations

from collections import Counter as Tally
from threading import Lock
from typing import TYPE_CHECKING, Final

import msgspec

from bruce_mp.status.pages.header import Page, header_lines, read_header
from bruce_mp.status.pages.text import bracketed, topic_text
from bruce_mp.telemetry.compression import CompressionSums

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from bruce_mp.slab.file import Slab
    from bruce_mp.telemetry.compression import CompressionEvent

__all__ = [
    "CompressionPage",
    "CompressionSummary",
    "CompressionTable",
    "TopicCompression",
    "compression_text",
    "summarize_compression",
]


class TopicCompression(msgspec.Struct, frozen=True):
    """Batches of a topic with a codec.

    Dispatchers compressed `tried` batches and sent `kept` of them compressed; the rest did not shrink enough. They did
    not try to compress `skipped` batches, because earlier batches did not shrink enough. The tried batches had
    `plain_bytes` before and `packed_bytes` (`percent` of `plain_bytes`) after compression, which took `cpu_ms` of CPU
    time. If there are too many topics for a line each, one line per codec with the topic "" sums the further topics.
    """

    topic: str
    codec: str
    tried: int
    kept: int
    skipped: int
    plain_bytes: int
    packed_bytes: int
    percent: float
    cpu_ms: float


class CompressionPage(Page, frozen=True, kw_only=True):
    """JSON of `/compression`."""

    topics: list[TopicCompression]


class CompressionTable:
    """Compression sums of all dispatchers. Several threads may use it."""

    def __init__(self, slab: Slab) -> None:
        self._slab = slab
        self._sums = CompressionSums()
        self._lock = Lock()

    def record(self, events: Iterable[CompressionEvent]) -> None:
        with self._lock:
            for event in events:
                self._sums.add(event)

    def page(self, now_ms: int) -> CompressionPage:
        with self._lock:
            sums = self._sums.events()
        return CompressionPage(**read_header(self._slab, now_ms), topics=[_topic_compression(each) for each in sums])


def _topic_compression(event: CompressionEvent) -> TopicCompression:
    return TopicCompression(
        topic_text(event.topic),
        event.codec,
        event.tried,
        event.kept,
        event.skipped,
        event.plain_bytes,
        event.packed_bytes,
        round(100 * event.packed_bytes / event.plain_bytes, 1) if event.plain_bytes else 100.0,
        event.micros / 1000,
    )


def compression_text(page: CompressionPage) -> str:
    return "\n".join([*header_lines(page), *map(_text_line, page.topics), ""])


def _text_line(row: TopicCompression) -> str:
    batches = f"tried: {row.tried:10}  kept: {row.kept:10}  skipped: {row.skipped:10}"
    gain = f"bytes: {row.plain_bytes:14} -> {row.packed_bytes:14} ({row.percent:5.1f} %)  cpu ms: {row.cpu_ms:12.1f}"
    return f"{batches}  {gain}  codec: {row.codec:6}  topic: {bracketed(row.topic)}"


# --- the dashboard's summary -----------------------------------------------------------------------------------------

MAX_TOPICS: Final = 20
"""Limit of the topics on the dashboard; it shows the topics with the most bytes."""


class CompressionSummary(msgspec.Struct, frozen=True):
    """Compression by codec, and of the topics with the most bytes.

    `codecs` has the sum of all topics for each codec, with "" as the topic. `topics` has the lines of the topics with
    the most bytes. `topic_count` is the number of all topics; the topics that share the lines "" count as one.
    """

    codecs: list[TopicCompression]
    topics: list[TopicCompression]
    topic_count: int


def summarize_compression(page: CompressionPage) -> CompressionSummary:
    rows = sorted(page.topics, key=lambda row: -row.plain_bytes)
    codecs = sorted({row.codec for row in rows})
    sums = [_sum(codec, [row for row in rows if row.codec == codec]) for codec in codecs]
    bytes_by_topic: Tally[str] = Tally()
    for row in rows:
        bytes_by_topic[row.topic] += row.plain_bytes
    largest = {topic for topic, _ in bytes_by_topic.most_common(MAX_TOPICS)}
    return CompressionSummary(sums, [row for row in rows if row.topic in largest], len(bytes_by_topic))


def _sum(codec: str, rows: Sequence[TopicCompression]) -> TopicCompression:
    plain, packed = sum(row.plain_bytes for row in rows), sum(row.packed_bytes for row in rows)
    return TopicCompression(
        "",
        codec,
        sum(row.tried for row in rows),
        sum(row.kept for row in rows),
        sum(row.skipped for row in rows),
        plain,
        packed,
        round(100 * packed / plain, 1) if plain else 100.0,
        round(sum(row.cpu_ms for row in rows), 1),
    )
