"""Encode Arrow batches for the daemon's stream socket, column by column, without Python per row.

A message is joined from pieces: fixed fields (packed in a numpy array, viewed as Arrow binary) and the variable
columns between them. `binary_join_element_wise` joins them row by row; the data buffer of its result is the byte
stream. `docs/protocol.md` has the layouts: version 2 for a batch with null or empty values or empty keys, else version
1 with record headers (the user's, or the stamp), else version 0.

The *stamp* is a record header that names a message's writer and counts the writer's messages:

    key "bruce.stamp", value: sequence, 16 digits | " " | ms since the epoch, 13 digits | " " | writer,
                              "query/batch/partition/attempt"

The stamp is text, because Spark's expressions parse text quickly, but cannot parse binary integers.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bruce_mp.protocol.client.key_hashes import Partitioner
from bruce_mp.spark.derived_columns import hash_keys, to_utc
from bruce_mp.spark.ledger import MINUTE_MS

__all__ = ["LONGEST_HEADERS", "STAMP_KEY", "MessageEncoder", "Rows", "lengths"]

STAMP_KEY: Final = b"bruce.stamp"
LONGEST_HEADERS: Final = 65_535
"""Most bytes of a message's record headers, stamp included."""
ANY_PARTITION: Final = 256
PARTITION_KEY: Final = 257
PLAIN_VERSION: Final = 0
HEADERS_VERSION: Final = 1
NULLS_VERSION: Final = 2
_FIXED_BYTES: Final = 28
"""Size of an AnyPartition message of version 0 without topic, key and value."""
_HEADERS_SIZE_BYTES: Final = 4
_PARTITION_KEY_BYTES: Final = 4
_MICROSECONDS: Final = 1000
_SHORT_HEADER_KEY: Final = 255
_STAMP_BYTES: Final = 31
"""Size of a stamp without its writer."""
_EIGHT_DIGITS: Final = 100_000_000  # two groups of `_FOUR_DIGITS`
_FOUR_DIGITS: Final = np.array([b"%04d" % number for number in range(10_000)]).view("V4")
_EMPTY_SEPARATOR: Final = pa.scalar(b"", pa.binary())
"""Separator of the pieces, created once: Arrow searches the disk for pandas at each conversion of a Python object."""

Ints = np.ndarray[Any, np.dtype[np.int64]]
Field = tuple[str, Any]
"""The numpy type of a fixed field, and its values: one, or one for each row."""


@dataclass(frozen=True)
class Rows:
    """The columns of a batch for the encoder, converted to binary where the message has bytes.

    `topic` is None if all rows have the topic of the option.
    """

    count: int
    value: pa.Array
    key: pa.Array | None
    topic: pa.Array | None
    headers: pa.Array | None
    partition_key: pa.Array | None
    timestamp: pa.Array | None
    sizes: Ints
    """Size of each row's message in bytes, as the daemon counts it."""
    version: int
    """ApiVersion of all messages."""
    corrupt: pa.Array | None = None
    """Spark's text of each row that it could not parse, null for others."""
    header_keys: Ints | None = None
    """Size of the longest header key of each row; None if no row has a header key above 255 bytes."""

    def minutes(self, now_ms: int) -> Ints:
        """Return the minute of each row's timestamp in ms since the epoch."""
        times: Ints = np.full(self.count, _milliseconds(self.timestamp, now_ms), np.int64)
        return times - times % MINUTE_MS

    def slice(self, start: int, stop: int) -> Rows:
        """Return the rows from `start` up to `stop` without a copy."""

        def cut(column: pa.Array | None) -> pa.Array | None:
            return None if column is None else column.slice(start, stop - start)

        return Rows(
            stop - start, cut(self.value), cut(self.key), cut(self.topic), cut(self.headers), cut(self.partition_key),
            cut(self.timestamp), self.sizes[start:stop], self.version,
        )  # fmt: skip


@dataclass
class _MessagePieces:
    """The pieces of all messages of a batch, in order; neighbouring fixed fields become one piece."""

    rows: int
    _joined: list[pa.Array] = field(default_factory=list)
    _fields: list[Field] = field(default_factory=list)

    def fixed(self, *fields: Field) -> None:
        self._fields += fields

    def column(self, column: pa.Array) -> None:
        self._close()
        self._joined.append(column)

    def join(self) -> memoryview:
        self._close()
        joined = pc.binary_join_element_wise(
            *self._joined, _EMPTY_SEPARATOR, null_handling="replace", null_replacement=b""
        )
        _, offsets, data = joined.buffers()
        return memoryview(data)[: np.frombuffer(offsets, np.int32)[self.rows]]

    def _close(self) -> None:
        if self._fields:
            self._joined.append(pack_fields(self.rows, self._fields))
            self._fields = []


def pack_fields(rows: int, fields: list[Field]) -> pa.Array:
    """Return fixed fields as a binary column; each row contains its fields without gaps."""
    named = [(f"f{number}", kind, values) for number, (kind, values) in enumerate(fields)]
    row = np.empty(1, [(name, kind) for name, kind, _ in named])
    for name, _, values in named:
        if np.size(values) == 1:
            row[name] = values
    table = np.repeat(row, rows)  # copies all shared fields together, instead of field by field
    for name, _, values in named:
        if np.size(values) != 1:
            table[name] = values
    offsets = np.arange(rows + 1, dtype=np.int32) * np.int32(table.itemsize)
    return pa.Array.from_buffers(pa.binary(), rows, [None, pa.py_buffer(offsets), pa.py_buffer(table.view(np.uint8))])


def _bytes_field(data: bytes) -> Field:
    return f"V{len(data)}", np.void(data)


def _digits(first: int, count: int) -> list[Field]:
    """Format `count` consecutive numbers with 16 digits; the digits above the last eight rarely change."""
    high, low = divmod(first, _EIGHT_DIGITS)
    if low + count <= _EIGHT_DIGITS:
        return [*_eight_digits(np.array([high])), *_eight_digits(np.arange(low, low + count))]
    highs, lows = np.divmod(np.arange(first, first + count), _EIGHT_DIGITS)
    return [*_eight_digits(highs), *_eight_digits(lows)]


def _eight_digits(numbers: Ints) -> list[Field]:
    high, low = np.divmod(numbers.astype(np.uint32), 10_000)
    return [("V4", _FOUR_DIGITS[high]), ("V4", _FOUR_DIGITS[low])]


@dataclass(frozen=True)
class MessageEncoder:
    """An encoder for the batches of one task.

    `topic` applies to rows without a topic; `writer` is the writer in the stamp, or None for no stamp. `partitioner`
    makes partition keys of record keys. `time_zone` is that of timestamps without a zone; None: this host's.
    """

    topic: bytes | None
    writer: bytes | None
    partitioner: Partitioner = Partitioner.NONE
    time_zone: str | None = None

    def rows(self, batch: pa.RecordBatch) -> Rows:
        """Return the batch's columns and message sizes.

        The topic of a row is null if neither column nor option has one.
        """
        columns = {name: batch.column(name) for name in batch.schema.names}
        headers = _encoded_headers(columns["headers"]) if "headers" in columns else None
        topic = self._topics(columns.get("topic"))
        value, key = _binary(columns["value"]), _binary(columns["key"]) if "key" in columns else None
        partition_key = self._partition_keys(columns.get("partition_key"), key)
        timestamp = to_utc(columns["timestamp"], self.time_zone) if "timestamp" in columns else None
        version = self._version(value, key, headers)
        sizes = np.full(batch.num_rows, self._fixed_size(topic, version), np.int64)
        for column in (value, key, topic, headers):
            if column is not None:
                sizes += lengths(column)
        if partition_key is not None:
            sizes += np.where(_valid(partition_key), _PARTITION_KEY_BYTES, 0)
        header_keys = _longest_header_keys(columns["headers"]) if "headers" in columns else None
        return Rows(
            batch.num_rows, value, key, topic, headers, partition_key, timestamp, sizes, version,
            columns.get("_corrupt_record"), header_keys,
        )  # fmt: skip

    def encode(self, rows: Rows, sequence: int, now_ms: int) -> memoryview:
        """Encode `rows`, which must all be valid; `sequence` is the number of the first row in the stamp."""
        if not rows.count:
            return memoryview(b"")
        pieces = _MessagePieces(rows.count)
        self._append_start(pieces, rows)
        self._append_topic(pieces, rows.topic)
        pieces.fixed((">i8", _milliseconds(rows.timestamp, now_ms)))
        for column in (rows.key, rows.value):
            _append_sized(pieces, column, null_size=-1 if rows.version == NULLS_VERSION else 0)
        if rows.version != PLAIN_VERSION:
            self._append_headers(pieces, rows, sequence, now_ms)
        return pieces.join()

    def _append_start(self, pieces: _MessagePieces, rows: Rows) -> None:
        """Append Size, ApiKey, ApiVersion, Flags and PartitionKey, which only some rows may have."""
        version = (">i2", rows.version)
        flags = (">i2", 0)
        keyed = None if rows.partition_key is None else _valid(rows.partition_key)
        without = [(">i4", rows.sizes), (">i2", ANY_PARTITION), version, flags]
        if keyed is None or not keyed.any():
            pieces.fixed(*without)
            return
        numbers = _integers(rows.partition_key, 0)
        with_key = [(">i4", rows.sizes), (">i2", PARTITION_KEY), version, flags, (">i4", numbers)]
        if keyed.all():
            pieces.fixed(*with_key)
        else:
            pieces.column(
                pc.if_else(pa.array(keyed), pack_fields(rows.count, with_key), pack_fields(rows.count, without))
            )

    def _append_topic(self, pieces: _MessagePieces, topic: pa.Array | None) -> None:
        if topic is None:
            name = self.topic or b""
            pieces.fixed((">i2", len(name)), _bytes_field(name))
        else:
            pieces.fixed((">i2", lengths(topic)))
            pieces.column(topic)

    def headers_sizes(self, rows: Rows) -> Ints | int:
        """Return the size of the record headers of each row, or one size for all rows, in bytes."""
        return self._stamp_size + (0 if rows.headers is None else lengths(rows.headers))

    def _append_headers(self, pieces: _MessagePieces, rows: Rows, sequence: int, now_ms: int) -> None:
        pieces.fixed((">i4", self.headers_sizes(rows)))
        if rows.headers is not None:
            pieces.column(rows.headers)
        if self.writer is not None:
            pieces.fixed((">i2", len(STAMP_KEY)), _bytes_field(STAMP_KEY), (">i4", _STAMP_BYTES + len(self.writer)))
            pieces.fixed(*_digits(sequence, rows.count), _bytes_field(b" %013d %s" % (now_ms, self.writer)))

    def _topics(self, column: pa.Array | None) -> pa.Array | None:
        if column is None:
            return None
        topics = _binary(column)
        return topics if self.topic is None else pc.fill_null(topics, self.topic)

    def _partition_keys(self, column: pa.Array | None, key: pa.Array | None) -> pa.Array | None:
        """Return the given partition keys, and those of the partitioner for rows without."""
        if key is None or self.partitioner is Partitioner.NONE:
            return column
        hashed = hash_keys(key, self.partitioner)
        return hashed if column is None else pc.coalesce(column.cast(pa.int64()), hashed)

    def _version(self, value: pa.Array, key: pa.Array | None, headers: pa.Array | None) -> int:
        """Return the lowest version for all rows: only version 2 distinguishes null from empty."""
        if value.null_count or _has_empty(value) or (key is not None and _has_empty(key)):
            return NULLS_VERSION
        return HEADERS_VERSION if headers is not None or self.writer is not None else PLAIN_VERSION

    def _fixed_size(self, topic: pa.Array | None, version: int) -> int:
        name = len(self.topic or b"") if topic is None else 0
        versioned = 0 if version == PLAIN_VERSION else _HEADERS_SIZE_BYTES
        return _FIXED_BYTES + name + versioned + self._stamp_size

    @property
    def _stamp_size(self) -> int:
        return 0 if self.writer is None else 2 + len(STAMP_KEY) + 4 + _STAMP_BYTES + len(self.writer)


def _append_sized(pieces: _MessagePieces, column: pa.Array | None, *, null_size: int) -> None:
    """Append a length and the bytes; the length of a null is `null_size`."""
    if column is None:
        pieces.fixed((">i4", null_size))
    else:
        pieces.fixed((">i4", lengths(column, null=null_size)))
        pieces.column(column)


def _has_empty(column: pa.Array) -> bool:
    """Report if a column has a value without bytes that is not null."""
    return bool(pc.min(pc.binary_length(column)).as_py() == 0)


def lengths(column: pa.Array, *, null: int = 0) -> Ints:
    """Return the size of each value in bytes; `null` for a null."""
    return _integers(pc.binary_length(column), null)


def _encoded_headers(column: pa.Array) -> pa.Array:
    """Encode each row's headers as int16 key size, key, int32 value size (-1: null), value, without gaps."""
    flat = pc.list_flatten(column)
    key, value = _binary(pc.struct_field(flat, "key")), _binary(pc.struct_field(flat, "value"))
    pieces = _MessagePieces(len(flat))
    pieces.fixed((">i2", lengths(key)))
    pieces.column(key)
    pieces.fixed((">i4", np.where(_valid(value), lengths(value), -1)))
    pieces.column(value)
    ends = np.concatenate(([0], np.cumsum(_integers(pc.list_value_length(column), 0)))).astype(np.int32)
    if not len(flat):
        return pa.array([b""] * len(column), pa.binary())
    joined = pa.py_buffer(pieces.join())
    starts = np.concatenate(([0], np.cumsum(6 + lengths(key) + lengths(value)))).astype(np.int32)
    return pa.Array.from_buffers(pa.binary(), len(column), [None, pa.py_buffer(starts[ends]), joined])


def _longest_header_keys(column: pa.Array) -> Ints | None:
    sizes = lengths(_binary(pc.struct_field(pc.list_flatten(column), "key")))
    if not len(sizes) or sizes.max() <= _SHORT_HEADER_KEY:
        return None
    longest = np.zeros(len(column), np.int64)
    np.maximum.at(longest, _integers(pc.list_parent_indices(column), 0), sizes)
    return longest


def _milliseconds(column: pa.Array | None, now_ms: int) -> Ints | int:
    if column is None:
        return now_ms
    micros = _integers(pc.cast(column, pa.timestamp("us", column.type.tz)).cast(pa.int64()), now_ms * _MICROSECONDS)
    return np.floor_divide(micros, _MICROSECONDS)


def _binary(column: pa.Array) -> pa.Array:
    return column if column.type == pa.binary() else column.cast(pa.binary())


def _valid(column: pa.Array) -> np.ndarray[Any, np.dtype[np.bool_]]:
    return np.asarray(column.is_valid().to_numpy(zero_copy_only=False), np.bool_)


def _integers(column: pa.Array, null: int) -> Ints:
    filled = pc.fill_null(column, null) if column.null_count else column
    return np.asarray(filled.to_numpy(zero_copy_only=False), np.int64)
