"""The counting of one task: bitmaps, copies, order and latencies, against counting by hand."""

from __future__ import annotations

from collections import Counter, defaultdict
from struct import pack
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bruce_mp.spark.audit.tally import FACTS, Tally, _bins, _low

if TYPE_CHECKING:
    from collections.abc import Iterable

MINUTE: Final = 60_000
Row = tuple[str, int, str | None, int, int]
"""topic, partition, writer with attempt (None: no stamp), sequence, ms"""
SCHEMA: Final = pa.schema(
    [
        ("topic", pa.string()), ("partition", pa.int32()), ("kafka_ms", pa.int64()), ("appended", pa.bool_()),
        ("stamp", pa.binary()),
    ]
)  # fmt: skip
ROWS: Final = st.lists(
    st.tuples(
        st.sampled_from(["a", "b"]), st.integers(0, 1), st.sampled_from([None, "q/0/0/0", "query/1/2/3"]),
        st.integers(0, 6) | st.integers(32_766, 32_770), st.sampled_from([0, 59_999, 60_000]),
    ),
    max_size=40,
)  # fmt: skip


def batch(rows: Iterable[Row], *, appended: bool = False, spent: int = 5) -> pa.RecordBatch:
    lines = [
        {
            "topic": topic, "partition": partition, "kafka_ms": ms + spent, "appended": appended,
            "stamp": None if writer is None else pack(">qq", sequence, ms) + writer.encode(),
        }
        for topic, partition, writer, sequence, ms in rows
    ]  # fmt: skip
    return pa.RecordBatch.from_pylist(lines, SCHEMA)


def numbers(bits: bytes | None, bucket: int) -> set[int]:
    flags = np.unpackbits(np.frombuffer(bits or b"", np.uint8), bitorder="little")
    return {bucket * 32_768 + int(bit) for bit in np.flatnonzero(flags)}


@given(rows=ROWS, cut=st.integers(0, 40))
def test_what_is_counted_is_what_was_there(rows: list[Row], cut: int) -> None:
    tally = Tally()
    for part in (rows[:cut], rows[cut:]):
        tally.take(batch(part, spent=0))
    table = tally.rows()
    assert table.schema.equals(FACTS)
    stamped: dict[tuple[object, ...], list[int]] = defaultdict(list)
    plain: Counter[tuple[object, ...]] = Counter()
    for topic, partition, writer, sequence, ms in rows:
        if writer is None:
            plain[topic, partition, ms - ms % MINUTE] += 1
        else:
            name, _, attempt = writer.rpartition("/")
            stamped[topic, partition, name, int(attempt), ms - ms % MINUTE, sequence >> 15].append(sequence)
    for row in table.to_pylist():
        if row["writer"] is None:
            assert plain.pop((row["topic"], row["partition"], row["minute"])) == row["copies"]
            continue
        key = tuple(row[name] for name in ("topic", "partition", "writer", "attempt", "minute", "bucket"))
        found = stamped.pop(key)
        assert row["copies"] == len(found)
        assert numbers(row["bits"], row["bucket"]) == set(found)
        assert numbers(row["again"], row["bucket"]) == {number for number, count in Counter(found).items() if count > 1}
    assert not stamped
    assert not plain


@given(order=st.permutations(range(8)), again=st.lists(st.integers(0, 7), max_size=3), cut=st.integers(0, 11))
def test_who_stands_behind_a_later_one_is_late_and_copies_are_not(order: list[int], again: list[int], cut: int) -> None:
    sequence = [number * 10_000 for number in [*order, *again]]
    rows: list[Row] = [("t", 0, "q/0/0/0", number, 0) for number in sequence]
    tally = Tally()
    tally.take(batch(rows[:cut]))
    tally.take(batch(rows[cut:]))
    late = {number for place, number in enumerate(sequence[:8]) if number < max(sequence[: place + 1])}
    assert {n for row in tally.rows().to_pylist() for n in numbers(row["late"], row["bucket"])} == late


def test_a_task_that_runs_again_begins_again() -> None:
    again: list[Row] = [("t", 0, "q/0/0/0", number, 1000) for number in (0, 2, 3, 1, 9)]
    rows: list[Row] = [("t", 0, "q/0/0/0", number, 0) for number in (1, 5, 4)]
    tally = Tally()
    tally.take(batch([*rows, *again]))
    (row,) = tally.rows().to_pylist()
    assert numbers(row["late"], 0) == {4}, "1 is a copy"
    tally.take(batch([("t", 0, "q/0/0/0", 8, 1000)]))
    (row,) = tally.rows().to_pylist()
    assert numbers(row["late"], 0) == {8}


def test_partitions_and_attempts_have_orders_of_their_own() -> None:
    tally = Tally()
    tally.take(batch([("t", 0, "q/0/0/0", 5, 0), ("t", 1, "q/0/0/0", 4, 0), ("t", 0, "q/0/0/1", 3, 0)]))
    assert tally.rows()["late"].null_count == 3


def test_it_says_when_it_is_full_and_goes_on_after_its_rows_were_fetched() -> None:
    tally = Tally()
    for writer in range(600):
        tally.take(batch([("t", 0, f"q/{writer}/0/0", 7, 0)]))
    assert tally.full
    assert tally.rows().num_rows == 600
    tally.take(batch([("t", 0, "q/0/0/0", 6, 0)]))
    (row,) = tally.rows().to_pylist()
    assert numbers(row["late"], 0) == {6}
    assert tally.rows().num_rows == 0


@pytest.mark.parametrize("text", ["", "q", "q/0/0/x", "q/0/0/99999999999", "\udcff"])
def test_a_stamp_of_somebody_else_is_an_unknown_writer(text: str) -> None:
    stamp = pack(">qq", 1, 0) + text.encode(errors="surrogateescape")
    line = {"topic": "t", "partition": 0, "kafka_ms": 0, "appended": False, "stamp": stamp}
    tally = Tally()
    tally.take(pa.RecordBatch.from_pylist([line, {**line, "stamp": b"short"}], SCHEMA))
    assert [row["writer"] is None for row in tally.rows().to_pylist()] == [False, True]


def test_latencies_only_where_the_broker_stamps() -> None:
    tally = Tally()
    tally.take(batch([("t", 0, "q/0/0/0", 1, 0)]))
    assert tally.latencies().num_rows == 0
    for spent in (-3, 7, 7, 1000):
        tally.take(batch([("t", 0, "q/0/0/0", 1, 0)], appended=True, spent=spent))
    found = [(row["ms"], row["messages"]) for row in tally.latencies().to_pylist()]
    assert found == [(0, 1), (7, 2), (1000, 1)]


@given(st.integers(0, 2**53))
def test_a_bin_begins_at_most_a_64th_below_its_latencies(spent: int) -> None:
    low = _low(int(_bins(np.array([spent]))[0]))
    assert low <= spent
    assert spent - low <= spent / 64
