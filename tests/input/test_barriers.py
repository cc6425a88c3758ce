"""Barriers: the times and counts of answers, from the state words in the slab alone."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Final

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from bruce_mp.errors import DiscardReason
from bruce_mp.input.barriers import _next_interval_ms
from bruce_mp.input.flush_groups import FlushGroups
from bruce_mp.protocol.client.barrier import BarrierAnswer, BarrierStatus, Level, encode_barrier
from bruce_mp.slab import layout as lay
from bruce_mp.slab.file import Geometry, Slab
from bruce_mp.slab.layout import RunState
from bruce_mp.slab.recovery import sweep
from bruce_mp.slab.rows import settle_words
from bruce_mp.slab.runs import segment_records, segment_words, split_run
from support.examples import examples
from support.slabs import datagram, new_slab, set_state, slab_file
from support.streams import StreamInput

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bruce_mp.input.stream_client import StreamClientState
    from bruce_mp.slab.runs import Segment

GEOMETRY: Final = Geometry(chunks=256, topics=16, partitions=16, landing_slots=8, landing_slot_size=16384)
BAD: Final = bytes.fromhex("00000004")


def ask(token: int = 1, level: Level = Level.DELIVERED, limit_ms: int = 1000) -> bytes:
    return encode_barrier(token.to_bytes(8, "big"), level, limit_ms)


@pytest.fixture
def slab() -> Iterator[Slab]:
    with new_slab(GEOMETRY) as found:
        yield found


@pytest.fixture
def worker(slab: Slab) -> StreamInput:
    return StreamInput(slab, topics=[(b"t1", 2), (b"t2", 1)])


def deliver(worker: StreamInput, *, reason: DiscardReason | None = None) -> None:
    """Settle all runs that were handed over."""
    worker.close_runs()
    segments = [found.segment for found in sweep(worker.slab, {RunState.FILLED})]
    set_state(worker.slab, segments, RunState.ROUTED)
    settle_words(worker.slab, segments, RunState.DISCARDED if reason else RunState.DELIVERED, reason or 0)


def last(worker: StreamInput) -> tuple[StreamClientState, BarrierAnswer]:
    return worker.answers[-1]


def test_a_received_barrier_is_answered_immediately(worker: StreamInput) -> None:
    client = worker.connect()
    worker.feed((client, datagram() * 3 + BAD + ask(7, Level.RECEIVED) + datagram()))
    reasons: dict[DiscardReason | int, int] = {DiscardReason.MALFORMED: 1}
    assert worker.answers == [(client, BarrierAnswer((7).to_bytes(8, "big"), BarrierStatus.DONE, 4, 0, 1, reasons))]


def test_a_delivered_barrier_is_answered_after_the_last_settlement(worker: StreamInput) -> None:
    client, other = worker.connect(), worker.connect()
    worker.feed((client, datagram() * 3 + ask(1)), (other, datagram() * 2))
    worker.feed((client, datagram() * 4 + ask(2)))
    worker.waiting.answer_finished(1)
    assert not worker.answers
    deliver(worker)
    worker.waiting.answer_finished(2)
    assert [(answer.token[-1], answer.received, answer.delivered) for _, answer in worker.answers] == [
        (1, 3, 3),
        (2, 7, 7),
    ]
    assert not len(worker.waiting)
    worker.feed((other, ask(3)))
    assert last(worker) == (other, BarrierAnswer((3).to_bytes(8, "big"), BarrierStatus.DONE, 2, 2, 0, {}))


def test_a_poll_estimates_the_time_until_the_next_answer(worker: StreamInput) -> None:
    """The estimate compares the outcomes since the last poll with the remaining messages before the barrier."""
    client = worker.connect()
    worker.feed((client, datagram() * 2))
    worker.close_runs()
    worker.feed((client, datagram() * 6 + ask() + datagram()))
    assert worker.waiting.answer_finished(1) == inf, "no message has an outcome"
    first = next(found.segment for found in sweep(worker.slab, {RunState.FILLED}))
    set_state(worker.slab, [first], RunState.ROUTED)
    settle_words(worker.slab, [first], RunState.DELIVERED, 0)
    assert worker.waiting.answer_finished(2) == 3, "2 messages of 8 have outcomes"
    assert worker.waiting.answer_finished(3) == inf, "no further message has an outcome"
    deliver(worker)
    assert worker.waiting.answer_finished(4) == inf, "no barrier is left"
    assert len(worker.answers) == 1


@pytest.mark.parametrize(
    ("interval_ms", "remaining", "after_ms"),
    [(1, inf, 2), (16, inf, 20), (20, 30.0, 20), (20, 1.0, 10), (10, 0.5, 2.5), (4, 0.1, 1)],
)
def test_polls_are_closer_to_each_other_near_the_end(interval_ms: float, remaining: float, after_ms: float) -> None:
    assert _next_interval_ms(interval_ms, remaining) == after_ms


def test_a_barrier_without_messages_is_answered_immediately(worker: StreamInput) -> None:
    client = worker.connect()
    worker.feed((client, ask(1) + ask(2)))
    assert [answer.status for _, answer in worker.answers] == [BarrierStatus.DONE] * 2


def test_adjacent_barriers_have_equal_answers(worker: StreamInput) -> None:
    client = worker.connect()
    worker.feed((client, datagram() + ask(1) + ask(2) + datagram() * 5))
    deliver(worker)
    worker.waiting.answer_finished(1)
    assert [(answer.token[-1], answer.received) for _, answer in worker.answers] == [(1, 1), (2, 1)]


def test_answers_count_discards_by_reason(worker: StreamInput) -> None:
    client = worker.connect()
    worker.feed((client, datagram() * 2 + BAD + datagram(b"nothing", b"?") + ask()))
    deliver(worker, reason=DiscardReason.BAD_TOPIC)
    worker.waiting.answer_finished(1)
    _, answer = last(worker)
    assert (answer.received, answer.delivered, answer.discarded) == (4, 0, 4)
    assert answer.reasons == {DiscardReason.MALFORMED: 1, DiscardReason.BAD_TOPIC: 3}


def test_a_timed_out_barrier_is_answered_with_the_present_counts(worker: StreamInput) -> None:
    client = worker.connect()
    worker.feed((client, datagram(b"t1")))
    deliver(worker)
    worker.feed(
        (client, datagram(b"t2") * 2 + ask(1, limit_ms=50) + ask(2, limit_ms=0) + datagram() + ask(3, limit_ms=500))
    )
    worker.waiting.answer_finished(1)
    assert last(worker)[1] == BarrierAnswer((2).to_bytes(8, "big"), BarrierStatus.TIMED_OUT, 3, 1, 0, {})
    worker.waiting.answer_finished(51)
    assert last(worker)[1] == BarrierAnswer((1).to_bytes(8, "big"), BarrierStatus.TIMED_OUT, 3, 1, 0, {})
    deliver(worker)
    worker.waiting.answer_finished(52)
    assert last(worker)[1] == BarrierAnswer((3).to_bytes(8, "big"), BarrierStatus.DONE, 4, 4, 0, {})


def test_shutdown_answers_every_waiting_barrier(worker: StreamInput) -> None:
    client, other = worker.connect(), worker.connect()
    worker.feed((client, datagram() + ask(1)))
    deliver(worker)
    worker.feed((other, datagram() + ask(2)))
    worker.waiting.answer_all()
    assert [answer.status for _, answer in worker.answers] == [BarrierStatus.DONE, BarrierStatus.SHUTTING_DOWN]


def test_malformed_barriers_are_answered_and_counted_nowhere(worker: StreamInput) -> None:
    client = worker.connect()
    malformed = ask(5)[:-4] + b"\xff" * 4
    unknown = ask(6)[:7] + b"\1" + ask(6)[8:]
    worker.feed((client, datagram() + malformed + unknown + datagram()))
    assert [answer.status for _, answer in worker.answers] == [
        BarrierStatus.MALFORMED,
        BarrierStatus.UNSUPPORTED_VERSION,
    ]
    assert [answer.received for _, answer in worker.answers] == [1, 1]
    assert client.flush_group.received == 2


def test_a_disconnected_client_is_not_answered_and_leaves_no_state(worker: StreamInput) -> None:
    client = worker.connect()
    worker.feed((client, datagram() + ask() + datagram()))
    worker.waiting.remove_client(client)
    assert len(worker.flush_groups) == 2
    deliver(worker)
    worker.waiting.answer_finished(1)
    assert not worker.answers
    assert not len(worker.flush_groups)


def test_messages_of_a_previous_worker_belong_to_no_flush_group(slab: Slab) -> None:
    before = StreamInput(slab, topics=[(b"t1", 2)])
    before.feed((before.connect(), datagram() * 5))
    worker = StreamInput(slab)
    client = worker.connect()
    worker.feed((client, datagram() * 2 + ask()))
    deliver(worker)
    worker.waiting.answer_finished(1)
    assert last(worker)[1].received == last(worker)[1].delivered == 2


def test_outcomes_are_counted_before_a_chunk_is_used_again(worker: StreamInput) -> None:
    client = worker.connect()
    for number in range(2000):
        worker.feed((client, datagram(value=b"%d" % number + bytes(3000))))
        if number % 20 == 19:
            deliver(worker)
    worker.feed((client, ask()))
    deliver(worker)
    worker.waiting.answer_finished(1)
    worker.waiting.answer_finished(1)
    assert last(worker)[1].delivered == 2000


def test_each_chunk_has_its_turn_in_short_polls(worker: StreamInput, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first chunk has no outcomes, the second one has."""
    monkeypatch.setattr("bruce_mp.input.flush_groups.CHUNKS_PER_POLL", 1)
    client = worker.connect()
    worker.feed((client, datagram(b"t1") + datagram(b"t2") + ask()))
    worker.close_runs()
    waiting, settled = (found.segment for found in sweep(worker.slab, {RunState.FILLED}))
    assert waiting.chunk < settled.chunk
    set_state(worker.slab, [settled], RunState.ROUTED)
    settle_words(worker.slab, [settled], RunState.DELIVERED, 0)
    counts = []
    for now_ms in (1, 2):
        worker.waiting.answer_finished(now_ms)
        counts.append(client.earlier_groups[0].delivered)
    assert counts == [0, 1]


def test_flush_group_numbers_are_reused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bruce_mp.input.flush_groups._MAX_NUMBER", 3)
    flush_groups = FlushGroups()
    first, second, third = (flush_groups.open() for _ in range(3))
    assert [flush_group.number for flush_group in (first, second, third)] == [1, 2, 3]
    assert flush_groups.is_full
    second.received = 1
    flush_groups.close(first)
    flush_groups.close(second)
    assert [flush_groups.open().number, flush_groups.open().number] == [1, 0]
    second.delivered = 1
    flush_groups.remove_if_finished(second)
    assert flush_groups.open().number == 2


class BarrierMachine(RuleBasedStateMachine):
    """Clients that send and ask, and outcomes of single records in any order; a model that counts by client."""

    @initialize()
    def start(self) -> None:
        self.file = slab_file(GEOMETRY)
        self.slab = Slab(self.file.__enter__())
        self.worker = StreamInput(self.slab, topics=[(b"t1", 2), (b"t2", 1)])
        self.clients = [self.worker.connect() for _ in range(3)]
        self.sent: list[list[str | None]] = [[] for _ in self.clients]
        """The outcome of each message, None before it."""
        self.asked: dict[int, tuple[int, int]] = {}
        """By token, the client and the number of its earlier messages."""
        self.answered = self.tokens = 0
        self.now_ms = 1

    def teardown(self) -> None:
        if hasattr(self, "slab"):
            self.slab.close()
            self.file.__exit__(None, None, None)

    @rule(who=st.integers(0, 2), kinds=st.lists(st.sampled_from(["t1", "t2", "bad", "ask"]), min_size=1, max_size=8))
    def send(self, who: int, kinds: list[str]) -> None:
        data = b""
        for kind in kinds:
            if kind == "ask":
                self.tokens += 1
                token = self.tokens
                self.asked[token] = (who, len(self.sent[who]))
                data += ask(token, limit_ms=10**9)
            elif kind == "bad":
                self.sent[who].append("MALFORMED")
                data += BAD
            else:
                value = b"%d:%d" % (who, len(self.sent[who]))
                self.sent[who].append(None)
                data += datagram(kind.encode(), value)
        self.worker.feed((self.clients[who], data))
        self.check()

    @precondition(lambda self: any(None in sent for sent in self.sent))
    @rule(
        data=st.data(),
        cut=st.booleans(),
        outcome=st.sampled_from([None, DiscardReason.BAD_TOPIC, DiscardReason.LONG_MSG]),
    )
    def settle(self, data: st.DataObject, cut: bool, outcome: DiscardReason | None) -> None:
        self.worker.close_runs()
        found = [item.segment for item in sweep(self.slab, {RunState.FILLED})]
        if not found:
            return
        segment = data.draw(st.sampled_from(found))
        if cut:
            split_run(self.slab, segment.chunk, segment.run)
        for at in segment_words(self.slab, segment):
            self.slab.words[at] = RunState.DISCARDED if outcome else RunState.DELIVERED
            base = at << 2
            is_run = base == self.slab.chunk_at(segment.chunk) + segment.run
            self.slab.view[base + (lay.RUN_REASON if is_run else lay.RECORD_REASON)] = outcome or 0
        for name in self.names_in(segment):
            who, number = map(int, name.split(b":"))
            self.sent[who][number] = outcome.name if outcome else "DELIVERED"
        self.look()

    def names_in(self, segment: Segment) -> list[bytes]:
        start = self.slab.chunk_at(segment.chunk) + lay.RECORD_HEADER
        return [
            bytes(self.slab.view[start + offset : start + offset + record.value_length])
            for offset, record in segment_records(self.slab, segment)
        ]

    @rule()
    def look(self) -> None:
        self.worker.waiting.answer_finished(self.now_ms)
        self.check()

    def check(self) -> None:
        """Check that exactly the expected clients are answered, with correct counts."""
        for client, answer in self.worker.answers[self.answered :]:
            who, count = self.asked.pop(int.from_bytes(answer.token, "big"))
            assert self.clients[who] is client
            before = self.sent[who][:count]
            assert None not in before
            assert (answer.received, answer.delivered) == (count, before.count("DELIVERED"))
            assert {DiscardReason(reason).name: n for reason, n in answer.reasons.items()} == {
                outcome: before.count(outcome) for outcome in set(before) - {"DELIVERED"}
            }
        self.answered = len(self.worker.answers)
        if not len(self.worker.waiting):
            assert not self.asked


BarrierMachine.TestCase.settings = examples(30, steps=30)
TestBarriers = BarrierMachine.TestCase
