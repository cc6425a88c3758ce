"""Compression as the dashboard shows it: sums by codec, and the topics with the most bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from bruce_mp.status.pages.compression import TopicCompression

if TYPE_CHECKING:
    from collections.abc import Iterable

    from bruce_mp.status.pages.compression import CompressionPage

__all__ = ["CompressionSummary", "read_compression_summary"]

MOST_TOPICS: Final = 20


class CompressionSummary(msgspec.Struct, frozen=True):
    """Lines as on `/compression`: sums by codec without a topic, and the largest of `topic_count` topics."""

    codecs: list[TopicCompression]
    topics: list[TopicCompression]
    topic_count: int


def read_compression_summary(page: CompressionPage) -> CompressionSummary:
    """Summarize the `/compression` page."""
    rows = sorted(page.topics, key=lambda row: -row.plain_bytes)
    codecs = sorted({row.codec for row in rows})
    sums = [_sum(codec, [row for row in rows if row.codec == codec]) for codec in codecs]
    return CompressionSummary(sums, rows[:MOST_TOPICS], len(rows))


def _sum(codec: str, rows: Iterable[TopicCompression]) -> TopicCompression:
    rows = list(rows)
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
