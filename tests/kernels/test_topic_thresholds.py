"""The dynamic threshold of topics: the limit of one topic, its cost, and the memory that stays free for others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bruce_mp.errors import DiscardReason
from bruce_mp.kernels import ChunkPool, Lanes
from bruce_mp.slab import layout as lay
from bruce_mp.slab.chunks import MAX_INSPECTIONS_PER_RECLAIM, used_chunk_headers
from bruce_mp.slab.file import Geometry
from bruce_mp.slab.holdings import MAX_SEARCH_PAUSE_MS, topic_of_chunk
from bruce_mp.slab.layout import RunState
from bruce_mp.slab.recovery import sweep
from bruce_mp.slab.runs import read_run, segment_records
from bruce_mp.slab.tables import TopicTable
from bruce_mp.slab.topic_thresholds import INSPECTIONS_PER_MS, TOPIC_STUCK_AFTER_MS, TopicThresholds
from support.examples import examples
from support.slabs import INPUT_ROW, datagram, new_slab, set_state

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bruce_mp.kernels import NoRoom
    from bruce_mp.slab.file import Slab
    from bruce_mp.slab.holdings import TopicKey
    from bruce_mp.slab.runs import Segment

CHUNKS: Final = 512
GEOMETRY: Final = Geometry(chunks=CHUNKS, topics=512, partitions=512, landing_slots=16, landing_slot_size=4096)
TOPICS: Final = [b"t%d" % number for number in range(300)]
LARGE: Final = bytes(5000)
"""Two such messages do not fit in a chunk."""


class Sender:
    """An input without sockets and with thresholds of topics."""

    def __init__(self, slab: Slab, alpha: int = 16, topics: Sequence[bytes] = TOPICS) -> None:
        self.slab = slab
        self.alpha = alpha
        self.table = TopicTable(slab)
        for topic in topics:
            self.table.add(topic, 1)
        self.pool = ChunkPool(slab, INPUT_ROW)
        self.thresholds = TopicThresholds(self.pool, self.table, lambda _: self.alpha)
        self.lanes = Lanes(slab, self.pool, self.table, lambda _: 1000, thresholds=self.thresholds)
        self.now_ms = 1
        self.number = 0
        self.undelivered: dict[bytes, list[Segment]] = {}

    def send(self, *messages: tuple[bytes, bytes], keyed: bool = False) -> list[NoRoom]:
        """Ingest messages, pairs of topic and value, and return those without room."""
        key = 7 if keyed else None
        encoded = [datagram(topic, value, partition_key=key) for topic, value in messages]
        extents, at = [], 0
        for each in encoded:
            extents.append((at, len(each)))
            at += len(each)
        ingested = self.lanes.ingest(memoryview(b"".join(encoded)), extents, self.number, self.now_ms)
        self.number += len(encoded)
        self.drain()
        return ingested.no_room

    def drain(self) -> None:
        """Take the closed runs from the lanes."""
        for segment in self.lanes.drain_closed():
            topic = topic_of_chunk(self.slab, segment.chunk)
            name = topic if isinstance(topic, bytes) else self.table.name_of(topic or 0)
            self.undelivered.setdefault(name, []).append(segment)

    def stick(self, topics: Sequence[bytes], rounds: int) -> list[NoRoom]:
        """Send undelivered messages of topics in turn; return those of the last round that found no room."""
        dropped: list[NoRoom] = []
        for _ in range(rounds):
            dropped = [each for topic in topics for each in self.send((topic, LARGE))]
            self.now_ms += 1
        return dropped

    def deliver(self, *topics: bytes) -> None:
        """Settle the held messages of these topics."""
        self.lanes.close_runs()
        self.drain()
        for topic in topics:
            set_state(self.slab, self.undelivered.pop(topic, []), RunState.DELIVERED)

    def held(self) -> dict[object, int]:
        """Return the counted chunks by topic."""
        return {topic: holding.chunk_count for topic, holding in self.pool.holdings.by_topic.items()}


def counted(slab: Slab) -> dict[object, int]:
    """Return the chunks in the slab by topic."""
    found: dict[object, int] = {}
    for chunk, _, span, _ in used_chunk_headers(slab):
        topic = topic_of_chunk(slab, chunk)
        found[topic] = found.get(topic, 0) + span
    return found


@pytest.mark.parametrize(
    ("stuck", "least", "most"), [(1, 0.80, 0.85), (3, 0.84, 0.88), (30, 0.86, 0.90), (60, 0.91, 0.96)]
)
def test_stuck_topics_fill_their_shares_and_leave_room(stuck: int, least: float, most: float) -> None:
    with new_slab(GEOMETRY) as slab:
        sender = Sender(slab)
        dropped = sender.stick(TOPICS[:stuck], 2 * CHUNKS // stuck)
        assert {(each.topic, each.reason) for each in dropped} == {
            (topic, DiscardReason.TOPIC_OVER_SHARE) for topic in TOPICS[:stuck]
        }
        assert least < 1 - sender.pool.free_count / CHUNKS < most
        healthy = TOPICS[-1]
        for _ in range(40):
            assert sender.send((healthy, LARGE), (healthy, LARGE)) == []
            sender.deliver(healthy)
            sender.now_ms += 1


def test_one_topic_fills_the_slab_without_a_threshold() -> None:
    with new_slab(GEOMETRY) as slab:
        sender = Sender(slab, alpha=0)
        (dropped,) = sender.stick(TOPICS[:1], CHUNKS + 10)
        assert (sender.pool.free_count, dropped.reason) == (0, DiscardReason.NO_MEM)


@pytest.mark.parametrize("size", [100, 5000, 30_000])
def test_a_fast_topic_is_never_limited_by_chunks_that_are_delivered(size: int) -> None:
    with new_slab(GEOMETRY) as slab:
        sender = Sender(slab)
        sender.stick(TOPICS[:3], 200)
        for _ in range(100):
            assert sender.send((b"t99", bytes(size))) == []
            sender.deliver(b"t99")


def test_names_without_numbers_have_thresholds_of_their_own() -> None:
    with new_slab(GEOMETRY) as slab:
        sender = Sender(slab, topics=())
        stuck = [b"unknown-%d" % number for number in range(200)]  # more than there are shared lanes
        sender.stick(stuck, 12)
        assert sender.pool.free_count > CHUNKS // 60
        for number in range(40):
            assert sender.send((b"new-%d" % number, b"first")) == []
            sender.deliver(b"new-%d" % number)


def test_a_refused_topic_is_admitted_after_its_delivery() -> None:
    with new_slab(GEOMETRY) as slab:
        sender = Sender(slab)
        assert sender.stick(TOPICS[:1], CHUNKS)
        sender.deliver(TOPICS[0])
        sender.now_ms += MAX_SEARCH_PAUSE_MS
        assert sender.send((TOPICS[0], LARGE)) == []


@pytest.mark.parametrize("caller_retries", [False, True])
def test_messages_after_a_refused_one_are_refused_when_order_is_kept(caller_retries: bool) -> None:
    with new_slab(GEOMETRY) as slab:
        sender = Sender(slab)
        sender.lanes.caller_retries = caller_retries
        sender.stick(TOPICS[:1], CHUNKS)
        sender.stick(TOPICS[1:2], 12)
        span = bytes(2_000_000)
        dropped = sender.send((TOPICS[1], span), (TOPICS[1], b"small"), (TOPICS[2], b"other"))
        assert [each.arrival for each in dropped] == [sender.number - 3, sender.number - 2][: 1 + caller_retries]


def test_a_refused_batch_requests_one_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    with new_slab(GEOMETRY) as slab:
        sender = Sender(slab)
        sender.stick(TOPICS[:1], CHUNKS)
        asked: list[int] = []
        allocate = sender.thresholds.allocate

        def counted_allocate(topic: TopicKey, span: int, now_ms: int) -> int | None:
            asked.append(span)
            return allocate(topic, span, now_ms)

        monkeypatch.setattr(sender.thresholds, "allocate", counted_allocate)
        assert len(sender.send(*[(TOPICS[0], b"small")] * 400)) == 400
        assert len(asked) == 1


def test_a_batch_that_fits_in_a_chunk_gets_one_chunk() -> None:
    with new_slab(GEOMETRY) as slab:
        sender = Sender(slab)
        sender.stick(TOPICS[:1], CHUNKS)
        before = sender.pool.free_count
        assert sender.send(*[(TOPICS[1], b"small")] * 30) == []
        assert before - sender.pool.free_count == 1


def test_a_changed_factor_applies_immediately() -> None:
    with new_slab(GEOMETRY) as slab:
        sender = Sender(slab, alpha=1)
        sender.stick(TOPICS[:1], CHUNKS)
        before = sender.pool.free_count
        sender.thresholds.apply_config(lambda topic: 100 if topic == TOPICS[0] else 1)
        sender.stick(TOPICS[:1], CHUNKS)
        assert (before > 0.5 * CHUNKS, sender.pool.free_count < 0.15 * CHUNKS) == (True, True)


@examples(15)
@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from([b"t1", b"t2", b"t3", b"unknown", b"x" * 300]),
            st.integers(1, 30),
            st.sampled_from([10, 3000, 20_000]),
            st.booleans(),
            st.booleans(),
        ),
        max_size=25,
    )
)
def test_the_counts_are_those_of_the_slab_also_after_a_restart(
    steps: list[tuple[bytes, int, int, bool, bool]],
) -> None:
    geometry = Geometry(chunks=128, topics=16, partitions=16, landing_slots=16, landing_slot_size=4096)
    with new_slab(geometry) as slab:
        sender = Sender(slab, topics=(b"t1", b"t2", b"t3"))
        for topic, count, size, keyed, is_delivered in steps:
            sender.send(*[(topic, bytes(size))] * count, keyed=keyed)
            if is_delivered:
                sender.deliver(topic)
                sender.pool.reclaim_idle()
            sender.now_ms += 10
            assert sum(sender.held().values()) == sum(counted(slab).values())
            if topic in {b"t1", b"t2", b"t3"}:
                number = TopicTable(slab).number_of(topic)
                assert sender.held().get(number, 0) == counted(slab).get(number, 0)
        sender.lanes.close_all()
        sender.lanes.drain_closed()
        adopted = ChunkPool(slab, INPUT_ROW)
        assert {topic: each.chunk_count for topic, each in adopted.holdings.by_topic.items()} == counted(slab)


def pressed(slab: Slab, *topics: bytes) -> Sender:
    """Create an input with blocking senders and one topic over its threshold."""
    sender = Sender(slab, topics=topics)
    sender.thresholds.blocks = True
    sender.send(*[(topic, b"seen") for topic in topics[1:]])
    while not sender.thresholds.must_pause(sender.now_ms):
        assert sender.send((topics[0], LARGE)) == []
    return sender


@pytest.mark.parametrize("others", [[], [b"other"]])
def test_a_socket_paused_for_stuck_topics_tries_once_a_second(others: list[bytes]) -> None:
    with new_slab(GEOMETRY) as slab:
        sender = pressed(slab, b"stuck", *others)
        rests = []
        for _ in range(100):
            sender.now_ms += TOPIC_STUCK_AFTER_MS // 10
            rests.append(sender.thresholds.must_pause(sender.now_ms))
        assert rests[:9] == [True] * 9
        assert rests.count(False) == 10, "one a second"
        assert sender.thresholds.must_pause(sender.now_ms)
        assert not sender.thresholds.is_on_trial


def test_a_trial_discards_stuck_topics_and_admits_others() -> None:
    with new_slab(GEOMETRY) as slab:
        sender = pressed(slab, b"stuck")
        sender.now_ms += TOPIC_STUCK_AFTER_MS
        assert not sender.thresholds.must_pause(sender.now_ms)
        (dropped,) = sender.send((b"stuck", LARGE), (b"new", b"first"))
        assert (dropped.topic, dropped.reason) == (b"stuck", DiscardReason.TOPIC_OVER_SHARE)


def test_a_trial_admits_a_topic_newly_over_its_threshold() -> None:
    with new_slab(GEOMETRY) as slab:
        sender = pressed(slab, b"stuck", b"burst")
        sender.now_ms += TOPIC_STUCK_AFTER_MS
        assert not sender.thresholds.must_pause(sender.now_ms)
        assert sender.send(*[(b"burst", LARGE)] * 60) == []


def test_a_pause_is_short_while_other_topics_are_delivered() -> None:
    with new_slab(GEOMETRY) as slab:
        sender = pressed(slab, b"stuck", b"other")
        sender.deliver(b"other")
        sender.lanes.close_all()
        sender.lanes.drain_closed()
        sender.pool.reclaim_idle()
        assert sender.thresholds.must_pause(sender.now_ms)
        sender.now_ms += TOPIC_STUCK_AFTER_MS
        assert not sender.thresholds.must_pause(sender.now_ms)
        (dropped,) = sender.send((b"stuck", LARGE))
        assert dropped.reason is DiscardReason.TOPIC_OVER_SHARE


def test_a_socket_resumes_when_its_topic_is_delivered() -> None:
    with new_slab(GEOMETRY) as slab:
        sender = pressed(slab, b"slow", b"other")
        sender.deliver(b"slow")
        sender.now_ms += MAX_SEARCH_PAUSE_MS
        assert not sender.thresholds.must_pause(sender.now_ms)


@pytest.mark.parametrize("stuck", [1, 3])
@pytest.mark.parametrize("blocks", [False, True])
def test_a_keyed_topic_without_a_backlog_finds_room_for_each_partition(stuck: int, *, blocks: bool) -> None:
    partitions = 30
    with new_slab(GEOMETRY) as slab:
        sender = Sender(slab, topics=TOPICS[:stuck])
        sender.stick(TOPICS[:stuck], 2 * CHUNKS // stuck)
        sender.thresholds.blocks = blocks
        TopicTable(slab).add(b"keyed", partitions)
        for _ in range(10):
            encoded = [datagram(b"keyed", b"x", partition_key=key) for key in range(partitions)]
            size = len(encoded[0])
            extents = [(size * index, size) for index in range(partitions)]
            found = sender.lanes.ingest(memoryview(b"".join(encoded)), extents, sender.number, sender.now_ms)
            sender.number += partitions
            assert found.no_room == []
            sender.lanes.close_runs()
            sender.drain()
            assert sorted(keys_by_lane(slab, sender.undelivered[b"keyed"])) == [(key, key) for key in range(partitions)]
            sender.deliver(b"keyed")
            sender.now_ms += 100
            sender.lanes.close_due(sender.now_ms)
        assert not blocks or not sender.thresholds.must_pause(sender.now_ms)


def keys_by_lane(slab: Slab, runs: Sequence[Segment]) -> list[tuple[int, int]]:
    """Return partition index and key of the messages in runs."""
    return [
        (read_run(slab, segment.chunk, segment.run).partition_index, record.partition_key)
        for segment in runs
        for _, record in segment_records(slab, segment)
    ]


def test_lanes_lend_only_within_a_topic_and_keep_the_order_of_each_key() -> None:
    with new_slab(GEOMETRY) as slab:
        sender = Sender(slab, topics=TOPICS[:1])
        sender.stick(TOPICS[:1], CHUNKS)
        table = TopicTable(slab)
        table.add(b"keyed", 40)
        for number in range(600):
            message = datagram(b"keyed", b"%03d" % number, partition_key=number * 7 % 40)
            sender.lanes.ingest(memoryview(message), [(0, len(message))], 10_000 + number, sender.now_ms)
            sender.lanes.drain_closed()
        sender.lanes.close_runs()
        assert [found.segment for found in sweep(slab, {RunState.OPEN})] == []
        assert sender.held()[table.number_of(b"keyed")] == counted(slab)[table.number_of(b"keyed")] < 40
        by_key: dict[int, list[int]] = {}
        for found in sorted(sweep(slab, {RunState.FILLED}), key=lambda each: ticket_of(slab, each.segment)):
            for _, record in segment_records(slab, found.segment):
                if record.arrival >= 10_000:
                    by_key.setdefault(record.partition_key, []).append(record.arrival)
        assert sum(map(len, by_key.values())) > 500
        assert all(arrivals == sorted(arrivals) for arrivals in by_key.values())


def ticket_of(slab: Slab, segment: Segment) -> int:
    """Return the place of a run in the order of hand-over."""
    return slab.longs[(slab.chunk_at(segment.chunk) + segment.run + lay.RUN_TICKET) >> 3]


def test_chunks_of_a_name_are_reassigned_when_it_gets_a_number() -> None:
    with new_slab(GEOMETRY) as slab:
        sender = Sender(slab, topics=())
        sender.stick([b"late"], 20)
        held = sender.held()
        number = TopicTable(slab).add(b"late", 1)
        sender.send((b"other", b"x"))
        assert sender.held() == {number: held[b"late"], b"other": 1}
        adopted = ChunkPool(slab, INPUT_ROW)
        TopicThresholds(adopted, TopicTable(slab), lambda _: 16)
        assert set(adopted.holdings.by_topic) <= {number, b"other"}


def test_a_thousand_refusals_of_stuck_topics_inspect_few_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    with new_slab(GEOMETRY) as slab:
        sender = Sender(slab)
        stuck = TOPICS[:60]
        sender.stick(stuck, 2 * CHUNKS // len(stuck))
        inspections = 0
        reclaim, among = sender.pool.reclaim, sender.pool.reclaim_settled

        def counted_reclaim(target_free: int) -> None:
            nonlocal inspections
            inspections += MAX_INSPECTIONS_PER_RECLAIM
            reclaim(target_free)

        def counted_reclaim_settled(chunks: Sequence[int]) -> None:
            nonlocal inspections
            inspections += len(chunks)
            among(chunks)

        monkeypatch.setattr(sender.pool, "reclaim", counted_reclaim)
        monkeypatch.setattr(sender.pool, "reclaim_settled", counted_reclaim_settled)
        for _ in range(20):
            sender.now_ms += 50
            assert len(sender.send(*[(topic, LARGE) for topic in stuck])) == len(stuck)
        of_all_topics = 2 * MAX_INSPECTIONS_PER_RECLAIM * 1000 / MAX_SEARCH_PAUSE_MS
        assert 0 < inspections < 1000 * INSPECTIONS_PER_MS + of_all_topics
