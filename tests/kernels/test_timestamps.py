"""Timestamps of records: the client's within the window, and else the arrival time, counted where that is clamping."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bruce_mp.kernels import TimestampWindow, TopicReplacements
from bruce_mp.slab import landing_zone
from bruce_mp.slab.layout import RunState
from bruce_mp.slab.recovery import sweep
from bruce_mp.slab.runs import read_run, segment_records
from support.examples import examples
from support.slabs import Input, contents, datagram, new_slab, put_in_landing_zone

if TYPE_CHECKING:
    from bruce_mp.slab.file import Slab

NOW_MS: Final = 1_700_000_000_000
STEP_MS: Final = 12_345
ARRIVED_MS: Final = NOW_MS + STEP_MS
CLAMP: Final = TimestampWindow(3_600_000, 600_000, is_clamp=True)
ARRIVAL: Final = TimestampWindow(0, 0, is_clamp=False)
TOPICS: Final = [(b"t1", 3), (b"t2", 1)]
WRONG: Final = [
    0, -1, 12345, ARRIVED_MS // 1000, ARRIVED_MS * 1000, ARRIVED_MS - 2**32, ARRIVED_MS + 7_200_000,
    ARRIVED_MS - 3_600_001, ARRIVED_MS + 600_001, -(2**63), 2**63 - 1,
]  # fmt: skip
RIGHT: Final = [ARRIVED_MS, ARRIVED_MS - 1, ARRIVED_MS - 3_600_000, ARRIVED_MS + 600_000]

near = st.integers(ARRIVED_MS - 10**7, ARRIVED_MS + 10**7)
timestamps = st.sampled_from([*WRONG, *RIGHT]) | st.integers(-(2**63), 2**63 - 1) | near
windows = st.sampled_from([None, ARRIVAL, CLAMP]) | st.builds(
    TimestampWindow, st.integers(0, 2**31 - 1), st.integers(0, 86_400_000), st.booleans()
)
messages = st.tuples(st.sampled_from([b"t1", b"t2", b"new"]), timestamps, st.none() | st.integers(0, 2**32 - 1))


def an_input(slab: Slab, window: TimestampWindow | None) -> Input:
    sender = Input(slab, topics=TOPICS, windows=lambda _: window)
    sender.now_ms, sender.lanes.wall_offset_ms = NOW_MS, STEP_MS
    return sender


def stored(slab: Slab) -> dict[int, int]:
    """Return timestamps by arrival number."""
    return {content.arrival: content.timestamp for content in contents(slab)}


def kept(timestamp: int, window: TimestampWindow | None) -> bool:
    return window is None or -window.before_ms <= timestamp - ARRIVED_MS <= window.after_ms


@examples(50)
@given(sent=st.lists(messages, min_size=1, max_size=12), window=windows)
def test_a_timestamp_outside_the_window_is_replaced_by_the_arrival_time(
    sent: list[tuple[bytes, int, int | None]], window: TimestampWindow | None
) -> None:
    with new_slab() as slab:
        sender = an_input(slab, window)
        sender.receive([datagram(topic, b"v", b"", key, timestamp) for topic, timestamp, key in sent])
        replaced = sender.lanes.drain_replaced()
        sender.close_all()
        wanted = [each if kept(each, window) else ARRIVED_MS for _, each, _ in sent]
        assert stored(slab) == dict(enumerate(wanted))
        outside = [topic for topic, each, _ in sent if not kept(each, window)]
        counted = outside if window is not None and window.is_clamp else []
        assert {each.topic: each.message_count for each in replaced} == {
            topic: counted.count(topic) for topic in counted
        }
        for each in replaced:
            topic, timestamp, _ = sent[each.arrival]
            assert (topic, timestamp) == (each.topic, each.timestamp)
            assert not kept(timestamp, window)
        for found in sweep(slab, {RunState.FILLED}):
            run = read_run(slab, found.segment.chunk, found.segment.run)
            assert run.min_timestamp == min(record.timestamp for _, record in segment_records(slab, found.segment))


@pytest.mark.parametrize("landed", [False, True])
def test_both_ingest_functions_replace_timestamps(slab: Slab, landed: bool) -> None:
    sender = an_input(slab, CLAMP)
    put_in_landing_zone(slab, [datagram(b"t1", b"v", timestamp=each) for each in WRONG[:5]])
    if landed:
        sender.lanes.ingest_landed(5, 4096, NOW_MS)
    else:
        sender.lanes.ingest(slab.view, landing_zone.landed_extents(slab), sender.base, NOW_MS)
    assert sender.lanes.drain_replaced() == [TopicReplacements(b"t1", 0, 0, 5)]
    assert sender.lanes.drain_replaced() == []
    assert set(stored(slab).values()) == {ARRIVED_MS}


@pytest.mark.parametrize("keyed", [False, True])
def test_replaced_timestamps_are_counted_only_for_stored_messages(slab: Slab, keyed: bool) -> None:
    sender, sent, counted = an_input(slab, CLAMP), [], []
    for number in range(40 * slab.geometry.chunks):
        value = bytes((100, 3000, 9000)[number % 3])
        timestamp = ARRIVED_MS if number % 5 == 0 else number
        sent.append(timestamp)
        sender.receive([datagram(b"t1", value, b"", number if keyed else None, timestamp)])
        counted += sender.lanes.drain_replaced()
    sender.close_all()
    found = stored(slab)
    assert 0 < len(found) < len(sent)
    assert [each.arrival for each in counted] == [each for each in sorted(found) if sent[each] != ARRIVED_MS]
    assert all((each.timestamp, each.message_count) == (sent[each.arrival], 1) for each in counted)


@pytest.mark.parametrize("size", [3000, 9000])
def test_the_first_stored_message_represents_replaced_timestamps(slab: Slab, size: int) -> None:
    sender = an_input(slab, CLAMP)
    large, small = bytes(slab.geometry.chunks * 8192), bytes(size)
    batch = [datagram(b"t1", value, timestamp=number) for number, value in enumerate([large, small, small, large])]
    extents, at = [], 0
    for each in batch:
        extents.append((at, len(each)))
        at += len(each)
    found = sender.lanes.ingest(memoryview(b"".join(batch)), extents, 0, NOW_MS)
    assert [dropped.arrival for dropped in found.no_room] == [0, 3]
    assert sender.lanes.drain_replaced() == [TopicReplacements(b"t1", 1, 1, 2)]


@pytest.mark.parametrize(("window", "keeps"), [(CLAMP, True), (ARRIVAL, False), (None, True)])
def test_explicit_timestamps_are_marked_and_kept_unless_the_policy_is_arrival(
    slab: Slab, window: TimestampWindow | None, keeps: bool
) -> None:
    sender = an_input(slab, window)
    put_in_landing_zone(slab, [datagram(b"t1", b"v", timestamp=each) for each in WRONG[:5]])
    extents = landing_zone.landed_extents(slab)
    sender.lanes.ingest(slab.view, extents[:4], 0, NOW_MS, keeps_timestamps=True)
    sender.lanes.ingest(slab.view, extents[4:], 4, NOW_MS)
    (segment,) = sender.close_all()
    found = [record for _, record in segment_records(slab, segment)]
    assert [record.options for record in found] == [1, 1, 1, 1, 0]
    assert [record.timestamp for record in found[:4]] == (WRONG[:4] if keeps else [ARRIVED_MS] * 4)


def test_changed_windows_apply_to_known_topics(slab: Slab) -> None:
    sender = an_input(slab, None)
    for window in (None, CLAMP, None):
        sender.lanes.apply_windows({b"t1": window}.get)
        sender.receive([datagram(topic, b"v", timestamp=5) for topic in (b"t1", b"t2")])
    assert [stored(slab)[arrival] for arrival in range(6)] == [5, 5, ARRIVED_MS, 5, 5, 5]


def test_excess_topics_share_one_entry(slab: Slab) -> None:
    sender = an_input(slab, CLAMP)
    for start in range(0, 90, 10):
        sender.receive([datagram(b"new%d" % number, b"v", timestamp=1) for number in range(start, start + 10)])
    replaced = {each.topic: each.message_count for each in sender.lanes.drain_replaced()}
    assert len(replaced) == 65
    assert replaced[b""] == 90 - 64
