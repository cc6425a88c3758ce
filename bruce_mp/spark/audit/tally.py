"""Counts what one task read from Kafka: which sequence numbers of which writer, how often, and in which order.

Works on Arrow batches whose rows are in the order of their offsets.  What it says is small: for each *cell* (a topic's
partition, a writer's attempt, a minute, and 32,768 sequence numbers) one row with bitmaps.  Rows add up: counts by sum
and bitmaps by OR, over partitions, attempts and tasks.  So a cell may be closed and begun again: memory is bounded.

Bitmaps are those of Spark's `bitmap_or_agg` and `bitmap_count`: bit n is bit n % 8 of byte n / 8; zeros at the end are
left out.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["BUCKET_BITS", "FACTS", "LATENCIES", "Tally"]

BUCKET_BITS: Final = 15
_BUCKET: Final = 1 << BUCKET_BITS
_STAMP_BYTES: Final = 16
_MINUTE_MS: Final = 60_000
_CELLS: Final = 512
"""Cells in memory, of 96 KiB at most."""
_LANES: Final = 100_000
_RUNS: Final = 16
"""Runs of a task that are looked for in a batch; order behind further ones is not checked."""
_EXACT_BITS: Final = 7
"""Latencies are kept with so many leading bits: the error is below 1 %."""

FACTS: Final = pa.schema(
    [
        ("topic", pa.string()), ("partition", pa.int32()), ("writer", pa.string()), ("attempt", pa.int32()),
        ("minute", pa.int64()), ("bucket", pa.int64()), ("copies", pa.int64()), ("bits", pa.binary()),
        ("again", pa.binary()), ("late", pa.binary()),
    ]
)  # fmt: skip
"""`writer` is query/batch/partition; null, as all behind it but `minute` and `copies`, for messages without a stamp.
`again` has the numbers that came more than once, `late` those that came behind a later one of their attempt in their
partition; null for none."""
LATENCIES: Final = pa.schema(
    [("topic", pa.string()), ("minute", pa.int64()), ("ms", pa.int64()), ("messages", pa.int64())]
)

Ints = np.ndarray[Any, np.dtype[np.int64]]
Flags = np.ndarray[Any, np.dtype[np.bool_]]


class _Lane(NamedTuple):
    """Messages that keep their order: those of an attempt in a partition."""

    topic: str
    partition: int
    writer: str
    attempt: int


class _Place(NamedTuple):
    """A message of a lane."""

    sequence: int
    sent: int


_NOTHING: Final = _Place(-1, 0)


@dataclass(slots=True)
class _Cell:
    copies: int = 0
    seen: Flags = field(default_factory=lambda: np.zeros(_BUCKET, np.bool_))
    again: Flags | None = None
    late: Flags | None = None


class Tally:
    """`take` batches, then `rows` and `latencies`.  `full` says that `rows` should be fetched meanwhile."""

    def __init__(self) -> None:
        self._cells: dict[tuple[_Lane, int, int], _Cell] = {}
        self._highest: dict[_Lane, _Place] = {}
        self._plain: dict[tuple[str, int, int], int] = {}
        self._latencies: dict[tuple[str, int], Ints] = {}

    # --- counting ----------------------------------------------------------------------------------------------------
    def take(self, batch: pa.RecordBatch) -> None:
        """Count a batch with the columns topic, partition, kafka_ms, appended and stamp."""
        stamp = batch.column("stamp")
        stamped = np.asarray(pc.fill_null(pc.greater_equal(pc.binary_length(stamp), _STAMP_BYTES), False))
        if not stamped.all():
            self._take_plain(batch.filter(pa.array(~stamped)))
            batch = batch.filter(pa.array(stamped))
        if batch.num_rows:
            self._take_stamped(batch)

    def _take_plain(self, batch: pa.RecordBatch) -> None:
        minutes = _minutes(_ints(batch.column("kafka_ms")))
        table = pa.table([batch.column("topic"), batch.column("partition"), pa.array(minutes)], ["t", "p", "m"])
        counted = table.group_by(["t", "p", "m"]).aggregate([([], "count_all")])
        for topic, partition, minute, count in zip(*(column.to_pylist() for column in counted.columns), strict=True):
            key = (topic, partition, minute)
            self._plain[key] = self._plain.get(key, 0) + count

    def _take_stamped(self, batch: pa.RecordBatch) -> None:
        stamp = batch.column("stamp")
        numbers = _numbers(stamp)
        sequence, sent = numbers[:, 0].astype(np.int64), numbers[:, 1].astype(np.int64)
        minutes = _minutes(sent)
        topics = batch.column("topic").dictionary_encode()
        writers = pc.binary_replace_slice(stamp, 0, _STAMP_BYTES, b"").dictionary_encode()
        partitions = _ints(batch.column("partition"))
        code = (_ints(topics.indices) << 48) + (partitions << 24) + _ints(writers.indices)
        names, authors = topics.dictionary.to_pylist(), writers.dictionary.to_pylist()
        for rows in _groups(code):
            first = rows[0] if isinstance(rows, np.ndarray) else rows.start
            writer, attempt = _author(authors[writers.indices[int(first)].as_py()])
            lane = _Lane(names[topics.indices[int(first)].as_py()], int(partitions[first]), writer, attempt)
            self._take_lane(lane, sequence[rows], sent[rows])
        self._take_latencies(batch, topics, sent, minutes)

    def _take_lane(self, lane: _Lane, sequence: Ints, sent: Ints) -> None:
        late = self._late(lane, sequence, sent)
        minutes, buckets = _minutes(sent), sequence >> BUCKET_BITS
        for start, stop in pairwise(_edges(minutes, buckets)):
            cell = self._cells.setdefault((lane, int(minutes[start]), int(buckets[start])), _Cell())
            _count(cell, sequence[start:stop] & (_BUCKET - 1), late[start:stop])

    def _late(self, lane: _Lane, sequence: Ints, sent: Ints) -> Flags:
        """Which messages stand behind a later one.

        A smaller number that was sent later is not late: a task that runs again begins again.
        """
        late = np.zeros(len(sequence), np.bool_)
        highest = self._highest.pop(lane, _NOTHING)
        start = 0
        for _ in range(_RUNS):
            part, again, highest = _behind(sequence[start:], sent[start:], highest)
            stop = start + len(part)
            late[start:stop] = part
            if not again:
                break
            start = stop
        if len(self._highest) >= _LANES:
            del self._highest[next(iter(self._highest))]
        self._highest[lane] = highest
        return late

    def _take_latencies(self, batch: pa.RecordBatch, topics: pa.DictionaryArray, sent: Ints, minutes: Ints) -> None:
        appended = np.asarray(batch.column("appended"), np.bool_)
        if not appended.any():
            return
        spent = np.maximum(_ints(batch.column("kafka_ms")) - sent, 0)
        code = (_ints(topics.indices) << 40) + minutes // _MINUTE_MS
        names = topics.dictionary.to_pylist()
        for rows in _groups(np.where(appended, code, -1)):
            first = rows[0] if isinstance(rows, np.ndarray) else rows.start
            if appended[first]:
                key = (names[topics.indices[int(first)].as_py()], int(minutes[first]))
                counts = np.bincount(_bins(spent[rows]), minlength=_BINS)
                self._latencies[key] = self._latencies.get(key, 0) + counts

    # --- what it says ------------------------------------------------------------------------------------------------
    @property
    def full(self) -> bool:
        return len(self._cells) >= _CELLS

    def rows(self) -> pa.Table:
        """The cells as `FACTS`; they are forgotten."""
        columns: list[list[Any]] = [[] for _ in FACTS]
        for row in self._facts():
            for column, value in zip(columns, row, strict=True):
                column.append(value)
        self._cells.clear()
        self._plain.clear()
        return pa.table(columns, schema=FACTS)

    def _facts(self) -> Iterator[tuple[Any, ...]]:
        for (lane, minute, bucket), cell in self._cells.items():
            maps = (_packed(cell.seen), _packed(cell.again), _packed(cell.late))
            yield (*lane, minute, bucket, cell.copies, *maps)
        for (topic, partition, minute), count in self._plain.items():
            yield (topic, partition, None, None, minute, None, count, None, None, None)

    def latencies(self) -> pa.Table:
        """Milliseconds from stamp to append, of topics that the broker stamps, as `LATENCIES`."""
        columns: list[list[Any]] = [[] for _ in LATENCIES]
        for (topic, minute), counts in self._latencies.items():
            for bin_ in np.flatnonzero(counts):
                for column, value in zip(columns, (topic, minute, _low(int(bin_)), int(counts[bin_])), strict=True):
                    column.append(value)
        return pa.table(columns, schema=LATENCIES)


def _behind(sequence: Ints, sent: Ints, highest: _Place) -> tuple[Flags, bool, _Place]:
    """Which messages of a run stand behind a later one; whether another run follows; the highest of the last run.

    The flags end where the next run begins.
    """
    numbers, times = np.concatenate(([highest.sequence], sequence)), np.concatenate(([highest.sent], sent))
    top = np.maximum.accumulate(numbers)
    smaller = sequence < top[:-1]
    if not smaller.any():
        return smaller, False, _Place(int(numbers[-1]), int(times[-1]))
    holder = np.maximum.accumulate(np.where(numbers == top, np.arange(len(numbers)), 0))
    restarts = np.flatnonzero(smaller & (sent > times[holder[:-1]]))
    if len(restarts):
        return smaller[: restarts[0]], True, _NOTHING
    last = int(holder[-1])
    return smaller, False, _Place(int(numbers[last]), int(times[last]))


def _count(cell: _Cell, bits: Ints, late: Flags) -> None:
    """Count the numbers of one cell, in their order."""
    cell.copies += len(bits)
    seen = cell.seen[bits]
    if not seen.any() and not late.any() and bool(np.all(bits[1:] > bits[:-1])):
        cell.seen[bits] = True
        return
    _, first = np.unique(bits, return_index=True)
    copy = np.ones(len(bits), np.bool_)
    copy[first] = False
    copy |= seen
    cell.seen[bits] = True
    cell.again = _marked(cell.again, bits[copy])
    cell.late = _marked(cell.late, bits[late & ~copy])


def _marked(flags: Flags | None, bits: Ints) -> Flags | None:
    if len(bits):
        flags = np.zeros(_BUCKET, np.bool_) if flags is None else flags
        flags[bits] = True
    return flags


def _packed(flags: Flags | None) -> bytes | None:
    return None if flags is None else np.packbits(flags, bitorder="little").tobytes().rstrip(b"\0")


def _author(text: bytes) -> tuple[str, int]:
    """Writer and attempt of a stamp; what is none of ours is a writer that no ledger knows."""
    writer, _, attempt = text.decode(errors="backslashreplace").rpartition("/")
    return (writer, int(attempt)) if attempt.isascii() and attempt.isdigit() and len(attempt) < 10 else (attempt, 0)


def _numbers(stamp: pa.BinaryArray) -> np.ndarray[Any, np.dtype[Any]]:
    """The first 16 bytes of each stamp, as two columns."""
    _, offsets_buffer, data_buffer = stamp.buffers()
    offsets = np.frombuffer(offsets_buffer, np.int32)[stamp.offset : stamp.offset + len(stamp) + 1]
    data = np.frombuffer(data_buffer, np.uint8)
    width = int(offsets[1] - offsets[0])
    if offsets[-1] - offsets[0] == width * len(stamp) and bool(np.all(np.diff(offsets) == width)):
        heads = data[offsets[0] : offsets[-1]].reshape(len(stamp), width)[:, :_STAMP_BYTES]
    else:
        heads = data[offsets[:-1, None] + np.arange(_STAMP_BYTES)]
    return np.ascontiguousarray(heads).view(">i8")


def _groups(code: Ints) -> Iterator[slice | Ints]:
    """The rows of each code, in their order."""
    if bool(np.all(code == code[0])):
        yield slice(0, len(code))
        return
    order = np.argsort(code, kind="stable")
    for start, stop in pairwise(_edges(code[order])):
        yield order[start:stop]


def _edges(*columns: Ints) -> list[int]:
    """Where runs of rows begin that are alike in all columns; and the end."""
    change = np.zeros(len(columns[0]) - 1, np.bool_)
    for column in columns:
        change |= column[1:] != column[:-1]
    return [0, *(np.flatnonzero(change) + 1).tolist(), len(columns[0])]


def _minutes(times: Ints) -> Ints:
    return times - times % _MINUTE_MS


def _ints(column: pa.Array) -> Ints:
    return np.asarray(column.to_numpy(zero_copy_only=False), np.int64)


# --- latencies -------------------------------------------------------------------------------------------------------
_BINS: Final = (64 - _EXACT_BITS + 1) << (_EXACT_BITS - 1)


def _bins(spent: Ints) -> Ints:
    """Each latency's bin: as it is up to 127 ms, then by its leading bits."""
    shift = np.maximum(np.frexp(spent.astype(np.float64))[1] - _EXACT_BITS, 0).astype(np.int64)
    bins: Ints = (shift << (_EXACT_BITS - 1)) + (spent >> shift)
    return bins


def _low(bin_: int) -> int:
    """The smallest latency of a bin."""
    shift = max((bin_ >> (_EXACT_BITS - 1)) - 1, 0)
    return (bin_ - (shift << (_EXACT_BITS - 1))) << shift
