"""One partition: append, read, search, removal, and deliberate damage."""

from __future__ import annotations

import gc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bruce_mp.devbroker.batch import BatchHead
from bruce_mp.devbroker.codes import Code, RefusedError
from bruce_mp.devbroker.control import decode_batches
from bruce_mp.devbroker.log import BATCH_OVERHEAD, PartitionLog, Retention
from devbroker.kit import make_batch


def filled(*counts: int, limit: int = 1 << 20) -> PartitionLog:
    """A log with batches of these record counts; the value is the batch's number, timestamps are 1000 apart."""
    log = PartitionLog(Retention(limit))
    for number, count in enumerate(counts):
        raw = make_batch(count, value=b"%d" % number, timestamp=1000 * (number + 1))
        log.append(BatchHead.unpack(raw), raw, 0)
    return log


def contents(log: PartitionLog, offset: int = 0, max_bytes: int = 1 << 20) -> list[tuple[int, bytes | None]]:
    return [(record.offset, record.value) for record in decode_batches(log.read(offset, max_bytes))]


def test_reading_starts_with_the_batch_that_holds_the_offset() -> None:
    log = filled(2, 3, 1)
    assert contents(log, 3) == [(2, b"1"), (3, b"1"), (4, b"1"), (5, b"2")]
    assert contents(log, 6) == []


def test_read_returns_at_least_one_batch_and_only_whole_ones() -> None:
    log = filled(2, 3, 1)
    two = len(log.read(0, 1)) + len(log.read(2, 1))
    assert contents(log, 0, 1) == [(0, b"0"), (1, b"0")]
    assert len(contents(log, 0, two)) == 5
    assert len(contents(log, 0, two - 1)) == 2


@pytest.mark.parametrize("offset", [-1, 7])
def test_offsets_out_of_range_are_refused(offset: int) -> None:
    with pytest.raises(RefusedError) as refusal:
        filled(2, 3, 1).read(offset, 1)
    assert refusal.value.code == Code.OFFSET_OUT_OF_RANGE


def test_find_timestamp_returns_the_first_record_at_or_after_it() -> None:
    log = filled(2, 3, 1)
    assert log.find_timestamp(0) == (0, 1000)
    assert log.find_timestamp(1001) == (1, 1001)
    assert log.find_timestamp(2002) == (4, 2002)
    assert log.find_timestamp(3001) is None
    assert log.find_max_timestamp() == (5, 3000)
    assert filled().find_max_timestamp() is None


def test_retention_removes_the_oldest_batches_of_all_logs() -> None:
    retention = Retention(20 * (len(make_batch()) + BATCH_OVERHEAD))
    old, new = PartitionLog(retention), PartitionLog(retention)
    for log in (old, new):
        for _ in range(15):
            log.append(BatchHead.unpack(make_batch()), make_batch(), 0)
    assert retention.held_bytes <= retention.limit_bytes
    assert new.start == 0
    assert old.start == retention.dropped_batches >= 10
    assert (old.end, new.end) == (15, 15)
    with pytest.raises(RefusedError):
        old.read(0, 1)


def test_retention_keeps_younger_batches_after_a_removal() -> None:
    retention = Retention(20 * (len(make_batch()) + BATCH_OVERHEAD))
    damaged, other = PartitionLog(retention), PartitionLog(retention)
    for log in (damaged, *[other] * 5, damaged):
        log.append(BatchHead.unpack(make_batch()), make_batch(), 0)
    damaged.remove(0)
    while not retention.dropped_batches:
        other.append(BatchHead.unpack(make_batch()), make_batch(), 0)
    assert other.start == retention.dropped_batches == 3
    assert contents(damaged) == [(1, b"value")]


def test_retention_forgets_logs_that_were_cleared() -> None:
    retention = Retention(1 << 20)
    for _ in range(5):
        log = PartitionLog(retention)
        log.append(BatchHead.unpack(make_batch()), make_batch(), 0)
        log.clear()
    del log
    logs = [item for item in gc.get_objects() if isinstance(item, PartitionLog)]
    assert not [log for log in logs if log._retention is retention]


def test_a_log_without_batches_starts_at_its_end() -> None:
    log = filled(2, 3, 1, limit=10)
    assert (log.start, log.end) == (6, 6)
    assert contents(log, 6) == []


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 5), st.booleans()), max_size=60), st.integers(1000, 5000))
def test_memory_stays_bounded_under_any_appends_and_removals(steps: list[tuple[int, int, bool]], limit: int) -> None:
    retention = Retention(limit)
    logs = [PartitionLog(retention) for _ in range(3)]
    for which, count, remove in steps:
        log = logs[which]
        if remove and log.start < log.end and log.read(log.start, 1):
            log.remove(next(decode_batches(log.read(log.start, 1))).offset)
        else:
            raw = make_batch(count)
            log.append(BatchHead.unpack(raw), raw, 0)
        stored = [batch for log in logs for batch in log._batches]
        assert retention.held_bytes == sum(len(batch.raw) + BATCH_OVERHEAD for batch in stored) <= limit
        for log in logs:
            offsets = [record.offset for record in decode_batches(log.read(log.start, 1 << 30))]
            assert offsets == sorted(set(offsets))
            assert all(log.start <= offset < log.end for offset in offsets)


def test_clear_releases_all_memory() -> None:
    retention = Retention(1 << 20)
    log = PartitionLog(retention)
    log.append(BatchHead.unpack(make_batch()), make_batch(), 0)
    log.clear()
    assert retention.held_bytes == 0


def test_a_removed_batch_leaves_a_hole() -> None:
    log = filled(2, 3, 1)
    log.remove(3)
    assert contents(log) == [(0, b"0"), (1, b"0"), (5, b"2")]
    with pytest.raises(RefusedError):
        log.remove(3)


def test_a_log_whose_only_batch_was_removed_starts_at_its_end() -> None:
    log = filled(2)
    log.remove(0)
    assert (log.start, log.end) == (2, 2)


def test_a_doubled_batch_is_appended_again_at_the_end() -> None:
    log = filled(2, 1)
    log.double(1)
    assert contents(log) == [(0, b"0"), (1, b"0"), (2, b"1"), (3, b"0"), (4, b"0")]


def test_swap_changes_only_the_order_of_two_batches() -> None:
    log = filled(2, 3, 1)
    log.swap(0)
    assert [value for _, value in contents(log)] == [b"1"] * 3 + [b"0"] * 2 + [b"2"]
    assert [offset for offset, _ in contents(log)] == list(range(6))
    with pytest.raises(RefusedError):
        log.swap(5)
