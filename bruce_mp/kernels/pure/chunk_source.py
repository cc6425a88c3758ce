"""Sources of chunks for lanes, as protocols: lanes work the same in a pool and in a fenced attempt's part of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from bruce_mp.slab.topic_shares import TopicKey

__all__ = ["Chunks", "Thresholds"]


class Chunks(Protocol):
    """The source of lanes' chunks: a `ChunkPool`, or a wrapper around one."""

    owner: int

    def allocate(self, span: int, now_ms: int) -> int | None:
        """Return the first of `span` neighbouring chunks, opened and empty, or None."""

    def can_spare(self, span: int) -> bool:
        """Report if an optional larger span may be allocated."""

    def seal(self, chunk: int) -> None:
        """Close the chunk to further runs."""

    def release_seals(self) -> None:
        """Allow the reclaim of sealed chunks."""


class Thresholds(Protocol):
    """The source of chunks for topics that have thresholds: `TopicShares`, or a wrapper around it."""

    has_refused: bool

    def allocate(self, topic: TopicKey, span: int, now_ms: int) -> int | None:
        """Return the first of `span` neighbouring chunks for a topic, opened and empty, or None."""

    def allows(self, topic: TopicKey, span: int, now_ms: int) -> bool:
        """Report if a topic with `span` more chunks is within its threshold."""

    def may_grow(self, topic: TopicKey, span: int, now_ms: int) -> bool:
        """Report if a refused topic may resume."""

    def notice_topics(self) -> None:
        """Charge chunks to the numbers of newly numbered topics."""
