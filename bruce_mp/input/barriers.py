"""The pending barriers of a stream worker: their flush groups, deadlines and answers.

A barrier ends a flush group of its connection's messages, so that an answer counts exactly the messages before the
barrier. The worker reads the outcomes from its chunks (`Outcomes`), so a barrier survives the death of router and
dispatchers.
"""

from __future__ import annotations

import time
from collections import Counter as Tally
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Final

from bruce_mp.protocol.client.barrier import (
    Barrier,
    BarrierAnswer,
    BarrierStatus,
    Level,
    decode_barrier,
    encode_answer,
)
from bruce_mp.telemetry.clock import steady_ms

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from bruce_mp.errors import DiscardReason
    from bruce_mp.input.flush_groups import FlushGroup, FlushGroups, Outcomes
    from bruce_mp.input.input_shell import RunPublisher
    from bruce_mp.input.stream_client import StreamClientState
    from bruce_mp.ipc.loop import Loop, Timer
    from bruce_mp.slab.handover_tickets import JournaledTickets

__all__ = ["BarrierWatch", "Barriers"]

_MIN_INTERVAL_MS: Final = 1
_MAX_INTERVAL_MS: Final = 20
"""Bounds of the interval between two polls for outcomes."""
_GROWTH: Final = 2.0
"""Largest ratio of an interval to the one before; without new outcomes, intervals grow by this factor."""
_REMAINING_FRACTION: Final = 0.5
"""Part of the remaining time that passes before the next poll: near the end the polls are close to each other."""
_MIN_INTERVAL_IN_POLLS: Final = 4
"""Minimum ratio of the interval to the duration of a poll, so that polls use at most a fifth of the worker's time."""
_FLUSH_RETRY_MS: Final = 100
"""Interval of further FLUSH frames for a pending barrier, because a link may drop one."""


@dataclass(slots=True, eq=False)
class _PendingBarrier:
    client: StreamClientState
    token: bytes
    due_ms: int
    last_group: FlushGroup
    """The last flush group that the barrier covers."""
    is_durable: bool
    """True if the journal's copy of the messages suffices."""
    outstanding: int
    """Number of the covered messages without an outcome at the last poll."""
    ticket: int | None = None
    """For a durable barrier: the ticket of the last run with covered messages; None before their handover."""


class Barriers:
    """The barriers of one worker.  `answer(client, data)` sends an answer.  Times are in ms of the steady clock.

    `journal` is None if the daemon keeps none.
    """

    def __init__(
        self,
        outcomes: Outcomes,
        flush_groups: FlushGroups,
        answer: Callable[[StreamClientState, bytes], None],
        journal: JournaledTickets | None = None,
    ) -> None:
        self._journal = journal
        self._outcomes = outcomes
        self._flush_groups = flush_groups
        self._answer = answer
        self._pending: list[_PendingBarrier] = []
        self.has_new = False
        """True after a new barrier, until `BarrierWatch.start` resets it."""

    def __len__(self) -> int:
        return len(self._pending)

    @property
    def due_ms(self) -> int | None:
        return min((each.due_ms for each in self._pending), default=None)

    @property
    def has_delivery_barrier(self) -> bool:
        """Return True if a barrier waits for more than the journal."""
        return any(not each.is_durable for each in self._pending)

    @property
    def has_durable_barrier(self) -> bool:
        """Return True if a barrier waits for the journal."""
        return any(each.is_durable for each in self._pending)

    @property
    def has_unpublished(self) -> bool:
        """Return True if a barrier waits for the journal, and perhaps some of its messages are not handed over yet."""
        return any(each.is_durable and each.ticket is None for each in self._pending)

    @property
    def clients(self) -> set[StreamClientState]:
        return {each.client for each in self._pending}

    def on_barrier(self, client: StreamClientState, data: bytes, now_ms: int) -> None:
        """Answer a client's barrier or make it pending; the caller has appended all earlier messages."""
        request = decode_barrier(data)
        if isinstance(request, BarrierAnswer):  # the request is malformed or unsupported
            status = request.status
        elif request.level is Level.RECEIVED:
            status = BarrierStatus.DONE
        elif request.level is Level.DURABLE and self._journal is None:
            status = BarrierStatus.NO_JOURNAL
        elif client.attempt is not None:
            status = BarrierStatus.FENCED
        elif outstanding := _count_outstanding(client, client.flush_group):
            self._add(client, request, outstanding, now_ms)
            return
        else:
            status = BarrierStatus.DONE
        self._send_answer(client, request.token, status, client.flush_group)

    def _add(self, client: StreamClientState, request: Barrier, outstanding: int, now_ms: int) -> None:
        self._flush_groups.start_next(client)
        last_group, due_ms = client.unfinished_groups[-1], now_ms + request.limit_ms
        is_durable = request.level is Level.DURABLE
        self._pending.append(_PendingBarrier(client, request.token, due_ms, last_group, is_durable, outstanding))
        self.has_new = True

    def on_handed_over(self) -> None:
        """Give the durable barriers their tickets; the caller has handed over all runs.

        A barrier with messages in spill files gets no ticket yet, because the feed hands these messages over later.
        """
        for each in self._pending:
            if self._journal is not None and each.is_durable and each.ticket is None:
                each.ticket = None if _is_spilled(each.client, each.last_group) else self._journal.last_handed_over

    def _is_finished(self, barrier: _PendingBarrier) -> bool:
        is_journaled = barrier.ticket is not None and self._journal is not None and self._journal.has(barrier.ticket)
        return is_journaled or not _count_outstanding(barrier.client, barrier.last_group)

    def answer_finished(self, now_ms: int) -> float:
        """Answer finished and overdue barriers.

        Return the estimated time until the next barrier finishes, as a multiple of the time since the last poll;
        infinite if there are no new outcomes.
        """
        self._outcomes.count_outcomes()
        waiting = []
        for each in self._pending:
            if self._is_finished(each):
                self._send_answer(each.client, each.token, BarrierStatus.DONE, each.last_group)
            elif each.due_ms <= now_ms:
                self._send_answer(each.client, each.token, BarrierStatus.TIMED_OUT, each.last_group)
            else:
                waiting.append(each)
        clients = self.clients
        self._pending = waiting
        for client in clients:
            self._merge_finished(client)
        return min(map(_measure_progress, waiting), default=inf)

    def answer_all(self) -> None:
        """Answer all pending barriers, because the daemon shuts down."""
        self._outcomes.count_outcomes()
        for each in self._pending:
            status = BarrierStatus.DONE if self._is_finished(each) else BarrierStatus.SHUTTING_DOWN
            self._send_answer(each.client, each.token, status, each.last_group)
        self._pending = []

    def remove_client(self, client: StreamClientState) -> None:
        self._pending = [each for each in self._pending if each.client is not client]
        for flush_group in (*client.unfinished_groups, client.flush_group):
            self._flush_groups.close(flush_group)

    def _merge_finished(self, client: StreamClientState) -> None:
        """Merge a client's finished flush groups into `finished_totals`, so that the client keeps few flush groups.

        No merged group is the `last_group` of a pending barrier: such a barrier would be finished, and answered.
        """
        while client.unfinished_groups and not client.unfinished_groups[0].outstanding:
            flush_group = client.unfinished_groups.pop(0)
            client.finished_totals.received += flush_group.received
            client.finished_totals.delivered += flush_group.delivered
            client.finished_totals.discards.update(flush_group.discards)
            self._flush_groups.close(flush_group)

    def _send_answer(
        self, client: StreamClientState, token: bytes, status: BarrierStatus, last_group: FlushGroup
    ) -> None:
        """Send an answer with the counts of all flush groups up to `last_group`."""
        flush_groups = list(_flush_groups_of(client, last_group))
        discards: Tally[DiscardReason | int] = Tally()
        for flush_group in flush_groups:
            discards.update(flush_group.discards)
        received = sum(flush_group.received for flush_group in flush_groups)
        delivered = sum(flush_group.delivered for flush_group in flush_groups)
        self._answer(
            client, encode_answer(BarrierAnswer(token, status, received, delivered, discards.total(), discards))
        )


def _flush_groups_of(client: StreamClientState, last_group: FlushGroup) -> Iterator[FlushGroup]:
    """Yield the flush groups of a client from its first to `last_group`."""
    yield client.finished_totals
    for flush_group in client.unfinished_groups:
        yield flush_group
        if flush_group is last_group:
            return
    yield client.flush_group  # `last_group` is the client's present group


def _is_spilled(client: StreamClientState, last_group: FlushGroup) -> bool:
    return any(flush_group.spill_files for flush_group in _flush_groups_of(client, last_group))


def _count_outstanding(client: StreamClientState, last_group: FlushGroup) -> int:
    return sum(flush_group.outstanding for flush_group in _flush_groups_of(client, last_group))


def _measure_progress(barrier: _PendingBarrier) -> float:
    """Store a barrier's progress, and return how many intervals it still needs at the rate of the last interval."""
    outstanding = _count_outstanding(barrier.client, barrier.last_group)
    settled = barrier.outstanding - outstanding
    barrier.outstanding = outstanding
    return outstanding / settled if settled > 0 else inf


def _next_interval_ms(interval_ms: float, remaining_intervals: float) -> float:
    """Return the interval after one of `interval_ms`, if the next barrier needs `remaining_intervals` more."""
    factor = min(_GROWTH, _REMAINING_FRACTION * remaining_intervals)
    return max(_MIN_INTERVAL_MS, min(interval_ms * factor, _MAX_INTERVAL_MS))


class BarrierWatch:
    """The timer that polls for outcomes while barriers wait, and calls `after_poll` after each poll.

    A poll inspects up to `flush_groups.CHUNKS_PER_POLL` chunks, so the interval of polls grows up to `_MAX_INTERVAL_MS`
    while no barrier is about to finish.

    `wake_journal` requests a durable copy of all runs, if `slab.sync` is "each flush".
    """

    def __init__(
        self,
        loop: Loop,
        barriers: Barriers,
        outcomes: Outcomes,
        publisher: RunPublisher,
        *,
        after_poll: Callable[[], None],
        wake_journal: Callable[[], object],
    ) -> None:
        self._loop = loop
        self._barriers = barriers
        self._outcomes = outcomes
        self._publisher = publisher
        self._after_poll = after_poll
        self._wake_journal = wake_journal
        self._timer: Timer | None = None
        self._interval_ms: float = _MIN_INTERVAL_MS
        self._next_flush_ms = 0

    def start(self) -> None:
        """Publish and flush all messages for a new barrier, and poll at the shortest interval again."""
        self._barriers.has_new = False
        self._publisher.publish_open_runs()
        self._flush()
        self._interval_ms = _MIN_INTERVAL_MS
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(_MIN_INTERVAL_MS / 1000, self._poll)

    def _flush(self) -> None:
        """Ask the router to flush the topics of unsettled messages, and the journal for a copy, as barriers need it.

        The caller has published the open runs.
        """
        self._next_flush_ms = steady_ms() + _FLUSH_RETRY_MS
        if self._barriers.has_delivery_barrier:
            self._publisher.flush(self._outcomes.unsettled_topics())
        self._barriers.on_handed_over()
        if self._barriers.has_durable_barrier:
            self._wake_journal()

    def _poll(self) -> None:
        began = time.monotonic()
        remaining_intervals = self._barriers.answer_finished(steady_ms())
        self._after_poll()
        self._timer = None
        if not len(self._barriers):
            return
        if steady_ms() >= self._next_flush_ms:
            if self._barriers.has_unpublished:  # lanes may have open runs with messages from spill files
                self._publisher.publish_open_runs()
            self._flush()
        took_ms = (time.monotonic() - began) * 1000
        self._interval_ms = _next_interval_ms(self._interval_ms, remaining_intervals)
        after_ms = max(self._interval_ms, _MIN_INTERVAL_IN_POLLS * took_ms)
        due_ms = self._barriers.due_ms
        if due_ms is not None:
            after_ms = min(after_ms, max(1, due_ms - steady_ms()))
        self._timer = self._loop.call_later(after_ms / 1000, self._poll)
