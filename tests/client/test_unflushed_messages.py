"""The counts of a client's unflushed messages, when its connection breaks between a flush's answer and its outcome."""

from __future__ import annotations

import pytest

from bruce_mp.client.flush import FlushError, FlushMark, UnflushedMessages
from bruce_mp.protocol.client.barrier import BarrierAnswer, BarrierStatus, Level


def answer(received: int, delivered: int) -> BarrierAnswer:
    return BarrierAnswer(b"", BarrierStatus.DONE, received, delivered, 0)


def mark_of(unflushed: UnflushedMessages, level: Level) -> FlushMark:
    """Return the mark of a flush that is called now."""
    return unflushed.mark(level, unflushed.lost_counts)


def received_messages() -> UnflushedMessages:
    """Return the counts of ten messages that the daemon has received and not delivered."""
    unflushed = UnflushedMessages()
    unflushed.on_written(10)
    unflushed.resolve(mark_of(unflushed, Level.RECEIVED), answer(10, 0))
    return unflushed


def test_an_answer_from_an_ended_connection_counts_from_the_flush_before() -> None:
    unflushed = received_messages()
    mark = mark_of(unflushed, Level.RECEIVED)
    unflushed.on_connection_ended()
    outcome = unflushed.resolve(mark, answer(10, 10))
    assert (outcome.received, outcome.delivered) == (0, 10)


def test_an_answer_from_an_ended_connection_leaves_the_counts_of_the_next() -> None:
    unflushed = received_messages()
    mark = mark_of(unflushed, Level.RECEIVED)
    unflushed.on_connection_ended()
    unflushed.on_written(1)
    unflushed.resolve(mark, answer(10, 10))
    outcome = unflushed.resolve(mark_of(unflushed, Level.RECEIVED), answer(1, 1))
    assert (outcome.received, outcome.delivered) == (1, 1)


def test_messages_of_an_ended_connection_are_uncertain_despite_an_answer() -> None:
    unflushed = received_messages()
    unflushed.on_written(3)
    mark = mark_of(unflushed, Level.RECEIVED)
    unflushed.on_connection_ended()
    with pytest.raises(FlushError, match="3 messages"):
        unflushed.resolve(mark, answer(13, 13))


@pytest.mark.parametrize(
    ("confirmed", "uncertain"),
    [(Level.RECEIVED, {Level.DURABLE, Level.DELIVERED}), (Level.DURABLE, {Level.DELIVERED}), (Level.DELIVERED, set())],
)
def test_messages_of_an_ended_connection_are_uncertain_at_stronger_levels(
    confirmed: Level, uncertain: set[Level]
) -> None:
    for level in Level:
        unflushed = UnflushedMessages()
        unflushed.on_written(10)
        unflushed.resolve(mark_of(unflushed, confirmed), answer(10, 0))
        unflushed.on_connection_ended()
        if level in uncertain:
            with pytest.raises(FlushError, match="10 messages"):
                mark_of(unflushed, level)
        for each in Level:
            if level in uncertain or each not in uncertain:
                mark_of(unflushed, each)  # the error is raised once, and by no weaker level


def test_an_error_of_a_weaker_level_leaves_the_other_messages_to_a_stronger_one() -> None:
    unflushed = received_messages()
    unflushed.on_written(3)
    unflushed.on_connection_ended()
    for level, count in ((Level.RECEIVED, 3), (Level.DELIVERED, 10)):
        with pytest.raises(FlushError, match=f"{count} messages"):
            mark_of(unflushed, level)


def test_a_flush_that_waits_for_another_one_fails_for_a_break_that_the_other_one_reports() -> None:
    unflushed = received_messages()
    lost_before = unflushed.lost_counts
    unflushed.on_connection_ended()
    unflushed.mark(Level.RECEIVED, lost_before)
    for _ in range(2):
        with pytest.raises(FlushError, match="10 messages"):
            unflushed.mark(Level.DELIVERED, lost_before)
    mark_of(unflushed, Level.DELIVERED)
