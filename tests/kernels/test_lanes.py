"""Lanes: each message is in the slab once and in order, for any division into batches and a crash at any store."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bruce_mp.errors import SlabError
from bruce_mp.kernels import Lanes
from bruce_mp.kernels.closed_runs import MAX_CLOSED_BYTES
from bruce_mp.kernels.pure.lane import LaneHeader
from bruce_mp.slab import layout as lay
from bruce_mp.slab.chunks import chunk_headers
from bruce_mp.slab.file import Geometry
from bruce_mp.slab.handover_tickets import HandoverTickets
from bruce_mp.slab.layout import ChunkState, RunState
from bruce_mp.slab.recovery import sweep
from bruce_mp.slab.runs import Segment, read_run
from bruce_mp.slab.tables import TopicTable
from support.examples import examples
from support.lane_checks import Message, check_runs, expected, records, send, slab_topic
from support.slabs import CAPACITY, INPUT_ROW, SMALL, Input, contents, datagram, new_slab, set_state

if TYPE_CHECKING:
    from bruce_mp.slab.file import Slab

TOPICS = [(b"t1", 3), (b"t2", 1)]

messages = st.tuples(
    st.sampled_from([b"t1", b"t2", b"new", b"x" * 300]),
    st.one_of(st.binary(max_size=40), st.integers(0, 3700).map(bytes)),
    st.binary(max_size=5),
    st.none() | st.integers(0, 2**32 - 1),
)


@examples(30)
@given(
    batches=st.lists(st.lists(messages, min_size=1, max_size=8), min_size=1, max_size=5),
    linger_ms=st.sampled_from([0, 25]),
)
def test_messages_stay_in_order_within_runs(batches: list[list[Message]], linger_ms: int) -> None:
    with new_slab() as slab:
        sender = Input(slab, linger_ms=linger_ms, topics=TOPICS)
        segments: list[Segment] = []
        for batch in batches:
            send(sender, batch)
            segments += sender.lanes.drain_closed()
            sender.now_ms += 10
            sender.lanes.close_due(sender.now_ms)
        segments += sender.close_all()
        dropped = sender.row.counters[20]
        assert dropped == 0 or sender.pool.free_count < 3
        assert records(slab).items() <= expected(batches).items()
        assert len(records(slab)) == sum(map(len, batches)) - dropped
        check_runs(slab, segments, batches)
        assert sorted(segments) == sorted(found.segment for found in sweep(slab, {RunState.FILLED}))


def test_a_full_slab_drops_and_reports_messages_without_room(slab: Slab) -> None:
    sender = Input(slab, topics=TOPICS)
    sent = 0
    while True:
        ingested = sender.receive([datagram(b"t1", bytes(3000), timestamp=sent + i) for i in range(4)])
        sent += 4
        if ingested.no_room:
            break
    assert {(dropped.topic, dropped.timestamp < sent) for dropped in ingested.no_room} == {(b"t1", True)}
    assert len(contents(slab)) == sent - len(ingested.no_room) == 2 * slab.geometry.chunks
    for found in sweep(slab, {RunState.FILLED}):
        set_state(slab, [found.segment], RunState.DELIVERED)
    sender.lanes.drain_closed()
    sender.now_ms += 5
    assert not sender.receive([datagram(b"t1", bytes(3000))]).no_room


def test_a_large_message_shares_its_span_with_small_ones(slab: Slab) -> None:
    sender = Input(slab, topics=TOPICS)
    large = datagram(b"t1", bytes(range(256)) * 100)
    batch = memoryview(large + datagram(b"t1", b"small"))
    extents = [(0, len(large)), (len(large), len(batch) - len(large))]
    sender.lanes.ingest(batch, extents, 0, 0)
    [segment] = sender.close_all()
    assert segment.records == 2
    assert [span for _, state, span, _ in chunk_headers(slab) if state] == [4]
    assert records(slab)[0][0] == bytes(range(256)) * 100


@pytest.mark.parametrize(("size", "span"), [(CAPACITY, 1), (CAPACITY + 1, 2), (CAPACITY + lay.CHUNK_BYTES, 2)])
def test_a_chunk_is_filled_to_its_last_byte(slab: Slab, size: int, span: int) -> None:
    sender = Input(slab, topics=TOPICS)
    message = memoryview(datagram(b"t1", bytes(size)))
    assert not sender.lanes.ingest(message, [(0, len(message))], 0, 0).no_room
    assert [found for _, state, found, _ in chunk_headers(slab) if state] == [span]


def test_a_run_is_published_when_its_linger_ends(slab: Slab) -> None:
    sender = Input(slab, linger_ms=25, topics=TOPICS)
    sender.now_ms = 100
    send(sender, [(b"t1", b"a", b"", None)])
    assert sender.lanes.next_due_ms == 125
    sender.lanes.close_due(110)
    assert sender.lanes.drain_closed() == []
    sender.lanes.close_due(125)
    assert [segment.records for segment in sender.lanes.drain_closed()] == [1]


def test_long_lingering_runs_may_be_published_slightly_early(slab: Slab) -> None:
    sender = Input(slab, linger_ms=250, topics=TOPICS)
    send(sender, [(b"t1", b"a", b"", None)])
    leeway = sender.lanes.leeway_ms
    assert 0 < leeway < 25
    assert sender.lanes.next_due_ms == 250 - leeway
    sender.lanes.close_due(250 - leeway)
    assert [segment.records for segment in sender.lanes.drain_closed()] == [1]


def test_a_short_lingering_run_is_published_exactly_on_time(slab: Slab) -> None:
    sender = Input(slab, linger_ms=250, topics=TOPICS)
    sender.lanes.apply_lingers(lambda topic: 250 if topic == b"t1" else 20)
    send(sender, [(b"t1", b"a", b"", None), (b"t2", b"a", b"", None)])
    assert sender.lanes.leeway_ms == 0
    assert sender.lanes.next_due_ms == 20
    sender.lanes.apply_lingers(lambda _: 250)
    assert sender.lanes.leeway_ms > 0


def test_a_run_that_is_open_keeps_its_time_when_lingers_change(slab: Slab) -> None:
    sender = Input(slab, linger_ms=250, topics=TOPICS)
    send(sender, [(b"t1", b"a", b"", None)])
    sender.lanes.apply_lingers(lambda _: 0)
    send(sender, [(b"t1", b"b", b"", None)])
    assert sender.lanes.drain_closed() == []
    sender.lanes.close_due(1 + 250)
    send(sender, [(b"t1", b"c", b"", None)])
    assert [segment.records for segment in sender.lanes.drain_closed()] == [2, 1]


def test_runs_of_all_topics_are_due_on_one_tick(slab: Slab) -> None:
    sender = Input(slab, linger_ms=100, topics=TOPICS)
    for now_ms, topic in ((1000, b"t1"), (1040, b"t2"), (1090, b"t1")):
        sender.now_ms = now_ms
        send(sender, [(topic, b"a", b"", None)])
    sender.lanes.close_due(1100 - sender.lanes.leeway_ms)
    assert [segment.records for segment in sender.lanes.drain_ready(1100)] == [2, 1]
    sender.now_ms = 1100 - sender.lanes.leeway_ms  # the tick has passed, if a little early
    send(sender, [(b"t1", b"a", b"", None)])
    assert sender.lanes.next_due_ms == 1200 - sender.lanes.leeway_ms


def test_a_run_closed_by_a_full_chunk_is_named_with_the_others_of_its_tick(slab: Slab) -> None:
    sender = Input(slab, linger_ms=100, topics=TOPICS)
    sender.now_ms = 1000
    for _ in range(3):
        send(sender, [(b"t1", bytes(2900), b"", None)])
    assert sender.lanes.drain_ready(1090) == []
    sender.lanes.close_due(1100)
    assert [segment.records for segment in sender.lanes.drain_ready(1100)] == [2, 1]


def test_a_full_run_is_named_by_its_tick_when_no_message_follows(slab: Slab) -> None:
    sender = Input(slab, linger_ms=100, topics=TOPICS)
    sender.now_ms = 1000
    for _ in range(3):
        send(sender, [(b"t1", bytes(2900), b"", None)])
    assert sender.lanes.publish_ms == 1100
    assert sender.lanes.next_due_ms is not None
    assert sender.lanes.next_due_ms <= 1100


def test_many_closed_bytes_wait_for_no_tick(slab: Slab) -> None:
    sender = Input(slab, linger_ms=100, topics=TOPICS)
    sender.now_ms = 1000
    most = min(MAX_CLOSED_BYTES, slab.geometry.chunks * lay.CHUNK_BYTES // 16)
    for _ in range(most // 2900 + 4):
        send(sender, [(b"t1", bytes(2900), b"", None)])
    assert sum(segment.payload for segment in sender.lanes.drain_ready(1001)) >= most


def test_empty_messages_fill_the_bound_on_closed_bytes_by_their_memory(slab: Slab) -> None:
    sender = Input(slab, linger_ms=100, topics=TOPICS)
    sender.now_ms = 1000
    most = min(MAX_CLOSED_BYTES, slab.geometry.chunks * lay.CHUNK_BYTES // 16)
    for _ in range(most // lay.RECORD_HEADER + lay.CHUNK_BYTES // lay.RECORD_HEADER):
        send(sender, [(b"t1", b"", b"", None)])
    assert sender.lanes.publish_ms == 0


class Withheld(HandoverTickets):
    """A ticket office that hands nothing over."""

    def hand_over(self, run_at: int) -> None:
        pass


def test_withheld_runs_are_not_published_when_due(slab: Slab) -> None:
    sender = Input(slab, topics=TOPICS)
    sender.lanes = Lanes(slab, sender.pool, TopicTable(slab), lambda _: 25, Withheld(slab, INPUT_ROW))
    send(sender, [(b"t1", b"a", b"", None), (b"new", b"b", b"", None)])
    sender.lanes.close_due(1 + 25)
    closed = sender.lanes.drain_closed()
    assert [read_run(slab, segment.chunk, segment.run).state for segment in closed] == [RunState.OPEN, RunState.OPEN]


@pytest.mark.parametrize("linger_ms", [0, 25])
@pytest.mark.parametrize("topic", [b"t1", b"new"])
def test_an_idle_lane_releases_its_chunk_when_its_messages_are_settled(
    slab: Slab, linger_ms: int, topic: bytes
) -> None:
    sender = Input(slab, linger_ms=linger_ms, topics=TOPICS)
    send(sender, [(topic, b"a", b"", None)])
    for _ in range(5):
        when = sender.lanes.next_due_ms
        assert when is not None
        sender.lanes.close_due(when)
    assert ChunkState.OPEN in {state for _, state, _, _ in chunk_headers(slab)}
    set_state(slab, sender.lanes.drain_closed(), RunState.DELIVERED)
    due: list[int] = []
    while (when := sender.lanes.next_due_ms) is not None:
        due.append(when)
        sender.lanes.close_due(when)
        assert len(due) <= 3
    assert {state for _, state, _, _ in chunk_headers(slab)} == {ChunkState.FREE, ChunkState.SEALED}


def test_a_topic_that_gets_a_number_keeps_its_order(slab: Slab) -> None:
    sender = Input(slab)
    send(sender, [(b"t1", b"1", b"", None)])
    TopicTable(slab).add(b"t1", 2)
    send(sender, [(b"t1", b"2", b"", None), (b"t1", b"3", b"", None)])
    segments = sender.close_all()
    assert [slab_topic(slab, segment) for segment in segments] == [b"t1", b"t1"]
    assert [read_run(slab, segment.chunk, segment.run).topic for segment in segments] == [0, 1]


def test_keys_keep_their_order_when_a_topic_gets_partitions(slab: Slab) -> None:
    sender = Input(slab, topics=[(b"t1", 2)])
    batches: list[list[Message]] = [[(b"t1", bytes([i]), b"", 5)] for i in range(3)]
    send(sender, batches[0])
    TopicTable(slab).add(b"t1", 3)
    send(sender, batches[1])
    send(sender, batches[2])
    segments = sender.close_all()
    counts = [read_run(slab, segment.chunk, segment.run).partition_count for segment in segments]
    assert counts == [2, 3]
    check_runs(slab, segments, batches)


def test_a_partition_count_applies_only_after_the_version_changes(slab: Slab) -> None:
    """The router stores the number, then the version: a batch in between must not open a second lane for a key."""
    sender = Input(slab, topics=[(b"t1", 2)])
    send(sender, [(b"t1", b"1", b"", 5)])
    slab.words[(slab.geometry.topics_at + lay.TOPIC_ENTRY + lay.TOPIC_PARTITIONS) >> 2] = 3
    send(sender, [(b"t1", b"2", b"", 5)])
    [segment] = sender.close_all()
    assert segment.records == 2


def test_lanes_keep_their_chunks_when_another_topic_gets_a_number(slab: Slab) -> None:
    sender = Input(slab, linger_ms=0, topics=TOPICS)
    chunks = set()
    for number in range(10):
        send(sender, [(b"t1", b"x", b"", None), (b"t2", b"y", b"", 1)])
        TopicTable(slab).add(b"new-%d" % number, 1)
        chunks |= {segment.chunk for segment in sender.lanes.drain_closed()}
    assert len(chunks) == 2


def test_runs_of_shared_lanes_store_the_partition_count_that_split_them(slab: Slab) -> None:
    sender = Input(slab, topics=[(b"t1", 6)])
    send(sender, [(b"t1", b"x", b"", key) for key in range(12)])
    runs = [read_run(slab, segment.chunk, segment.run) for segment in sender.close_all()]
    assert sorted(run.partition_index for run in runs) == [-1, -1, 0, 1, 2, 3]
    assert {run.partition_count for run in runs} == {6}


def test_runs_of_topics_without_a_number_store_no_partition_count(slab: Slab) -> None:
    sender = Input(slab)
    send(sender, [(b"t1", b"x", b"", key) for key in range(12)])
    [segment] = sender.close_all()
    assert read_run(slab, segment.chunk, segment.run).partition_count == 0


def test_topics_without_numbers_are_spread_over_shared_lanes() -> None:
    with new_slab(Geometry(chunks=256, topics=16, partitions=16, landing_slots=16, landing_slot_size=4096)) as slab:
        sender = Input(slab)
        names = [b"t%d" % number for number in range(16)]
        for _ in range(3):
            send(sender, [(name, b"x", b"", None) for name in names])
        segments = sender.close_all()
        chunks = {name: {part.chunk for part in segments if slab_topic(slab, part) == name} for name in names}
        assert all(len(found) == 1 for found in chunks.values())
        assert len(set.union(*chunks.values())) == slab.geometry.chunks // 64


def test_topics_share_a_lane_when_lanes_run_out(slab: Slab) -> None:
    names = [b"t%d" % number for number in range(8)]
    sender = Input(slab, topics=[(name, 1) for name in names])
    send(sender, [(name, b"x", b"", None) for name in names])
    shared = sender.lanes.drain_closed()
    assert len(shared) == 8 - slab.geometry.chunks // 4
    assert len({segment.chunk for segment in shared}) == 1
    assert {slab_topic(slab, segment) for segment in [*shared, *sender.close_all()]} == set(names)


# --- spans for large runs ---------------------------------------------------------------------------------------------
def spans_in_use(slab: Slab) -> list[int]:
    return [span for _, state, span, _ in chunk_headers(slab) if state is not ChunkState.FREE]


def test_a_busy_lane_allocates_longer_spans() -> None:
    with new_slab(replace(SMALL, chunks=4096)) as slab:
        sender = Input(slab, linger_ms=25, topics=TOPICS)
        value = bytes(1500)
        for _ in range(16):
            sender.receive([datagram(b"t1", value)] * 8)
        segments = sender.close_all()
        assert spans_in_use(slab) == [1, 2, 4, 8, 8, 8]
        assert [segment.records for segment in segments] == [5, 10, 21, 42, 42, 8]
        assert len(contents(slab)) == 16 * 8


@pytest.mark.parametrize(("messages_a_run", "span"), [(3, 2), (2, 1)], ids=["in the second run", "in the third"])
def test_a_span_that_is_full_in_few_runs_is_followed_by_a_longer_one(messages_a_run: int, span: int) -> None:
    with new_slab(replace(SMALL, chunks=4096)) as slab:
        sender = Input(slab, linger_ms=25, topics=TOPICS)
        for _ in range(3):
            sender.receive([datagram(b"t1", bytes(1500))] * messages_a_run)
            if spans_in_use(slab) != [1]:
                break
            sender.now_ms += 30
            sender.lanes.close_due(sender.now_ms)
        assert spans_in_use(slab) == [1, span]


@pytest.mark.parametrize(("free_percent", "span"), [(11, 2), (9, 1)])
def test_a_busy_lane_leaves_a_tenth_of_the_chunks_free(free_percent: int, span: int) -> None:
    with new_slab(replace(SMALL, chunks=4096)) as slab:
        sender = Input(slab, linger_ms=25, topics=TOPICS)
        while sender.pool.free_count > 4096 * free_percent // 100:
            sender.pool.allocate(8, sender.now_ms)
        in_use = spans_in_use(slab)
        sender.receive([datagram(b"t1", bytes(1500))] * 8)
        assert spans_in_use(slab) == [*in_use, 1, span]


def test_a_lane_with_short_runs_returns_to_single_chunks() -> None:
    with new_slab(replace(SMALL, chunks=4096)) as slab:
        sender = Input(slab, linger_ms=25, topics=TOPICS)
        for _ in range(6):
            sender.receive([datagram(b"t1", bytes(1500))] * 8)
        assert spans_in_use(slab)[-1] == 8
        for _ in range(60):
            sender.receive([datagram(b"t1", bytes(1500))])
            sender.now_ms += 30
            sender.lanes.close_due(sender.now_ms)
        assert spans_in_use(slab)[-1] == 1


def test_small_messages_after_a_large_one_get_a_short_span() -> None:
    with new_slab(replace(SMALL, chunks=1024, landing_slot_size=64_000)) as slab:
        sender = Input(slab, linger_ms=25, topics=TOPICS)
        for size in (63_000, 3000):
            sender.receive([datagram(b"t1", bytes(size))])
            sender.now_ms += 30
            sender.lanes.close_due(sender.now_ms)
        assert spans_in_use(slab) == [8, 2]


def test_a_short_span_is_allocated_when_a_long_one_finds_no_room() -> None:
    with new_slab(replace(SMALL, chunks=1024)) as slab:
        sender = Input(slab, linger_ms=25, topics=TOPICS)
        sent = 0
        while not sender.receive([datagram(b"t1", bytes(3000))]).no_room:
            sent += 1
        assert set(spans_in_use(slab)) == {1, 2}
        assert sum(spans_in_use(slab)) == 1024
        assert len(contents(slab)) == sent


def test_keys_in_the_shared_lane_are_never_stored_under_another_topic(slab: Slab) -> None:
    """The one shared lane serves a topic for the time of one group only."""
    names = [b"t1", b"t2"]
    sender = Input(slab, topics=[(name, 8) for name in names])
    for _ in range(3):
        send(sender, [(name, name, b"", key) for name in names for key in range(8)])
    sender.close_all()
    table = TopicTable(slab)
    found = contents(slab)
    assert len(found) == 48
    assert all(table.name_of(each.topic) == each.value for each in found)


@pytest.mark.parametrize(("chunk", "error"), [(-1, SlabError), (SMALL.chunks, SlabError), (None, TypeError)])
def test_a_lane_refuses_a_chunk_that_the_slab_does_not_have(
    slab: Slab, variant: str, chunk: Any, error: type[Exception]
) -> None:
    lane = import_module(f"bruce_mp.kernels.{variant}.lane").Lane(slab, LaneHeader(1, b"", 0, -1, 0))
    with pytest.raises(error):
        lane.use_chunk(chunk, 1)
    slab.close()  # no buffer is left, which would prevent this
