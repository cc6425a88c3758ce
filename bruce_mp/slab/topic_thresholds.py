"""The dynamic threshold of topics: an upper bound on one topic's part of an input's memory.

The rule comes from shared-memory switches (Choudhury and Hahne, "Dynamic queue length thresholds for shared-memory
packet switches", 1998): a topic may hold at most `alpha` times the free memory.  A single topic with messages that
brokers do not accept then fills `alpha / (1 + alpha)` of the memory.  Some memory stays free for any number of such
topics.

This free part shrinks with each such topic, so the last eighth of the memory is a reserve: within it, a topic may hold
at most a quarter of the free memory.  A topic without chunks gets one span (neighboring chunks for a large message)
of any size that is free, because a large message would otherwise never fit.

`Holdings` counts chunks when they are allocated and freed, so the threshold costs no work for each message.  The pool
frees chunks lazily: after all messages of a chunk have outcomes, the chunk stays in use until the pool inspects it.  So
before `TopicThresholds` refuses a topic, its *search* inspects some of the oldest chunks of the topic and of all
topics, and frees the settled ones.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

from bruce_mp.slab.holdings import INSPECTIONS_PER_SEARCH, MAX_SEARCH_PAUSE_MS, SearchPause

if TYPE_CHECKING:
    from collections.abc import Callable

    from bruce_mp.slab.chunks import ChunkPool
    from bruce_mp.slab.holdings import Holding, TopicKey
    from bruce_mp.slab.tables import TopicTable

__all__ = ["TopicThresholds"]

RESERVE_DIVISOR: Final = 8
"""The reserve is an input's capacity divided by this number."""
RESERVE_ALPHA_DIVISOR: Final = 4
"""Within the reserve, a topic may hold at most the free memory divided by this number."""
TOPIC_STUCK_AFTER_MS: Final = 1000
"""Time without a freed chunk after which a topic over its threshold counts as stuck."""
INSPECTIONS_PER_MS: Final = 50
"""Limit for the searches of all stuck topics together; to keep this limit, pauses may exceed `MAX_SEARCH_PAUSE_MS`."""
TRIAL_INTERVAL_MS: Final = 1000
"""Interval of trials: see `TopicThresholds.must_pause`."""
TRIAL_MESSAGES: Final = 8
"""Number of messages that an input receives in a trial: see `TopicThresholds.must_pause`."""


class _Excess(NamedTuple):
    """A topic over its threshold, which has freed no chunk since the time `since_ms`.

    `freed_span_count` is the number of spans that the topic had freed by that time, `freed_span_count_of_all` the
    number of spans that all topics together had freed.
    """

    since_ms: int
    freed_span_count: int
    freed_span_count_of_all: int


class TopicThresholds:
    """An allocator that gives each topic chunks of a pool up to the topic's threshold.

    `alpha_of` takes the name of a topic and returns its factor `alpha`; 0 = no threshold.

    If `blocks` is False, a topic over its threshold is refused: `allocate` returns None.  If it is True, the input
    slows its senders down instead of discarding messages: the topic is tolerated and gets its chunk, but the input must
    pause (see `must_pause`).

    A tolerated topic is *stuck* if none of its chunks becomes free for a second.  A stuck topic is refused if another
    topic can use the memory: a topic that holds no chunks, or that has freed some in that second.  If all topics are
    stuck, the input pauses, except for a *trial* each second: it then admits messages of topics that are not stuck.
    """

    def __init__(self, pool: ChunkPool, topics: TopicTable, alpha_of: Callable[[bytes], int]) -> None:
        self._pool = pool
        self._topics = topics
        self._alpha_of = alpha_of
        self.blocks = False
        self._excesses: dict[TopicKey, _Excess] = {}
        """The topics over their thresholds; empty if `blocks` is False."""
        self._pause = SearchPause()
        """The pause between searches of all topics' oldest chunks."""
        self._next_trial_ms = 0
        self.is_on_trial = False
        """True during a trial, which refuses stuck topics even if all topics are stuck."""
        self.has_refused = False
        """True if the last `allocate` failed because of the topic's threshold, not because the memory was full."""
        self.on_topics_changed()

    def apply_config(self, alpha_of: Callable[[bytes], int]) -> None:
        """Apply changed factors, and end the pause before the next search of each topic."""
        self._alpha_of = alpha_of
        for holding in self._pool.holdings.by_topic.values():
            holding.alpha = None
            holding.pause = SearchPause()

    def on_topics_changed(self) -> None:
        """List the chunks of newly numbered topics under the numbers that the router has given the topics."""
        holdings = self._pool.holdings
        for name in [each for each in holdings.by_topic if isinstance(each, bytes)]:
            number = self._topics.number_of(name)
            if number:
                holdings.assign_number(name, number)

    def allocate(self, topic: TopicKey, span: int, now_ms: int) -> int | None:
        """Open a span of `span` chunks for a topic and return its first chunk; None on failure, see `has_refused`."""
        holding = self._pool.holdings.holding_of(topic)
        is_over = not self._fits_after_search(topic, holding, span, now_ms)
        self.has_refused = is_over and not self._tolerate(topic, now_ms)
        chunk = None if self.has_refused else self._pool.allocate(span, now_ms)
        if chunk is not None:
            self._pool.holdings.add(topic, holding, chunk, span)
        return chunk

    def allows(self, topic: TopicKey, span: int, now_ms: int) -> bool:
        """Return True if a topic with `span` more chunks is within its threshold."""
        return self._fits_after_search(topic, self._pool.holdings.holding_of(topic), span, now_ms)

    def may_grow(self, topic: TopicKey, span: int, now_ms: int) -> bool:
        """Return True if a refused topic may grow by `span` chunks, or by about half of its chunks if that is less.

        With room for fewer chunks, it would not be worth the CPU to parse the messages in waiting connections again.
        """
        holding = self._pool.holdings.holding_of(topic)
        return self._fits_after_search(topic, holding, min(span, 1 + holding.chunk_count // 2), now_ms)

    def must_pause(self, now_ms: int) -> bool:
        """Return True if the input must receive nothing now, because it tolerates a topic over its threshold.

        If all tolerated topics are stuck, the call begins a *trial* once a second and returns False: the input may then
        receive `TRIAL_MESSAGES` messages.  Without trials, messages of other topics would stay behind the messages of
        stuck topics in the socket's queue.
        """
        self.is_on_trial = False  # before the calls of `_tolerate`, which depends on it
        for topic in list(self._excesses):
            if self._fits_after_search(topic, self._pool.holdings.holding_of(topic), 1, now_ms):
                del self._excesses[topic]
        tolerated = [topic for topic in list(self._excesses) if self._tolerate(topic, now_ms)]
        self.is_on_trial = bool(tolerated) and self._begin_due_trial(tolerated, now_ms)
        return bool(tolerated) and not self.is_on_trial

    def _begin_due_trial(self, tolerated: list[TopicKey], now_ms: int) -> bool:
        """Begin a trial if all tolerated topics are stuck and the last trial is long ago; return True if one begins."""
        is_due = now_ms >= self._next_trial_ms and all(self._is_stuck(topic, now_ms) for topic in tolerated)
        if is_due:
            self._next_trial_ms = now_ms + TRIAL_INTERVAL_MS
        return is_due

    def _is_stuck(self, topic: TopicKey, now_ms: int) -> bool:
        """Return True if none of the topic's chunks became free within `TOPIC_STUCK_AFTER_MS`."""
        return now_ms - self._excesses[topic].since_ms >= TOPIC_STUCK_AFTER_MS

    def _tolerate(self, topic: TopicKey, now_ms: int) -> bool:
        """Record that a topic is over its threshold; return False if the topic must be refused nevertheless."""
        if not self.blocks:
            return False
        holdings, excess = self._pool.holdings, self._excesses.get(topic)
        freed_span_count = holdings.holding_of(topic).freed_span_count
        if excess is None or excess.freed_span_count != freed_span_count:
            excess = self._excesses[topic] = _Excess(now_ms, freed_span_count, holdings.freed_span_count)
        if not self._is_stuck(topic, now_ms):
            return True
        has_idle_topic = holdings.numbered_topic_count < len(self._topics)  # some topic in the table holds no chunks
        are_all_stuck = holdings.freed_span_count == excess.freed_span_count_of_all and not has_idle_topic
        return are_all_stuck and not self.is_on_trial

    def _fits_after_search(self, topic: TopicKey, holding: Holding, span: int, now_ms: int) -> bool:
        """Return True if a topic with `span` more chunks is within its threshold, if necessary after a search."""
        if self._is_within(topic, holding, span):
            return True
        return self._search(holding, now_ms) and self._is_within(topic, holding, span)

    def _is_within(self, topic: TopicKey, holding: Holding, span: int) -> bool:
        """Return True if a topic with `span` more chunks is within its threshold."""
        chunks = holding.chunk_count + span
        # The limit within the reserve is checked first, because it applies whatever `alpha` is.
        if not holding.chunk_count or chunks * RESERVE_ALPHA_DIVISOR <= self._pool.own_free_count - span:
            return True  # the usual case, decided without a count of the chunks in unclaimed shares
        free = self._pool.free_count - span
        if chunks * RESERVE_ALPHA_DIVISOR <= free:
            return True
        if holding.alpha is None:
            holding.alpha = self._alpha_of(self._name(topic))
        reserve = self._pool.capacity // RESERVE_DIVISOR
        return not holding.alpha or chunks <= holding.alpha * (free - reserve)

    def _name(self, topic: TopicKey) -> bytes:
        if isinstance(topic, bytes):
            return topic
        try:
            return self._topics.name_of(topic)
        except KeyError:  # the router has removed the topic from the table
            return b""

    def _search(self, holding: Holding, now_ms: int) -> bool:
        """Free settled chunks, with a bounded number of inspections; return True if a chunk became free."""
        has_freed_own = self._search_own(holding, now_ms)
        return self._search_oldest(now_ms) or has_freed_own

    def _search_own(self, holding: Holding, now_ms: int) -> bool:
        """Inspect some of the topic's spans and free the settled ones; spans take turns from search to search."""
        if now_ms < holding.pause.ends_ms:
            return False
        inspected = list(islice(holding.spans, INSPECTIONS_PER_SEARCH))
        for chunk in inspected:
            holding.spans.move_to_end(chunk)
        before = self._pool.free_count
        self._pool.reclaim_settled(inspected)
        has_freed = self._pool.free_count > before
        max_pause_ms = max(MAX_SEARCH_PAUSE_MS, self._pool.holdings.max_inspections // INSPECTIONS_PER_MS)
        holding.pause.record_search(now_ms, has_freed=has_freed, max_pause_ms=max_pause_ms)
        return has_freed

    def _search_oldest(self, now_ms: int) -> bool:
        """Inspect the oldest chunks of all topics and free the settled ones; all topics share one pause."""
        if now_ms < self._pause.ends_ms:
            return False
        before = self._pool.free_count
        self._pool.reclaim(target_free=before + INSPECTIONS_PER_SEARCH)  # so that a search frees a limited number
        has_freed = self._pool.free_count > before
        self._pause.record_search(now_ms, has_freed=has_freed)
        return has_freed
