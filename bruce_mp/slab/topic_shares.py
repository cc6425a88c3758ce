"""The dynamic threshold of topics: an upper bound on one topic's part of an input's memory.

The rule is that of shared-memory switches (Choudhury and Hahne, "Dynamic queue length thresholds for shared-memory
packet switches", 1998): a topic may hold at most `alpha` times the free memory.  A single stuck topic then fills `alpha
/ (1 + alpha)` of the memory.  However many are stuck, a part stays free.

That part shrinks with each stuck topic, so the last eighth of the memory is a reserve: within it a topic may hold at
most a quarter of the free memory.  A topic that holds nothing gets one span of any size that is free, because a large
message would otherwise wait for ever in an empty slab.

Chunks are counted when a lane gets them and when the pool reclaims them: constant work for each chunk, none for each
message.  The pool reclaims lazily.  So it refuses a topic only after a bounded inspection of the topic's oldest chunks
and the oldest of all.
"""

from __future__ import annotations

from collections import OrderedDict
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

from bruce_mp.errors import SlabError
from bruce_mp.slab import layout as lay
from bruce_mp.slab.layout import State
from bruce_mp.slab.runs import name_of, read_run

if TYPE_CHECKING:
    from collections.abc import Callable

    from bruce_mp.slab.chunks import ChunkPool
    from bruce_mp.slab.file import Slab
    from bruce_mp.slab.tables import TopicTable

__all__ = ["Holding", "Holdings", "TopicKey", "TopicShares", "topic_of_chunk"]

TopicKey = int | bytes
"""The number of a topic, or the name of one that the router has not numbered."""

RESERVE_PART: Final = 8
"""The reserve is an input's capacity divided by this number."""
RESERVE_DIVISOR: Final = 4
"""Within the reserve a topic may hold the free memory divided by this number."""
LOOKS_PER_SWEEP: Final = 256
PATIENCE_MS: Final = 1000
FIRST_PAUSE_MS: Final = 5
LONGEST_PAUSE_MS: Final = 80
"""Pauses after sweeps that free nothing; they double up to this value, so that a stuck topic costs little."""


class Holding:
    """The chunks that one topic holds, with the span of each, in order of their last inspection."""

    __slots__ = ("alpha", "chunks", "freed", "held", "pause_ms", "swept_until_ms")

    def __init__(self) -> None:
        self.chunks: OrderedDict[int, int] = OrderedDict()
        self.held = self.freed = 0
        self.alpha: int | None = None
        """None before the first use, and after a change of the configuration."""
        self.pause_ms = FIRST_PAUSE_MS
        self.swept_until_ms = 0


class Holdings:
    """The chunks of an input by topic.  A topic that holds none is not listed."""

    def __init__(self) -> None:
        self._by_topic: dict[TopicKey, Holding] = {}
        self._topics: dict[int, TopicKey] = {}
        self.freed = 0
        """Number of chunks of all topics that became free."""

    def of(self, topic: TopicKey) -> Holding:
        """Return the holding of a topic; without chunks, a new, unlisted one."""
        return self._by_topic.get(topic) or Holding()

    def listed(self) -> dict[TopicKey, Holding]:
        """Return all holdings by topic."""
        return self._by_topic

    def add(self, topic: TopicKey, holding: Holding, chunk: int, span: int) -> None:
        """Charge an allocated chunk to a topic; `holding` is `of(topic)`."""
        self._by_topic[topic] = holding
        holding.chunks[chunk] = span
        holding.held += span
        self._topics[chunk] = topic

    def remove(self, chunk: int) -> None:
        """Discharge a chunk that is free again; chunks without a topic are not listed."""
        topic = self._topics.pop(chunk, None)
        if topic is None:
            return
        holding = self._by_topic[topic]
        holding.held -= holding.chunks.pop(chunk)
        holding.freed += 1
        self.freed += 1
        if not holding.chunks:
            del self._by_topic[topic]

    def adopt(self, slab: Slab, chunk: int, span: int) -> None:
        """Charge a chunk of a predecessor or of a released attempt to the topic of its first run."""
        topic = topic_of_chunk(slab, chunk)
        if topic is not None:
            self.add(topic, self.of(topic), chunk, span)


def topic_of_chunk(slab: Slab, chunk: int) -> TopicKey | None:
    """Return the topic of a chunk's first run; None without a run, with damage or in a fenced attempt that is open."""
    at, words = slab.chunk_at(chunk), slab.words
    run_at = at + lay.CHUNK_HEADER
    if not words[(at + lay.CHUNK_RUNS) >> 2]:
        return None
    if words[(at + lay.CHUNK_ATTEMPT) >> 2] and words[run_at >> 2] & 0xFF == State.OPEN:
        return None
    if words[(run_at + lay.RUN_MAGIC_AT) >> 2] != lay.RUN_MAGIC:
        return None
    try:
        number = words[(run_at + lay.RUN_TOPIC) >> 2]
        return number or name_of(slab, chunk, lay.CHUNK_HEADER, read_run(slab, chunk, lay.CHUNK_HEADER))
    except SlabError:
        return None


class _Press(NamedTuple):
    """The start of a topic's time over its threshold, and the counts of freed chunks then: its own and all."""

    since_ms: int
    freed: int
    freed_in_all: int


class TopicShares:
    """Allocates chunks of a pool to topics, each of which holds no more than its threshold.

    `alpha_of` gives the factor of a topic by name; 0 = no threshold.

    Where the senders of all topics share a socket that `blocks`, a topic over its threshold may only be slower than its
    senders.  It gets its chunk, and the socket has to rest: see `must_rest`.  The topic is refused once it is stuck:
    none of its chunks becomes free for a second, while another topic holds nothing or frees chunks.  Where all topics
    are stuck the socket rests, and nothing is refused.
    """

    def __init__(self, pool: ChunkPool, topics: TopicTable, alpha_of: Callable[[bytes], int]) -> None:
        self._pool = pool
        self._topics = topics
        self._alpha_of = alpha_of
        self.blocks = False
        self._pressed: dict[TopicKey, _Press] = {}
        self.has_refused = False
        """True if the last `allocate` failed because of the topic's threshold, not for want of memory."""

    def apply_config(self, alpha_of: Callable[[bytes], int]) -> None:
        """Apply changed factors."""
        self._alpha_of = alpha_of
        for holding in self._pool.holdings.listed().values():
            holding.alpha = None
            holding.swept_until_ms = 0

    def allocate(self, topic: TopicKey, span: int, now_ms: int) -> int | None:
        """Return the first of `span` neighbouring chunks for a topic, opened and empty; None when it gets none."""
        holding = self._pool.holdings.of(topic)
        self.has_refused = not self._is_allowed(topic, holding, span, now_ms) and not self._presses(topic, now_ms)
        chunk = None if self.has_refused else self._pool.allocate(span, now_ms)
        if chunk is not None:
            self._pool.holdings.add(topic, holding, chunk, span)
        return chunk

    def allows(self, topic: TopicKey, span: int, now_ms: int) -> bool:
        """Report if a topic with `span` more chunks is within its threshold."""
        return self._is_allowed(topic, self._pool.holdings.of(topic), span, now_ms)

    def may_grow(self, topic: TopicKey, span: int, now_ms: int) -> bool:
        """Report if a refused topic may resume, for a message of `span` chunks or a larger amount.

        A retry parses all waiting messages, so it is not worth less than half of the topic's holding.
        """
        holding = self._pool.holdings.of(topic)
        return self._is_allowed(topic, holding, min(span, 1 + holding.held // 2), now_ms)

    def must_rest(self, now_ms: int) -> bool:
        """Report if a topic is over its threshold without being stuck, so that the input should receive nothing."""
        for topic in list(self._pressed):
            if self._is_allowed(topic, self._pool.holdings.of(topic), 1, now_ms):
                del self._pressed[topic]
        return any(self._presses(topic, now_ms) for topic in list(self._pressed))

    def _presses(self, topic: TopicKey, now_ms: int) -> bool:
        """Record a topic over its threshold; False if it is stuck, or if no other topic waits because of it."""
        if not self.blocks:
            return False
        holdings, press = self._pool.holdings, self._pressed.get(topic)
        freed = holdings.of(topic).freed
        if press is None or press.freed != freed:
            press = self._pressed[topic] = _Press(now_ms, freed, holdings.freed)
        if now_ms - press.since_ms < PATIENCE_MS:
            return True
        return holdings.freed == press.freed_in_all and not self._is_any_idle()

    def _is_any_idle(self) -> bool:
        """Report if a numbered topic holds no chunks, so all its messages are delivered."""
        return sum(isinstance(topic, int) for topic in self._pool.holdings.listed()) < len(self._topics)

    def _is_allowed(self, topic: TopicKey, holding: Holding, span: int, now_ms: int) -> bool:
        if self._is_within(topic, holding, span):
            return True
        return self._sweep(holding, now_ms) and self._is_within(topic, holding, span)

    def _is_within(self, topic: TopicKey, holding: Holding, span: int) -> bool:
        """Compare what a topic would hold with its threshold."""
        held = holding.held + span
        if not holding.held or held * RESERVE_DIVISOR <= self._pool.own_free - span:
            return True  # quick: counts no obtainable shares
        free = self._pool.free_count - span
        if held * RESERVE_DIVISOR <= free:
            return True
        if holding.alpha is None:
            holding.alpha = self._alpha_of(self._name(topic))
        return not holding.alpha or held <= holding.alpha * (free - self._pool.capacity // RESERVE_PART)

    def _name(self, topic: TopicKey) -> bytes:
        if isinstance(topic, bytes):
            return topic
        try:
            return self._topics.name_of(topic)
        except KeyError:  # the router has removed it from the table
            return b""

    def _sweep(self, holding: Holding, now_ms: int) -> bool:
        """Reclaim settled chunks before a refusal, with a bounded number of inspections; False if none became free."""
        if now_ms < holding.swept_until_ms:
            return False
        some = list(islice(holding.chunks, LOOKS_PER_SWEEP))
        for chunk in some:
            holding.chunks.move_to_end(chunk)
        before = self._pool.free_count
        self._pool.reclaim_among(some)
        self._pool.reclaim(self._pool.free_count + LOOKS_PER_SWEEP)
        if self._pool.free_count > before:
            holding.pause_ms, holding.swept_until_ms = FIRST_PAUSE_MS, 0
            return True
        holding.swept_until_ms = now_ms + holding.pause_ms
        holding.pause_ms = min(2 * holding.pause_ms, LONGEST_PAUSE_MS)
        return False
