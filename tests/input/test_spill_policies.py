"""The effect of other policies on spilled attempts: timestamps, the part of a topic, and waiting messages."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import pytest

from bruce_mp.kernels import TimestampWindow
from bruce_mp.pipeline.stage_counts import count_books
from bruce_mp.protocol.client.fence import encode_begin, encode_end
from bruce_mp.slab import layout as lay
from bruce_mp.slab.file import Geometry
from bruce_mp.slab.layout import RunState
from bruce_mp.slab.private_directory import LINK
from bruce_mp.slab.recovery import sweep
from bruce_mp.slab.rows import ProcessRow
from bruce_mp.slab.runs import read_run, segment_records
from bruce_mp.telemetry.books import spilled_total
from bruce_mp.telemetry.counters import Counter
from support.slabs import DISPATCHER_ROW, SMALL, datagram, new_slab
from support.spill_images import spill_images
from support.streams import StreamInput, balanced_books
from support.variants import kernels

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bruce_mp.kernels import WindowOfTopic
    from bruce_mp.slab.file import Slab
    from bruce_mp.slab.runs import Segment

pytestmark = pytest.mark.usefixtures("variant")

GEOMETRY: Final = Geometry(chunks=64, topics=16, partitions=16, landing_slots=8, landing_slot_size=16384)
TOPICS: Final = [(b"stuck", 1), (b"other", 1)]
BEGIN, END = encode_begin("job"), encode_end()
CLAMP: Final = TimestampWindow(1000, 1000, is_clamp=True)
ARRIVAL: Final = TimestampWindow(0, 0, is_clamp=False)
WALL_MS: Final = 1_700_000_000_000
"""The time by which the wall clock is ahead of the steady clock in these tests."""
MUCH: Final = 1 << 30


@pytest.fixture
def slab() -> Iterator[Slab]:
    with new_slab(GEOMETRY) as found:
        yield found


def worker_of(
    slab: Slab, window: TimestampWindow | None = None, *, alpha: int = 0, now_ms: int = 1, senders_wait: bool = True
) -> StreamInput:
    windows: WindowOfTopic = lambda _: window  # noqa: E731
    worker = StreamInput(
        slab, topics=TOPICS, max_attempt=2, max_spill=MUCH, windows=windows, alpha=alpha, senders_wait=senders_wait
    )
    worker.now_ms = now_ms
    worker.lanes.wall_offset_ms = WALL_MS
    return worker


def messages(topic: bytes, numbers: range, timestamp: int = 0) -> bytes:
    return b"".join(datagram(topic, b"%d:" % number + bytes(900), timestamp=timestamp) for number in numbers)


class Delivered(NamedTuple):
    """A message as Kafka gets it."""

    number: int
    timestamp: int
    keeps_timestamps: bool


class Sink:
    """Delivers the runs that are handed over, by topic, except those of a topic that is stuck."""

    def __init__(self, slab: Slab) -> None:
        self._slab = slab
        self._row = ProcessRow(slab, DISPATCHER_ROW)
        self.delivered: dict[int, list[Delivered]] = {}
        self.stuck = 0

    def deliver(self) -> int:
        """Deliver; return how many messages."""
        found = [each.segment for each in sweep(self._slab, {RunState.FILLED})]
        count = 0
        for segment in found:
            topic = read_run(self._slab, segment.chunk, segment.run).topic
            if topic == self.stuck:
                continue
            self.delivered.setdefault(topic, []).extend(self._read(segment))
            self._row.settle([segment], RunState.DELIVERED, 0, {Counter.MsgDelivered: segment.records})
            count += segment.records
        return count

    def _read(self, segment: Segment) -> Iterator[Delivered]:
        from bruce_mp import kernels as chosen  # noqa: PLC0415 - the variant of the test

        values = [one.value for one in chosen.messages(self._slab, segment, b"", None)]
        records = [record for _, record in segment_records(self._slab, segment)]
        for value, record in zip(values, records, strict=True):
            yield Delivered(
                int(value.split(b":")[0]), record.timestamp, bool(record.options & lay.OPTION_KEEPS_TIMESTAMP)
            )

    def numbers(self, topic: int) -> list[int]:
        return [each.number for each in self.delivered.get(topic, [])]


STUCK, OTHER = 1, 2


def drain(worker: StreamInput, sink: Sink) -> None:
    """Feed and deliver until nothing more moves."""
    idle = 0
    while idle < 4:
        worker.now_ms += 1000
        is_fed = worker.spill_feed.feed(worker.now_ms)
        worker.close_runs()
        idle = 0 if sink.deliver() or is_fed else idle + 1
        worker.pool.reclaim(worker.pool.capacity)


def send_in_parts(worker: StreamInput, begin: bytes, timestamp: int) -> None:
    """Send a complete attempt of 400 messages, half of it 5 s later than the other; most of it is spilled."""
    client = worker.connect()
    worker.feed((client, begin + messages(b"other", range(200), timestamp)))
    worker.now_ms += 5000
    worker.feed((client, messages(b"other", range(200, 400), timestamp) + END))
    assert spilled_total(worker.slab) > 300


def test_no_message_overtakes_one_that_found_no_room_in_a_full_slab(slab: Slab) -> None:
    worker, sink = StreamInput(slab, topics=TOPICS, max_attempt=3, max_spill=MUCH, senders_wait=False), Sink(slab)
    client, other = worker.connect(), worker.connect()
    worker.feed((client, messages(b"other", range(1))))
    while worker.pool.free_count > 2:
        worker.feed((other, messages(b"stuck", range(1))))
    large = [datagram(b"other", b"%d:" % number + bytes(2 * lay.CHUNK_BYTES)) for number in (1, 3)]
    worker.feed((client, BEGIN + large[0] + messages(b"other", range(2, 3)) + large[1] + END))
    drain(worker, sink)
    assert sink.numbers(OTHER) == [0, 1, 2, 3]
    assert count_books(slab).balanced


@pytest.mark.parametrize("window", [CLAMP, ARRIVAL])
@pytest.mark.parametrize("is_killed", [False, True])
def test_a_spilled_message_gets_its_original_arrival_time(slab: Slab, window: TimestampWindow, is_killed: bool) -> None:
    worker, sink = worker_of(slab, window), Sink(slab)
    began_ms = worker.now_ms
    send_in_parts(worker, BEGIN, 1)
    if is_killed:
        worker = worker_of(slab, window)
    worker.now_ms = 60_000
    drain(worker, sink)
    assert sink.numbers(OTHER) == list(range(400))
    arrived = [WALL_MS + began_ms + (5000 if number >= 200 else 0) for number in range(400)]
    assert [each.timestamp for each in sink.delivered[OTHER]] == arrived
    assert not any(each.keeps_timestamps for each in sink.delivered[OTHER])


def test_a_spilled_timestamp_within_the_window_of_its_arrival_is_kept(slab: Slab) -> None:
    worker, sink = worker_of(slab, CLAMP), Sink(slab)
    worker.now_ms = 10_000
    send_in_parts(worker, BEGIN, WALL_MS + 10_500)
    worker = worker_of(slab, CLAMP, now_ms=900_000)
    drain(worker, sink)
    timestamps = [each.timestamp for each in sink.delivered[OTHER]]
    assert timestamps[:200] == [WALL_MS + 10_500] * 200
    assert timestamps[200:] == [WALL_MS + 15_000] * 200


@pytest.mark.parametrize("is_killed", [False, True])
def test_a_spilled_attempt_keeps_explicit_timestamps(slab: Slab, is_killed: bool) -> None:
    worker, sink = worker_of(slab, CLAMP), Sink(slab)
    send_in_parts(worker, encode_begin("job", keeps_timestamps=True), 1234)
    if is_killed:
        worker = worker_of(slab, CLAMP)
    drain(worker, sink)
    assert sink.numbers(OTHER) == list(range(400))
    assert {(each.timestamp, each.keeps_timestamps) for each in sink.delivered[OTHER]} == {(1234, True)}


def test_a_spilled_message_counts_once_by_its_type(slab: Slab) -> None:
    worker, sink = worker_of(slab), Sink(slab)
    client = worker.connect()
    worker.feed((client, BEGIN + messages(b"other", range(300)) + END))
    drain(worker, sink)
    assert worker.row.counters[Counter.InputAgentProcessAnyPartitionMsg] == 300
    assert worker.row.counters[Counter.MsgReceived] == 300


@pytest.mark.parametrize("senders_wait", [False, True])
def test_a_spilled_attempt_waits_for_its_stuck_topic_and_loses_nothing(slab: Slab, senders_wait: bool) -> None:
    """The other attempt, and the other topic of the slice, go on."""
    worker, sink = worker_of(slab, alpha=1, senders_wait=senders_wait), Sink(slab)
    sink.stuck = STUCK
    first, second = worker.connect(), worker.connect()
    both = b"".join(messages(topic, range(n, n + 1)) for n in range(600) for topic in (b"stuck", b"other"))
    worker.feed((first, BEGIN + both + END))
    drain(worker, sink)
    worker.feed((second, BEGIN + messages(b"other", range(1000, 1300)) + END))
    assert len(worker.spill_feed) == 2
    drain(worker, sink)
    assert len(worker.spill_feed) == 1
    assert [number for number in sink.numbers(OTHER) if number >= 1000] == list(range(1000, 1300))
    assert count_books(slab).balanced
    assert count_books(slab).discarded == {}
    sink.stuck = 0
    drain(worker, sink)
    assert sink.numbers(STUCK) == list(range(600))
    assert [number for number in sink.numbers(OTHER) if number < 1000] == list(range(600))
    assert (count_books(slab).discarded, count_books(slab).received) == ({}, 1500)
    assert [path.name for path in Path(f"{slab.path}.spill").iterdir()] == [LINK]


def test_a_spilled_attempt_of_a_stuck_topic_is_delivered_once_by_a_successor(slab: Slab) -> None:
    worker, sink = worker_of(slab, alpha=1), Sink(slab)
    sink.stuck = STUCK
    client = worker.connect()
    both = b"".join(messages(topic, range(n, n + 1)) for n in range(600) for topic in (b"stuck", b"other"))
    worker.feed((client, BEGIN + both + END))
    drain(worker, sink)
    for _ in range(3):
        worker = worker_of(slab, alpha=1)
        drain(worker, sink)
        assert count_books(slab).balanced
    sink.stuck = 0
    drain(worker, sink)
    assert (sink.numbers(STUCK), sink.numbers(OTHER)) == (list(range(600)), list(range(600)))
    assert count_books(slab).discarded == {}


def test_an_attempt_of_a_topic_over_its_share_spills_and_does_not_wait(slab: Slab) -> None:
    worker = worker_of(slab, alpha=1)
    hog = worker.connect()
    while not hog.is_paused:
        worker.feed((hog, messages(b"stuck", range(10))))
    client = worker.connect()
    worker.feed((client, BEGIN + messages(b"stuck", range(20))))
    assert not client.is_paused
    assert client.attempt is not None
    assert client.attempt.chunk_count == 0
    assert spilled_total(slab) == 20


def test_an_attempt_keeps_its_order_behind_waiting_messages(slab: Slab) -> None:
    worker, sink = worker_of(slab, alpha=1), Sink(slab)
    sink.stuck = STUCK
    client = worker.connect()
    number = 0
    while not client.is_paused:
        worker.feed((client, messages(b"stuck", range(number, number + 5))))
        number += 5
    worker.feed((client, BEGIN + messages(b"stuck", range(number, number + 300)) + END))
    worker.feed((client, messages(b"stuck", range(number + 300, number + 310))))
    assert client.attempt is None
    assert spilled_total(slab) == 0
    sink.stuck = 0
    while len(client.unprocessed):
        drain(worker, sink)
        worker.feed((client, b""))
    drain(worker, sink)
    assert sink.numbers(STUCK) == list(range(number + 310))
    assert count_books(slab).discarded == {}


@pytest.mark.exhaustive
def test_a_death_at_any_step_keeps_a_partly_waiting_slice() -> None:
    """At each store to the slab and each act on a file while a topic is over its part."""
    both = b"".join(datagram(topic, b"%d:" % n + bytes(3000)) for n in range(8) for topic in (b"other", b"stuck"))
    with kernels("pure"), new_slab(SMALL) as slab:
        worker = worker_of(slab, alpha=1)
        hog = worker.connect()
        while not hog.is_paused:
            worker.feed((hog, datagram(b"stuck", b"9:" + bytes(3000))))
        worker.admission.on_disconnect(hog)
        client = worker.connect()
        worker.feed((client, BEGIN + both + END))
        assert spilled_total(slab) > 4
        before = spilled_total(slab)

        def work() -> None:
            worker.spill_feed.feed(5)
            worker.lanes.drain_closed()

        seen = set()
        for _ in spill_images(slab, work):
            seen.add(spilled_total(slab))
            sink = Sink(slab)
            drain(worker_of(slab, alpha=1), sink)
            assert [number for number in sink.numbers(STUCK) if number < 9] == list(range(8))
            assert sink.numbers(OTHER) == list(range(8))
            books = balanced_books(slab)
            assert books.discarded.keys() <= {"UNCLEAN_DISCONNECT"}
        assert before in seen
        assert any(0 < count < before for count in seen)
