"""Fenced attempts in the slab: held, completed or discarded, and their state after a crash."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bruce_mp.discards.reporter import PeerCredentials
from bruce_mp.kernels import TimestampWindow
from bruce_mp.pipeline.stage_counts import count_books
from bruce_mp.protocol.client.barrier import BarrierStatus, Level, encode_barrier
from bruce_mp.protocol.client.fence import encode_begin, encode_end
from bruce_mp.slab.file import Geometry
from bruce_mp.slab.layout import RunState
from bruce_mp.slab.states import TRANSITIONS
from bruce_mp.telemetry.counters import Counter
from support.checked_words import checked_slab
from support.crash_images import crash_images
from support.examples import examples
from support.slabs import SMALL, contents, datagram, new_slab
from support.streams import StreamInput, assert_books, balanced_books
from support.variants import kernels

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bruce_mp.input.stream_client import StreamClientState
    from bruce_mp.slab.file import Slab

GEOMETRY: Final = Geometry(chunks=64, topics=16, partitions=16, landing_slots=8, landing_slot_size=16384)
BARRIER: Final = encode_barrier(b"01234567", Level.DELIVERED, 1000)
BEGIN, END = encode_begin("query/1/2/3"), encode_end()
TOPICS: Final = [(b"t1", 2), (b"t2", 1)]


@pytest.fixture
def slab() -> Iterator[Slab]:
    with checked_slab(GEOMETRY) as (found, _):
        yield found


def message(number: int, size: int = 0) -> bytes:
    topic = (b"t1", b"t2", b"new")[number % 3]
    return datagram(topic, b"%d:" % number + bytes(size), partition_key=number if number % 2 else None)


def messages(count: int, first: int = 0, size: int = 0) -> bytes:
    return b"".join(message(number, size) for number in range(first, first + count))


def numbers(slab: Slab, state: RunState) -> list[int]:
    found = [each for each in contents(slab) if each.state is state]
    return [int(each.value.split(b":")[0]) for each in sorted(found, key=lambda each: each.arrival)]


def test_an_attempt_is_held_until_its_end_comes(slab: Slab) -> None:
    worker = StreamInput(slab, topics=TOPICS)
    client, other = worker.connect(), worker.connect()
    worker.feed((client, BEGIN + messages(20)), (other, messages(10, 100)))
    worker.close_runs()
    assert numbers(slab, RunState.OPEN) == list(range(20))
    assert numbers(slab, RunState.FILLED) == list(range(100, 110))
    worker.feed((client, messages(20, 20)), (other, messages(10, 110)))
    assert_books(slab, 60)
    worker.feed((client, END + messages(5, 40)))
    worker.close_runs()
    assert sorted(numbers(slab, RunState.FILLED)) == [*range(45), *range(100, 120)]
    assert sum(segment.records for segment in worker.completed) == 40
    assert_books(slab, 65)


CLAMP: Final = TimestampWindow(1000, 1000, is_clamp=True)
INSISTS: Final = encode_begin("backfill", keeps_timestamps=True)


def stamped(*timestamps: int) -> bytes:
    return b"".join(datagram(b"t1", b"%d" % each, timestamp=each) for each in timestamps)


def stamps(worker: StreamInput) -> dict[bytes, int]:
    worker.close_runs()
    return {each.value: each.timestamp for each in contents(worker.slab)}


def test_a_begin_frame_with_the_option_keeps_timestamps_up_to_the_next(slab: Slab) -> None:
    worker = StreamInput(slab, topics=TOPICS, windows=lambda _: CLAMP)
    worker.now_ms = 10**9
    client, other = worker.connect(), worker.connect()
    worker.feed((client, stamped(1) + INSISTS + stamped(2)), (other, stamped(3)))
    worker.feed((client, stamped(4) + END + stamped(5)), (other, stamped(6)))
    worker.feed((client, BEGIN + stamped(7) + END + stamped(8)))
    found = stamps(worker)
    assert {int(value) for value, stamp in found.items() if stamp == int(value)} == {2, 4, 5}
    assert {int(value) for value, stamp in found.items() if stamp == worker.now_ms} == {1, 3, 6, 7, 8}
    assert worker.row.counters[Counter.InputAgentReplaceTimestamp] == 5


def test_the_begin_option_does_not_override_the_arrival_policy(slab: Slab) -> None:
    """Policy `arrival` is the operator's decision."""
    worker = StreamInput(slab, topics=TOPICS, windows=lambda _: TimestampWindow(0, 0, is_clamp=False))
    worker.now_ms = 10**9
    worker.feed((worker.connect(), INSISTS + stamped(2) + END + stamped(3)))
    assert set(stamps(worker).values()) == {worker.now_ms}
    assert worker.row.counters[Counter.InputAgentReplaceTimestamp] == 0


def test_an_attempts_name_excludes_its_options(slab: Slab) -> None:
    worker = StreamInput(slab, topics=TOPICS)
    client = worker.connect()
    worker.feed((client, INSISTS))
    assert client.attempt is not None
    assert client.attempt.name == b"backfill"


def test_the_timestamp_warning_names_the_peer_process(slab: Slab, caplog: pytest.LogCaptureFixture) -> None:
    worker = StreamInput(slab, topics=TOPICS, windows=lambda _: CLAMP)
    worker.now_ms = 10**9
    good, wrong = worker.connect(), worker.connect()
    good.peer, wrong.peer = PeerCredentials(4_000_001, 11), PeerCredentials(4_000_002, 22)
    worker.feed((good, stamped(worker.now_ms)), (wrong, stamped(worker.now_ms + 1, 12345, 54321)))
    (line,) = [record.message for record in caplog.records]
    assert line.startswith("Timestamps of topic t1 from process 4000002 (gone) of user 22 are too far")
    assert "such as 12345: 2 messages get" in line


def test_a_disconnect_before_the_end_frame_abandons_the_attempt(slab: Slab) -> None:
    worker = StreamInput(slab, topics=TOPICS)
    client = worker.connect()
    worker.feed((client, messages(3) + BEGIN + messages(500, 3, 200) + message(7)[:5]))
    worker.admission.on_disconnect(client)
    worker.close_runs()
    assert numbers(slab, RunState.FILLED) == [0, 1, 2]
    assert_books(slab, 504, ABANDONED_ATTEMPT=500, UNCLEAN_DISCONNECT=1)
    assert len(worker.attempts) == 0
    assert {event.reason.name for event in worker.reported()} == {"ABANDONED_ATTEMPT", "UNCLEAN_DISCONNECT"}


@pytest.mark.parametrize(
    "frames", [[END], [BEGIN, BEGIN], [BEGIN, END, END], [BEGIN, END[:-1] + b"\1"], [BEGIN[:3] + b"\x0c" + BEGIN[4:12]]]
)
def test_an_unexpected_frame_closes_the_connection(slab: Slab, frames: list[bytes]) -> None:
    worker = StreamInput(slab, topics=TOPICS)
    client = worker.connect()
    worker.feed((client, messages(2) + b"".join(frame + messages(3, 2) for frame in frames)))
    assert client.must_close
    assert client.attempt is None
    books = count_books(slab)
    assert books.balanced
    assert books.discarded["MALFORMED"] == 1
    before = 0 if len(frames) != 2 else 3
    assert books.discarded.get("ABANDONED_ATTEMPT", 0) == before


def test_an_oversized_attempt_ends_and_releases_its_room(slab: Slab) -> None:
    worker = StreamInput(slab, topics=TOPICS, max_attempt=16)
    client, other = worker.connect(), worker.connect()
    worker.feed((client, BEGIN))
    for turn in range(40):
        if not client.must_close:
            worker.feed((client, messages(20, 20 * turn, 900)))
    assert client.must_close
    books = count_books(slab)
    assert books.balanced
    assert books.discarded == {"ABANDONED_ATTEMPT": books.received}
    worker.feed((other, messages(10)))
    worker.close_runs()
    assert numbers(slab, RunState.FILLED) == list(range(10))


def test_all_attempts_together_are_bounded(slab: Slab) -> None:
    worker = StreamInput(slab, topics=TOPICS, max_attempt=16)
    clients = [worker.connect() for _ in range(12)]
    for client in clients:
        worker.feed((client, BEGIN + messages(6, size=3000)))
    assert 0 < sum(client.must_close for client in clients) < 12
    for client in clients:
        if not client.must_close:
            worker.feed((client, END))
    books = count_books(slab)
    assert books.balanced
    assert books.received - books.discarded["ABANDONED_ATTEMPT"] == 6 * sum(not each.must_close for each in clients)


def test_barriers_inside_an_attempt_are_answered_immediately_and_after_it_wait(slab: Slab) -> None:
    worker = StreamInput(slab, topics=TOPICS)
    client = worker.connect()
    worker.feed((client, BEGIN + messages(3) + BARRIER))
    assert [(answer.status, answer.received) for _, answer in worker.answers] == [(BarrierStatus.FENCED, 3)]
    worker.feed((client, END + BARRIER))
    assert len(worker.waiting) == 1


@examples(25)
@given(
    steps=st.lists(
        st.tuples(st.integers(0, 3), st.sampled_from(["begin", "end", "send", "leave"]), st.integers(1, 40)),
        max_size=40,
    )
)
def test_any_order_of_frames_keeps_the_books(steps: list[tuple[int, str, int]]) -> None:
    """In the model, messages between a begin and its end, or outside of attempts, are handed over."""
    with checked_slab(GEOMETRY) as (slab, _):
        worker = StreamInput(slab, topics=TOPICS)
        clients: list[StreamClientState] = [worker.connect() for _ in range(4)]
        fenced: dict[int, list[int]] = {}
        handed_over: list[int] = []
        number = abandoned = 0
        for who, what, count in steps:
            if what == "send":
                sent = list(range(number, number := number + count))
                worker.feed((clients[who], messages(count, sent[0], 10)))
                fenced.get(who, handed_over).extend(sent)
            elif what == "begin" and who not in fenced:
                worker.feed((clients[who], BEGIN))
                fenced[who] = []
            elif what == "end" and who in fenced:
                worker.feed((clients[who], END))
                handed_over += fenced.pop(who)
            elif what == "leave":
                worker.admission.on_disconnect(clients[who])
                clients[who] = worker.connect()
                abandoned += len(fenced.pop(who, []))
        worker.close_runs()
        assert sorted(numbers(slab, RunState.FILLED)) == sorted(handed_over)
        assert_books(slab, number, **({"ABANDONED_ATTEMPT": abandoned} if abandoned else {}))


@pytest.mark.exhaustive
def test_a_death_at_any_store_keeps_an_attempt_atomic() -> None:
    """The crash happens at each store of sending, completing and leaving."""
    with kernels("pure"), checked_slab(SMALL) as (slab, words):
        worker = StreamInput(slab, topics=TOPICS, max_attempt=8)
        done, gone = worker.connect(), worker.connect()

        def work() -> None:
            worker.feed((done, BEGIN + messages(2)), (gone, BEGIN + messages(1, 100)))
            worker.feed((done, messages(1, 2) + END))
            worker.admission.on_disconnect(gone)

        for _ in crash_images(slab, [range(slab.geometry.file_size)], work):
            StreamInput(slab)
            found = numbers(slab, RunState.FILLED)
            assert found in ([], list(range(3)))
            books = balanced_books(slab)
            assert books.received == len(found) + books.discarded.get("ABANDONED_ATTEMPT", 0)
        assert {after for before, after in words.stored if before is RunState.OPEN} == set(TRANSITIONS[RunState.OPEN])


def test_an_attempt_uses_long_spans_only_within_its_limit() -> None:
    """Large allocations must not make an attempt exceed its limit."""
    with new_slab(replace(SMALL, chunks=8192)) as slab:
        worker = StreamInput(slab, topics=TOPICS, max_attempt=6)
        client = worker.connect()
        worker.feed((client, BEGIN))
        message = datagram(b"t1", bytes(7000))  # one a chunk
        for _ in range(6):
            worker.feed((client, message))
        attempt = client.attempt
        assert attempt is not None
        assert (attempt.chunk_count, attempt.is_spilling) == (6, False)
        worker.feed((client, message))
        assert (attempt.chunk_count, attempt.is_spilling) == (6, True)
