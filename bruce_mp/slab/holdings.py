"""The chunks of an input by topic.

`TopicThresholds` limits the chunks of each topic.  If a topic exceeds its limit, it searches for chunks of the topic
that can be freed, with pauses between the searches.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from bruce_mp.errors import SlabError
from bruce_mp.slab import layout as lay
from bruce_mp.slab.layout import RunState
from bruce_mp.slab.runs import name_of, read_run

if TYPE_CHECKING:
    from bruce_mp.slab.file import Slab

__all__ = [
    "INSPECTIONS_PER_SEARCH",
    "MAX_SEARCH_PAUSE_MS",
    "Holding",
    "Holdings",
    "SearchPause",
    "TopicKey",
    "topic_of_chunk",
]

TopicKey = int | bytes
"""The number of a topic, or its name if the router has not given it a number."""

INSPECTIONS_PER_SEARCH: Final = 256
"""The most spans of a topic that one search inspects."""
MIN_SEARCH_PAUSE_MS: Final = 5
MAX_SEARCH_PAUSE_MS: Final = 80
"""Limits of the pause after a search that frees nothing."""


class SearchPause:
    """The pause before the next search; the pause doubles after each search that frees nothing, to save CPU."""

    __slots__ = ("duration_ms", "ends_ms")

    def __init__(self) -> None:
        self.duration_ms = MIN_SEARCH_PAUSE_MS
        """Duration of the pause after the next search that frees nothing."""
        self.ends_ms = 0

    def record_search(self, now_ms: int, *, has_freed: bool, max_pause_ms: int = MAX_SEARCH_PAUSE_MS) -> None:
        """Begin the pause after a search, or none if the search freed a chunk."""
        self.ends_ms = 0 if has_freed else now_ms + self.duration_ms
        self.duration_ms = MIN_SEARCH_PAUSE_MS if has_freed else min(2 * self.duration_ms, max_pause_ms)


class Holding:
    """The spans of chunks that one topic holds."""

    __slots__ = ("alpha", "chunk_count", "freed_span_count", "pause", "spans")

    def __init__(self) -> None:
        self.spans: OrderedDict[int, int] = OrderedDict()
        """The length of each span by its first chunk; a search inspects the first span next."""
        self.chunk_count = 0
        """Number of chunks in all spans."""
        self.freed_span_count = 0
        """Number of spans of the topic that became free."""
        self.alpha: int | None = None
        """The topic's `topic_share.alpha` in the config, see `TopicThresholds`; None if it is not looked up yet."""
        self.pause = SearchPause()


class Holdings:
    """The chunks of an input by topic.  A topic without chunks is not listed."""

    def __init__(self) -> None:
        self.by_topic: dict[TopicKey, Holding] = {}
        self._topics: dict[int, TopicKey] = {}
        """The topic of each span by its first chunk."""
        self.freed_span_count = 0
        """Number of spans of all topics that became free."""
        self.numbered_topic_count = 0
        """Number of listed topics with a number as the key."""

    @property
    def max_inspections(self) -> int:
        """Return the maximum number of inspections if each topic is searched once."""
        return min(len(self._topics), len(self.by_topic) * INSPECTIONS_PER_SEARCH)

    def holding_of(self, topic: TopicKey) -> Holding:
        """Return the holding of a topic; for a topic without chunks return an empty one, which is not listed."""
        return self.by_topic.get(topic) or Holding()

    def add(self, topic: TopicKey, holding: Holding, chunk: int, span: int) -> None:
        """Add an allocated span to a topic and list the topic; `holding` is the result of `holding_of(topic)`."""
        if topic not in self.by_topic:
            self.by_topic[topic] = holding
            self.numbered_topic_count += isinstance(topic, int)
        holding.spans[chunk] = span
        holding.chunk_count += span
        self._topics[chunk] = topic

    def remove(self, chunk: int) -> None:
        """Remove a freed span from the holding of its topic, if the span has a topic."""
        topic = self._topics.pop(chunk, None)
        if topic is None:
            return
        holding = self.by_topic[topic]
        holding.chunk_count -= holding.spans.pop(chunk)
        holding.freed_span_count += 1
        self.freed_span_count += 1
        if not holding.spans:
            del self.by_topic[topic]
            self.numbered_topic_count -= isinstance(topic, int)

    def assign_number(self, name: bytes, number: int) -> None:
        """List the spans of a topic under the number that the router gave it, instead of its name."""
        old_holding, new_holding = self.by_topic.pop(name), self.holding_of(number)
        for chunk, span in old_holding.spans.items():
            self.add(number, new_holding, chunk, span)

    def adopt(self, slab: Slab, chunk: int, span: int) -> None:
        """Add a span with runs, of a predecessor or a completed fenced attempt, to the topic of its first run."""
        topic = topic_of_chunk(slab, chunk)
        if topic is not None:
            self.add(topic, self.holding_of(topic), chunk, span)


def topic_of_chunk(slab: Slab, chunk: int) -> TopicKey | None:
    """Return the topic of a chunk's first run; None if it has no run, a damaged one, or an OPEN one of an attempt."""
    at, words = slab.chunk_at(chunk), slab.words
    run_at = at + lay.CHUNK_HEADER
    if not words[(at + lay.CHUNK_RUNS) >> 2]:
        return None
    if words[(at + lay.CHUNK_ATTEMPT) >> 2] and words[run_at >> 2] & 0xFF == RunState.OPEN:
        return None
    if words[(run_at + lay.RUN_MAGIC_AT) >> 2] != lay.RUN_MAGIC:
        return None
    try:
        number = words[(run_at + lay.RUN_TOPIC) >> 2]
        return number or name_of(slab, chunk, lay.CHUNK_HEADER, read_run(slab, chunk, lay.CHUNK_HEADER))
    except SlabError:
        return None
