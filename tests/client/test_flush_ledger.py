"""The counts of a client's ledger, when its connection breaks between a flush's answer and its outcome."""

from __future__ import annotations

import pytest

from bruce_mp.client.flush import FlushError, FlushLedger
from bruce_mp.protocol.client.barrier import BarrierAnswer, BarrierStatus


def answer(received: int, delivered: int) -> BarrierAnswer:
    return BarrierAnswer(b"", BarrierStatus.DONE, received, delivered, 0)


def received_ledger() -> FlushLedger:
    """Return a ledger of ten messages that the daemon has received and not delivered."""
    ledger = FlushLedger()
    ledger.on_written(10)
    ledger.resolve(ledger.mark(), answer(10, 0))
    return ledger


def test_an_answer_from_an_ended_connection_counts_from_the_flush_before() -> None:
    ledger = received_ledger()
    mark = ledger.mark()
    ledger.on_connection_ended()
    outcome = ledger.resolve(mark, answer(10, 10))
    assert (outcome.received, outcome.delivered) == (0, 10)


def test_an_answer_from_an_ended_connection_leaves_the_counts_of_the_next() -> None:
    ledger = received_ledger()
    mark = ledger.mark()
    ledger.on_connection_ended()
    ledger.on_written(1)
    ledger.resolve(mark, answer(10, 10))
    outcome = ledger.resolve(ledger.mark(), answer(1, 1))
    assert (outcome.received, outcome.delivered) == (1, 1)


def test_messages_of_an_ended_connection_are_uncertain_despite_an_answer() -> None:
    ledger = received_ledger()
    ledger.on_written(3)
    mark = ledger.mark()
    ledger.on_connection_ended()
    with pytest.raises(FlushError, match="3 messages"):
        ledger.resolve(mark, answer(13, 13))
