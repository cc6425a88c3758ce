"""The idempotence checks of a real broker, case by case."""

from __future__ import annotations

import pytest

from bruce_mp.devbroker.batch import BatchHead
from bruce_mp.devbroker.codes import Code, RefusedError
from bruce_mp.devbroker.log import AppendResult, PartitionLog, Retention
from bruce_mp.devbroker.producers import REMEMBERED_BATCHES
from devbroker.kit import make_batch

PRODUCER = 1000
LAST = 2**31 - 1


class Writer:
    """Writer that appends batches of one producer to a fresh log."""

    def __init__(self) -> None:
        self.log = PartitionLog(Retention(1 << 20))

    def append(self, sequence: int, count: int = 1, *, epoch: int = 0, producer: int = PRODUCER) -> AppendResult:
        raw = make_batch(count, producer=(producer, epoch, sequence))
        return self.log.append(BatchHead.unpack(raw), raw, 0)

    def refused(self, sequence: int, count: int = 1, *, epoch: int = 0) -> int:
        with pytest.raises(RefusedError) as refusal:
            self.append(sequence, count, epoch=epoch)
        return refusal.value.code


@pytest.fixture
def writer() -> Writer:
    return Writer()


def test_a_repeated_batch_is_acknowledged_with_its_first_offset(writer: Writer) -> None:
    writer.append(0, 3)
    writer.append(3, 2)
    again = writer.append(0, 3)
    assert again == AppendResult(0, 1002, is_duplicate=True)
    assert writer.log.end == 5


def test_five_batches_are_remembered_and_no_more(writer: Writer) -> None:
    for sequence in range(REMEMBERED_BATCHES + 1):
        writer.append(sequence)
    assert [writer.append(sequence).base_offset for sequence in range(1, REMEMBERED_BATCHES + 1)] == [1, 2, 3, 4, 5]
    assert writer.refused(0) == Code.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_a_sequence_gap_is_refused_and_changes_nothing(writer: Writer) -> None:
    writer.append(0, 3)
    assert writer.refused(4) == Code.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert writer.append(3).base_offset == 3


def test_a_batch_of_another_length_is_not_a_duplicate(writer: Writer) -> None:
    writer.append(0, 3)
    assert writer.refused(0, 2) == Code.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_an_old_epoch_is_refused(writer: Writer) -> None:
    writer.append(0, epoch=1)
    assert writer.refused(0, epoch=0) == Code.INVALID_PRODUCER_EPOCH
    assert writer.refused(1, epoch=0) == Code.INVALID_PRODUCER_EPOCH


def test_a_new_epoch_starts_at_zero(writer: Writer) -> None:
    writer.append(0, 3)
    assert writer.refused(3, epoch=1) == Code.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert writer.append(0, 3, epoch=1) == AppendResult(3, -1, is_duplicate=False)
    assert writer.append(3, epoch=1).base_offset == 6


def test_an_unseen_producer_may_start_at_any_sequence(writer: Writer) -> None:
    assert writer.append(77).base_offset == 0
    assert writer.append(78).base_offset == 1


def test_sequences_wrap_at_2_to_the_31(writer: Writer) -> None:
    writer.append(LAST - 1, 3)  # LAST - 1, LAST, 0
    assert writer.refused(3) == Code.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert writer.append(1).base_offset == 3
    assert writer.append(LAST - 1, 3) == AppendResult(0, 1002, is_duplicate=True)


def test_zero_follows_the_last_sequence(writer: Writer) -> None:
    writer.append(LAST)
    assert writer.append(0).base_offset == 1


def test_producers_have_independent_sequences(writer: Writer) -> None:
    writer.append(0, producer=1)
    writer.append(0, producer=2)
    assert writer.append(1, producer=1).base_offset == 2


def test_batches_without_a_producer_are_never_duplicates(writer: Writer) -> None:
    raw = make_batch(2)
    offsets = [writer.log.append(BatchHead.unpack(raw), raw, 0).base_offset for _ in range(3)]
    assert offsets == [0, 2, 4]
