"""Durable barriers: the messages that the journal must have before an answer, also those from spill files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

from bruce_mp.input import barriers
from bruce_mp.input.barriers import BarrierWatch
from bruce_mp.input.input_shell import RunPublisher
from bruce_mp.protocol.client.barrier import BarrierStatus, Level, encode_barrier
from bruce_mp.protocol.client.fence import encode_begin, encode_end
from bruce_mp.slab.file import Geometry
from bruce_mp.slab.handover_tickets import last_tickets, store_journaled_tickets
from bruce_mp.slab.layout import RunState
from bruce_mp.slab.recovery import sweep
from support.slabs import datagram, new_slab
from support.streams import StreamInput

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from bruce_mp.slab.file import Slab

GEOMETRY: Final = Geometry(chunks=64, topics=16, partitions=16, landing_slots=8, landing_slot_size=16384)
BEGIN, END = encode_begin("query/1/2"), encode_end()
BARRIER: Final = encode_barrier(b"01234567", Level.DURABLE, 60_000)


@pytest.fixture
def slab() -> Iterator[Slab]:
    with new_slab(GEOMETRY) as found:
        yield found


@pytest.fixture
def worker(slab: Slab) -> StreamInput:
    return StreamInput(slab, topics=[(b"t1", 2)], max_attempt=2, max_spill=1 << 30, keeps_journal=True)


class Timers:
    """A loop without time: `run_last` calls what was scheduled last."""

    def __init__(self) -> None:
        self._scheduled: list[Callable[[], None]] = []

    def call_later(self, _: float, callback: Callable[[], None]) -> Timers:
        self._scheduled.append(callback)
        return self

    def cancel(self) -> None:
        self._scheduled.pop()

    def run_last(self) -> None:
        self._scheduled.pop()()


class Nowhere:
    """A link whose frames get lost."""

    def send(self, parcels: object) -> None:
        pass


def spilled(first: int) -> bytes:
    return b"".join(datagram(b"t1", b"%d:" % number + bytes(600)) for number in range(first, first + 50))


def statuses(worker: StreamInput) -> list[BarrierStatus]:
    return [answer.status for _, answer in worker.answers]


def test_a_durable_barrier_waits_for_the_runs_of_spilled_messages(
    worker: StreamInput, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_ms, timers = [0], Timers()
    monkeypatch.setattr(barriers, "steady_ms", lambda: now_ms[0])
    publisher = RunPublisher(worker.lanes, Nowhere(), worker.row)  # type: ignore[arg-type]
    watch = BarrierWatch(
        timers,  # type: ignore[arg-type]
        worker.waiting,
        worker.outcomes,
        publisher,
        after_poll=lambda: None,
        wake_journal=lambda: store_journaled_tickets(worker.slab, last_tickets(worker.slab)),
    )
    worker.feed((worker.connect(), BEGIN + spilled(0) + END + BARRIER))
    watch.start()
    while len(worker.spill_feed):
        worker.spill_feed.feed(worker.now_ms)
    assert sweep(worker.slab, {RunState.OPEN}), "the last messages of the file are in an open run"
    now_ms[0] += 1000
    timers.run_last()
    timers.run_last()
    assert statuses(worker) == [BarrierStatus.DONE]
    assert not sweep(worker.slab, {RunState.OPEN}), "the answer says that the journal has all messages"


def test_a_spill_file_of_another_client_does_not_delay_a_durable_barrier(worker: StreamInput) -> None:
    owner, other = worker.connect(), worker.connect()
    worker.feed((owner, BEGIN + spilled(0) + END + BARRIER))
    worker.feed((other, datagram(b"t1", b"value") + BARRIER))
    answer_journaled(worker)
    assert len(worker.spill_feed), "the file is not back in the slab"
    assert [client for client, _ in worker.answers] == [other]
    while len(worker.spill_feed):
        worker.spill_feed.feed(worker.now_ms)
    answer_journaled(worker)
    assert [client for client, _ in worker.answers] == [other, owner]
    assert set(statuses(worker)) == {BarrierStatus.DONE}


def answer_journaled(worker: StreamInput) -> None:
    """Hand all runs over, write the journal, and answer the barriers that it finishes."""
    worker.close_runs()
    worker.waiting.on_handed_over()
    store_journaled_tickets(worker.slab, last_tickets(worker.slab))
    worker.waiting.answer_finished(worker.now_ms)


def test_an_open_attempt_of_another_client_does_not_delay_a_durable_barrier(worker: StreamInput) -> None:
    worker.feed((worker.connect(), BEGIN + spilled(0)))
    worker.feed((worker.connect(), datagram(b"t1", b"value") + BARRIER))
    worker.close_runs()
    worker.waiting.on_handed_over()
    store_journaled_tickets(worker.slab, last_tickets(worker.slab))
    worker.waiting.answer_finished(worker.now_ms)
    assert statuses(worker) == [BarrierStatus.DONE]
