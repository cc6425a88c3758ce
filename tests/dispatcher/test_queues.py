"""The queues of a dispatcher: the effects of a good response, and the removal of queues."""

from __future__ import annotations

import pytest

from bruce_mp.dispatcher.queues import (
    MAX_RETRY_DELAY_S,
    MIN_RETRY_DELAY_S,
    PartitionQueue,
    Queues,
    QueueState,
)
from bruce_mp.slab.recovery import BuiltBatch
from bruce_mp.slab.runs import Segment

SEGMENT = Segment(0, 1, 64, 152, 1, 1)


def test_only_idle_queues_of_removed_topics_are_discarded() -> None:
    queues = Queues(6, {1}.__contains__)
    queues.get_or_create(1, 0)
    queues.get_or_create(2, 0).ready.append(SEGMENT)
    queues.get_or_create(3, 0).state = QueueState.PAUSED
    queues.get_or_create(4, 0).must_hand_back = True
    scheduled = queues.get_or_create(5, 0)
    scheduled.is_scheduled = True
    queues.get_or_create(6, 0)
    assert len(queues) == 6
    queues.get_or_create(7, 0)
    assert queues.keys() == {(number, 0) for number in (1, 2, 3, 4, 5, 7)}
    assert queues.get_or_create(5, 0) is scheduled
    scheduled.is_scheduled = False
    queues.get_or_create(8, 0)
    assert queues.keys() == {(number, 0) for number in (1, 2, 3, 4, 8)}


def test_no_queue_is_discarded_below_the_limit() -> None:
    queues = Queues(6, lambda _: False)
    first = queues.get_or_create(1, 0)
    for number in range(2, 7):
        queues.get_or_create(number, 0)
    assert queues.get_or_create(1, 0) is first
    assert len(queues) == 6


def test_the_last_successful_ack_clears_the_in_doubt_state() -> None:
    """While a built batch waits for its response, the broker may still carry out an abandoned request.

    An accepted batch may be a repetition meanwhile, so that the broker expects a later number.
    """
    queue = PartitionQueue(1, 0)
    batches = [BuiltBatch(1, 0, 0, 0, (SEGMENT, SEGMENT)), BuiltBatch(1, 0, 0, 2, (SEGMENT,))]
    queue.in_flight.extend(batches)
    queue.in_doubt, queue.expected_sequence = True, 0
    found: list[tuple[bool, int | None]] = []
    for batch in batches:
        queue.on_accepted(batch)
        found.append((queue.in_doubt, queue.expected_sequence))
    assert found == [(True, None), (False, None)]


@pytest.mark.parametrize(("base", "expected"), [(5, 7), (2**31 - 2, 0), (2**31 - 1, 1), (-1, None)])
def test_an_accepted_batch_sets_the_expected_sequence_number(base: int, expected: int | None) -> None:
    queue = PartitionQueue(1, 0)
    queue.in_flight.append(BuiltBatch(1, 0, 0, base, (SEGMENT, SEGMENT)))
    queue.on_accepted(queue.in_flight[0])
    assert (queue.in_flight, queue.expected_sequence) == ([], expected)


@pytest.mark.parametrize("base", [0, 2**31 - 3])
def test_only_a_batch_behind_all_gaps_shows_that_there_is_none(base: int) -> None:
    numbers = [(base + index) & 0x7FFFFFFF for index in range(6)]
    queue = PartitionQueue(1, 0)
    batches = [BuiltBatch(1, 0, 0, number, (SEGMENT,)) for number in numbers]
    queue.begin_gap(batches[4])
    queue.begin_gap(batches[1])
    found = []
    for batch in (batches[0], batches[2], batches[5]):
        queue.in_flight.append(batch)
        queue.on_accepted(batch)
        found.append(queue.gap_end)
    assert found == [numbers[5], numbers[5], None]


def test_each_back_off_lasts_about_twice_as_long_until_a_batch_is_accepted() -> None:
    queue = PartitionQueue(1, 0)
    for count in range(12):
        queue.must_back_off = True
        queue.start_backoff(100.0)
        delay_s = min(MIN_RETRY_DELAY_S * 2**count, MAX_RETRY_DELAY_S)
        assert delay_s / 2 <= queue.backoff_end - 100.0 <= delay_s * 3 / 2
        assert not queue.must_back_off
    batch = BuiltBatch(1, 0, 0, 0, (SEGMENT,))
    queue.in_flight.append(batch)
    queue.on_accepted(batch)
    queue.start_backoff(100.0)
    assert queue.backoff_end <= 100.0 + MIN_RETRY_DELAY_S * 3 / 2


def test_only_until_the_next_accepted_batch_are_batches_taken_for_parts() -> None:
    queue = PartitionQueue(1, 0)
    whole = BuiltBatch(1, 0, 0, 0, (SEGMENT, SEGMENT))
    first, second = BuiltBatch(1, 0, 0, 0, (SEGMENT,)), BuiltBatch(1, 0, 0, 1, (SEGMENT,))
    queue.note_cut(whole)
    queue.resend = [second, BuiltBatch(1, 0, 0, 2, (SEGMENT,))]
    assert queue.begins_with_part
    queue.in_flight.append(first)
    queue.on_accepted(first)
    assert not queue.begins_with_part


def test_the_queue_counts_all_messages_and_knows_the_oldest() -> None:
    queue = PartitionQueue(1, 0)
    segments = [Segment(0, 1, 64 * number, 152, number, 1) for number in range(1, 5)]
    found = []
    for segment, batches in zip(segments[1:], (queue.resend, queue.in_flight, queue.failed), strict=True):
        found.append((queue.first_segment, queue.message_count))
        batches.append(BuiltBatch(1, 0, 0, 0, (segment,)))
    queue.ready.append(segments[0])
    counts = [segment.records for segment in segments]
    found.append((queue.first_segment, queue.message_count))
    assert found == [(None, 0), (segments[1], counts[1]), (segments[2], sum(counts[1:3])), (segments[3], sum(counts))]


def test_a_lost_connection_makes_the_expected_sequence_number_unknown() -> None:
    queue = PartitionQueue(1, 0)
    batches = [BuiltBatch(1, 0, 0, number, (SEGMENT,)) for number in range(3)]
    queue.expected_sequence = 0
    queue.failed, queue.in_flight, queue.resend = batches[:1], batches[1:2], batches[2:]
    assert queue.fail_in_flight() == batches[1:2]
    assert (queue.resend, queue.in_flight, queue.failed) == (batches, [], [])
    assert queue.in_doubt
    assert [queue.expected_sequence] == [None]


def test_a_queue_that_was_handed_back_begins_anew() -> None:
    queue = PartitionQueue(1, 0)
    batches = [BuiltBatch(1, 0, 0, number, (SEGMENT,)) for number in range(2)]
    queue.failed, queue.resend, queue.state = batches[:1], batches[1:], QueueState.PAUSED
    queue.ready.append(SEGMENT)
    queue.expected_sequence, queue.in_doubt, queue.must_hand_back, queue.must_bump_epoch = 0, True, True, True
    queue.start_backoff(100.0)
    queue.begin_gap(batches[0])
    assert queue.pop_all() == (batches, [SEGMENT])
    new = PartitionQueue(1, 0)
    assert {name: getattr(queue, name) for name in queue.__slots__} == {
        name: getattr(new, name) for name in new.__slots__
    }
