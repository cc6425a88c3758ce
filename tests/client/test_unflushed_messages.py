"""The counts of a client's unflushed messages, when its connection breaks between a flush's answer and its outcome."""

from __future__ import annotations

import pytest

from bruce_mp.client.flush import FlushError, UnflushedMessages
from bruce_mp.protocol.client.barrier import BarrierAnswer, BarrierStatus


def answer(received: int, delivered: int) -> BarrierAnswer:
    return BarrierAnswer(b"", BarrierStatus.DONE, received, delivered, 0)


def received_messages() -> UnflushedMessages:
    """Return the counts of ten messages that the daemon has received and not delivered."""
    unflushed = UnflushedMessages()
    unflushed.on_written(10)
    unflushed.resolve(unflushed.mark(), answer(10, 0))
    return unflushed


def test_an_answer_from_an_ended_connection_counts_from_the_flush_before() -> None:
    unflushed = received_messages()
    mark = unflushed.mark()
    unflushed.on_connection_ended()
    outcome = unflushed.resolve(mark, answer(10, 10))
    assert (outcome.received, outcome.delivered) == (0, 10)


def test_an_answer_from_an_ended_connection_leaves_the_counts_of_the_next() -> None:
    unflushed = received_messages()
    mark = unflushed.mark()
    unflushed.on_connection_ended()
    unflushed.on_written(1)
    unflushed.resolve(mark, answer(10, 10))
    outcome = unflushed.resolve(unflushed.mark(), answer(1, 1))
    assert (outcome.received, outcome.delivered) == (1, 1)


def test_messages_of_an_ended_connection_are_uncertain_despite_an_answer() -> None:
    unflushed = received_messages()
    unflushed.on_written(3)
    mark = unflushed.mark()
    unflushed.on_connection_ended()
    with pytest.raises(FlushError, match="3 messages"):
        unflushed.resolve(mark, answer(13, 13))
