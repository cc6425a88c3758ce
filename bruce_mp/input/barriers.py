"""The pending barriers of a stream worker: their flush groups, time limits and answers.

A barrier is *pending* until the worker answers it.  An answer has the counts of all flush groups of the connection that
precede the barrier.  The worker reads the outcomes from its chunks of the slab (`OutcomeCounter`), so a pending barrier
survives the death of the router and of dispatchers.  A *durable* barrier waits until each of its messages has an
outcome, or all of them are in the journal on disk.
"""

from __future__ import annotations

import time
from collections import Counter
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
    from bruce_mp.input.flush_groups import FlushGroup, FlushGroups, OutcomeCounter
    from bruce_mp.input.input_shell import RunPublisher
    from bruce_mp.input.stream_client import StreamClientState
    from bruce_mp.ipc.loop import Loop, Timer
    from bruce_mp.slab.handover_tickets import JournalProgress

__all__ = ["BarrierWatch", "Barriers"]

_MIN_INTERVAL_MS: Final = 1
_MAX_INTERVAL_MS: Final = 20
"""Bounds of the interval between two polls for outcomes."""
_MAX_GROWTH: Final = 2.0
"""Largest ratio of an interval to the previous one; if no outcomes come, each interval grows by this factor."""
_REMAINING_TIME_FRACTION: Final = 0.5
"""Fraction of the estimated remaining time that passes before the next poll, so polls are frequent near the end."""
_MIN_INTERVAL_RATIO: Final = 4
"""Minimum ratio of the interval to the duration of the last poll: polls use at most a fifth of the worker's time."""
_FLUSH_RETRY_MS: Final = 100
"""Interval at which the worker repeats the FLUSH frames for pending barriers, because a link may drop a frame."""


@dataclass(slots=True, eq=False)
class _PendingBarrier:
    client: StreamClientState
    token: bytes
    due_ms: int
    """Time at which the barrier times out."""
    last_group: FlushGroup
    """The last flush group that the barrier covers."""
    is_durable: bool
    """True if the client asked for the level "durable"."""
    outstanding_count: int
    """Number of covered messages that had no outcome at the last poll."""
    ticket: int | None = None
    """For a durable barrier: the ticket of the last run with covered messages.

    None until the worker has handed over all covered messages, and for other barriers.
    """


class Barriers:
    """The barriers of one worker.  Times are in ms of the steady clock.

    `answer(client, data)` sends an encoded answer.  `journal` is None if the daemon keeps no journal.
    """

    def __init__(
        self,
        outcome_counter: OutcomeCounter,
        flush_groups: FlushGroups,
        answer: Callable[[StreamClientState, bytes], None],
        journal: JournalProgress | None = None,
    ) -> None:
        self._journal = journal
        self._outcome_counter = outcome_counter
        self._flush_groups = flush_groups
        self._answer = answer
        self._pending: list[_PendingBarrier] = []
        self.has_new_barrier = False
        """True if `BarrierWatch.start` has not seen the newest pending barrier."""

    def __len__(self) -> int:
        return len(self._pending)

    @property
    def due_ms(self) -> int | None:
        """Return the earliest time at which a pending barrier times out; None if none is pending."""
        return min((each.due_ms for each in self._pending), default=None)

    @property
    def has_delivery_barrier(self) -> bool:
        """Return True if a pending barrier is not durable, so that it waits for outcomes."""
        return any(not each.is_durable for each in self._pending)

    @property
    def has_durable_barrier(self) -> bool:
        return any(each.is_durable for each in self._pending)

    @property
    def lacks_ticket(self) -> bool:
        """Return True if a durable barrier waits until the worker has handed over its messages."""
        return any(each.is_durable and each.ticket is None for each in self._pending)

    @property
    def clients(self) -> set[StreamClientState]:
        return {each.client for each in self._pending}

    def on_barrier(self, client: StreamClientState, data: bytes, now_ms: int) -> None:
        """Answer a client's barrier at once, or make it pending; the caller has appended all earlier messages."""
        request = decode_barrier(data)
        if isinstance(request, BarrierAnswer):  # the answer to a malformed or unsupported request
            status = request.status
        elif request.level is Level.RECEIVED:
            status = BarrierStatus.DONE
        elif request.level is Level.DURABLE and self._journal is None:
            status = BarrierStatus.NO_JOURNAL
        elif client.attempt is not None:
            status = BarrierStatus.FENCED  # the messages of an open attempt have no outcomes before its end
        elif outstanding_count := _count_outstanding(client, client.flush_group):
            self._add(client, request, outstanding_count, now_ms)
            return
        else:
            status = BarrierStatus.DONE
        self._send_answer(client, request.token, status, client.flush_group)

    def _add(self, client: StreamClientState, request: Barrier, outstanding_count: int, now_ms: int) -> None:
        self._flush_groups.start_next(client)
        last_group, due_ms = client.earlier_groups[-1], now_ms + request.limit_ms
        is_durable = request.level is Level.DURABLE
        self._pending.append(_PendingBarrier(client, request.token, due_ms, last_group, is_durable, outstanding_count))
        self.has_new_barrier = True

    def on_handed_over(self) -> None:
        """Give durable barriers the ticket of the last run; the caller has handed over all runs of the lanes.

        A barrier with messages in spill files gets no ticket yet, because `SpillFeed` hands over these messages later.
        """
        for each in self._pending:
            if self._journal is not None and each.is_durable and each.ticket is None:
                each.ticket = None if _has_spilled(each.client, each.last_group) else self._journal.last_handed_over

    def _is_finished(self, barrier: _PendingBarrier) -> bool:
        is_journaled = barrier.ticket is not None and self._journal is not None and self._journal.has(barrier.ticket)
        return is_journaled or not _count_outstanding(barrier.client, barrier.last_group)

    def answer_finished(self, now_ms: int) -> float:
        """Answer finished and overdue barriers.

        Return the estimated time until the next barrier finishes, as a multiple of the time since the last poll; `inf`
        if no pending barrier has new outcomes.
        """
        self._outcome_counter.count_outcomes()
        still_pending = []
        for each in self._pending:
            if self._is_finished(each):
                self._send_answer(each.client, each.token, BarrierStatus.DONE, each.last_group)
            elif each.due_ms <= now_ms:
                self._send_answer(each.client, each.token, BarrierStatus.TIMED_OUT, each.last_group)
            else:
                still_pending.append(each)
        clients = self.clients  # with the clients that just got their answers
        self._pending = still_pending
        for client in clients:
            self._merge_finished(client)
        return min(map(_measure_progress, still_pending), default=inf)

    def answer_all(self) -> None:
        """Answer all pending barriers, because the worker ends."""
        self._outcome_counter.count_outcomes()
        for each in self._pending:
            status = BarrierStatus.DONE if self._is_finished(each) else BarrierStatus.SHUTTING_DOWN
            self._send_answer(each.client, each.token, status, each.last_group)
        self._pending = []

    def remove_client(self, client: StreamClientState) -> None:
        """Forget the barriers of a client after its connection has ended, and close its flush groups."""
        self._pending = [each for each in self._pending if each.client is not client]
        for flush_group in (*client.earlier_groups, client.flush_group):
            self._flush_groups.close(flush_group)

    def _merge_finished(self, client: StreamClientState) -> None:
        """Add the finished flush groups before a client's first unfinished one to `finished_totals`, and forget them.

        The caller has answered all finished barriers, so no pending barrier has such a group as its `last_group`.
        """
        while client.earlier_groups and not client.earlier_groups[0].outstanding_count:
            flush_group = client.earlier_groups.pop(0)
            client.finished_totals.received += flush_group.received
            client.finished_totals.delivered += flush_group.delivered
            client.finished_totals.discards.update(flush_group.discards)
            self._flush_groups.close(flush_group)

    def _send_answer(
        self, client: StreamClientState, token: bytes, status: BarrierStatus, last_group: FlushGroup
    ) -> None:
        """Send an answer with the counts of all flush groups up to `last_group`."""
        flush_groups = list(_covered_groups(client, last_group))
        discards: Counter[DiscardReason | int] = Counter()
        for flush_group in flush_groups:
            discards.update(flush_group.discards)
        received = sum(flush_group.received for flush_group in flush_groups)
        delivered = sum(flush_group.delivered for flush_group in flush_groups)
        self._answer(
            client, encode_answer(BarrierAnswer(token, status, received, delivered, discards.total(), discards))
        )


def _covered_groups(client: StreamClientState, last_group: FlushGroup) -> Iterator[FlushGroup]:
    """Yield a client's `finished_totals`, then its later flush groups up to `last_group`."""
    yield client.finished_totals
    for flush_group in client.earlier_groups:
        yield flush_group
        if flush_group is last_group:
            return
    yield client.flush_group  # the loop has not found `last_group`, so it is the present group


def _has_spilled(client: StreamClientState, last_group: FlushGroup) -> bool:
    """Return True if messages of the flush groups up to `last_group` are in spill files."""
    return any(flush_group.spill_file_count for flush_group in _covered_groups(client, last_group))


def _count_outstanding(client: StreamClientState, last_group: FlushGroup) -> int:
    return sum(flush_group.outstanding_count for flush_group in _covered_groups(client, last_group))


def _measure_progress(barrier: _PendingBarrier) -> float:
    """Update a barrier's `outstanding_count`.

    Return the number of intervals until the barrier finishes, if each brings as many outcomes as the last one; `inf` if
    the last one brought none.
    """
    outstanding_count = _count_outstanding(barrier.client, barrier.last_group)
    new_outcome_count = barrier.outstanding_count - outstanding_count
    barrier.outstanding_count = outstanding_count
    return outstanding_count / new_outcome_count if new_outcome_count > 0 else inf


def _next_interval_ms(last_ms: float, remaining_intervals: float) -> float:
    """Return the interval that follows an interval of `last_ms`; `remaining_intervals` is from `_measure_progress`."""
    factor = min(_MAX_GROWTH, _REMAINING_TIME_FRACTION * remaining_intervals)
    return max(_MIN_INTERVAL_MS, min(last_ms * factor, _MAX_INTERVAL_MS))


class BarrierWatch:
    """The timer that polls for outcomes while barriers are pending, and calls `after_poll` after each poll.

    A poll takes time, because it inspects up to `flush_groups.CHUNKS_PER_POLL` chunks.  So the interval between polls
    grows up to `_MAX_INTERVAL_MS` while no barrier is about to finish.

    `wake_journal` asks the journal to store all runs on disk if `slab.sync` is "each flush"; else it does nothing.
    """

    def __init__(
        self,
        loop: Loop,
        barriers: Barriers,
        outcome_counter: OutcomeCounter,
        publisher: RunPublisher,
        *,
        after_poll: Callable[[], None],
        wake_journal: Callable[[], object],
    ) -> None:
        self._loop = loop
        self._barriers = barriers
        self._outcome_counter = outcome_counter
        self._publisher = publisher
        self._after_poll = after_poll
        self._wake_journal = wake_journal
        self._timer: Timer | None = None
        self._interval_ms: float = _MIN_INTERVAL_MS
        self._next_flush_ms = 0

    def start(self) -> None:
        """Hand over all messages for a new barrier, ask for their delivery, and poll at the shortest interval again."""
        self._barriers.has_new_barrier = False
        self._publisher.publish_open_runs()
        self._flush()
        self._interval_ms = _MIN_INTERVAL_MS
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(_MIN_INTERVAL_MS / 1000, self._poll)

    def _flush(self) -> None:
        """Ask the router to send the unsettled messages now, and the journal to copy them, as pending barriers need it.

        The caller has published the open runs.
        """
        self._next_flush_ms = steady_ms() + _FLUSH_RETRY_MS
        if self._barriers.has_delivery_barrier:
            self._publisher.flush(self._outcome_counter.unsettled_topics())
        self._barriers.on_handed_over()
        if self._barriers.has_durable_barrier:
            self._wake_journal()

    def _poll(self) -> None:
        poll_start = time.monotonic()
        remaining_intervals = self._barriers.answer_finished(steady_ms())
        self._after_poll()
        self._timer = None
        if not len(self._barriers):
            return
        if steady_ms() >= self._next_flush_ms:
            if self._barriers.lacks_ticket:  # `SpillFeed` may have appended messages after the last flush
                self._publisher.publish_open_runs()
            self._flush()
        poll_ms = (time.monotonic() - poll_start) * 1000
        self._interval_ms = _next_interval_ms(self._interval_ms, remaining_intervals)
        delay_ms = max(self._interval_ms, _MIN_INTERVAL_RATIO * poll_ms)
        due_ms = self._barriers.due_ms
        if due_ms is not None:
            delay_ms = min(delay_ms, max(1, due_ms - steady_ms()))
        self._timer = self._loop.call_later(delay_ms / 1000, self._poll)
