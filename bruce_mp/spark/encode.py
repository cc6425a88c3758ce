"""Encode Arrow batches for the daemon's stream socket, column by column, without Python code for each row.

The messages of a batch are joined from *pieces*. A piece is an Arrow binary column with one part of each message: a
value of variable size, or neighboring fields of fixed size. `binary_join_element_wise` joins the pieces of each row;
the data buffer of its result is the byte stream. `docs/protocol.md` has the layouts of a message's three versions.

The *stamp* is a record header. It names the message's author, which is a task attempt, and the message's sequence
number in this attempt:

    key "bruce.stamp", value: number, 16 digits | " " | ms since the epoch, 13 digits | " " | author,
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
from bruce_mp.protocol.client.messages import HEADERS_VERSION, NULLS_VERSION, PLAIN_VERSION, ApiKey
from bruce_mp.spark.derived_columns import hash_keys, to_utc
from bruce_mp.spark.ledger import MINUTE_MS

__all__ = ["MAX_HEADERS_BYTES", "STAMP_KEY", "MessageEncoder", "Rows", "byte_sizes"]

STAMP_KEY: Final = b"bruce.stamp"
MAX_HEADERS_BYTES: Final = 65_535
"""Maximum size of a message's record headers, stamp included."""
_FIXED_BYTES: Final = 28
"""Size of an AnyPartition message of version 0 without topic, key and value."""
_HEADERS_SIZE_BYTES: Final = 4
"""Size of the field that gives the size of the record headers; messages of version 0 have no such field."""
_PARTITION_KEY_BYTES: Final = 4
_HEADER_OVERHEAD_BYTES: Final = 6
"""Size of the two size fields of a record header: an int16 for its key, an int32 for its value."""
_MICROS_PER_MS: Final = 1000
_SHORT_HEADER_KEY_BYTES: Final = 255
"""If all header keys of a batch have at most this size, they are valid and not measured row by row."""
_STAMP_BYTES_BEFORE_AUTHOR: Final = 31
_TEN_TO_8: Final = 100_000_000
_FOUR_DIGITS: Final = np.array([b"%04d" % number for number in range(10_000)]).view("V4")
"""The text of each number below 10,000, as 4 bytes."""
_EMPTY_SEPARATOR: Final = pa.scalar(b"", pa.binary())
"""Created once, because the conversion of a Python object lets Arrow search the disk for pandas."""

IntArray = np.ndarray[Any, np.dtype[np.int64]]
Field = tuple[str, Any]
"""The numpy type of a field of fixed size, and its values: an array with one for each row, or one for all rows."""


@dataclass(frozen=True)
class Rows:
    """The columns of a batch, with texts as binary columns; None for a column that the batch lacks.

    If the batch has no column `topic`, all messages go to the topic of the option `topic`.
    """

    count: int
    value: pa.Array
    key: pa.Array | None
    topic: pa.Array | None
    headers: pa.Array | None
    partition_key: pa.Array | None
    timestamp: pa.Array | None
    sizes: IntArray
    """The size in bytes of each row's message on the stream socket, size field included."""
    version: int
    """ApiVersion of all messages."""
    corrupt_inputs: pa.Array | None = None
    """The input text of each row that Spark could not parse; null for other rows."""
    longest_header_keys: IntArray | None = None
    """The size of the longest header key of each row; None if no key is above `_SHORT_HEADER_KEY_BYTES`."""

    def minutes(self, now_ms: int) -> IntArray:
        """Return the minute of each row's timestamp, or of `now_ms` for rows without a timestamp.

        A minute is given as its start in ms since the epoch.
        """
        times: IntArray = np.full(self.count, _to_milliseconds(self.timestamp, now_ms), np.int64)
        return times - times % MINUTE_MS

    def slice(self, start: int, stop: int) -> Rows:
        """Return a view of the rows from `start` up to `stop`, for encoding: without the columns for the validation."""

        def part(column: pa.Array | None) -> pa.Array | None:
            return None if column is None else column.slice(start, stop - start)

        return Rows(
            stop - start, part(self.value), part(self.key), part(self.topic), part(self.headers),
            part(self.partition_key), part(self.timestamp), self.sizes[start:stop], self.version,
        )  # fmt: skip


@dataclass
class _MessagePieces:
    """The pieces of the messages of a batch, in order, and the fields that become the next piece."""

    row_count: int
    _pieces: list[pa.Array] = field(default_factory=list)
    _fields: list[Field] = field(default_factory=list)

    def add_fields(self, *fields: Field) -> None:
        self._fields += fields

    def add_column(self, column: pa.Array) -> None:
        """Add a binary column; nulls add no bytes."""
        self._pack_fields()
        self._pieces.append(column)

    def join(self) -> memoryview:
        """Return the bytes of all messages."""
        self._pack_fields()
        joined = pc.binary_join_element_wise(
            *self._pieces, _EMPTY_SEPARATOR, null_handling="replace", null_replacement=b""
        )
        _, offsets, data = joined.buffers()
        # Arrow's buffers are larger than their contents; the last offset is the end of the last message.
        return memoryview(data)[: np.frombuffer(offsets, np.int32)[self.row_count]]

    def _pack_fields(self) -> None:
        if self._fields:
            self._pieces.append(pack_fields(self.row_count, self._fields))
            self._fields = []


def pack_fields(row_count: int, fields: list[Field]) -> pa.Array:
    """Return a binary column with the fields of each row, without gaps."""
    named = [(f"f{number}", dtype, values) for number, (dtype, values) in enumerate(fields)]
    shared_values = np.empty(1, [(name, dtype) for name, dtype, _ in named])
    for name, _, values in named:
        if np.size(values) == 1:
            shared_values[name] = values
    table = np.repeat(shared_values, row_count)  # faster than copying them field by field
    for name, _, values in named:
        if np.size(values) != 1:
            table[name] = values
    offsets = np.arange(row_count + 1, dtype=np.int32) * np.int32(table.itemsize)
    data = table.view(np.uint8)
    return pa.Array.from_buffers(pa.binary(), row_count, [None, pa.py_buffer(offsets), pa.py_buffer(data)])


def _bytes_field(data: bytes) -> Field:
    return f"V{len(data)}", np.void(data)


def _sixteen_digits(first: int, count: int) -> list[Field]:
    """Return fields with the 16 digits of `count` successive numbers, of which `first` is the lowest."""
    high, low = divmod(first, _TEN_TO_8)
    if low + count <= _TEN_TO_8:  # the usual case: all numbers have the same first 8 digits
        return [*_eight_digits(np.array([high])), *_eight_digits(np.arange(low, low + count))]
    highs, lows = np.divmod(np.arange(first, first + count), _TEN_TO_8)
    return [*_eight_digits(highs), *_eight_digits(lows)]


def _eight_digits(numbers: IntArray) -> list[Field]:
    high, low = np.divmod(numbers.astype(np.uint32), 10_000)
    return [("V4", _FOUR_DIGITS[high]), ("V4", _FOUR_DIGITS[low])]


@dataclass(frozen=True)
class MessageEncoder:
    """An encoder for the batches of one task.

    `topic` is for rows without a topic. `author` is `TaskAttempt.author`, for the stamp; None: no stamp. `partitioner`
    derives partition keys from record keys. `time_zone` is for timestamps without a zone; None: this host's zone.
    """

    topic: bytes | None
    author: bytes | None
    partitioner: Partitioner = Partitioner.NONE
    time_zone: str | None = None

    def convert(self, batch: pa.RecordBatch) -> Rows:
        """Convert a batch, and compute the sizes of its messages.

        In the result, a topic is null if neither the column nor the option `topic` names one.
        """
        columns = {name: batch.column(name) for name in batch.schema.names}
        headers = _encode_headers(columns["headers"]) if "headers" in columns else None
        topic = self._topic_column(columns.get("topic"))
        value, key = _to_binary(columns["value"]), _to_binary(columns["key"]) if "key" in columns else None
        partition_key = self._partition_key_column(columns.get("partition_key"), key)
        timestamp = to_utc(columns["timestamp"], self.time_zone) if "timestamp" in columns else None
        version = self._lowest_version(value, key, headers)
        sizes = np.full(batch.num_rows, self._size_without_columns(topic, version), np.int64)
        for column in (value, key, topic, headers):
            if column is not None:
                sizes += byte_sizes(column)
        if partition_key is not None:
            sizes += np.where(_validity_mask(partition_key), _PARTITION_KEY_BYTES, 0)
        longest_header_keys = _measure_longest_header_keys(columns["headers"]) if "headers" in columns else None
        return Rows(
            batch.num_rows, value, key, topic, headers, partition_key, timestamp, sizes, version,
            columns.get("_corrupt_record"), longest_header_keys,
        )  # fmt: skip

    def encode(self, rows: Rows, sequence: int, now_ms: int) -> memoryview:
        """Encode `rows`, which must all be valid.

        `sequence` is the stamp's number for the first row, `now_ms` the stamp's time for all rows.
        """
        if not rows.count:
            return memoryview(b"")
        pieces = _MessagePieces(rows.count)
        self._append_start(pieces, rows)
        self._append_topic(pieces, rows.topic)
        pieces.add_fields((">i8", _to_milliseconds(rows.timestamp, now_ms)))
        for column in (rows.key, rows.value):
            _append_sized(pieces, column, null_size=-1 if rows.version == NULLS_VERSION else 0)
        if rows.version != PLAIN_VERSION:
            self._append_headers(pieces, rows, sequence, now_ms)
        return pieces.join()

    def _append_start(self, pieces: _MessagePieces, rows: Rows) -> None:
        """Append the fields Size, ApiKey, ApiVersion and Flags, and PartitionKey for the rows that have one."""
        size, version, flags = (">i4", rows.sizes), (">i2", rows.version), (">i2", 0)
        is_keyed = None if rows.partition_key is None else _validity_mask(rows.partition_key)
        unkeyed = [size, (">i2", ApiKey.ANY_PARTITION), version, flags]
        if is_keyed is None or not is_keyed.any():
            pieces.add_fields(*unkeyed)
            return
        keyed = [size, (">i2", ApiKey.PARTITION_KEY), version, flags, (">i4", _to_integers(rows.partition_key, 0))]
        if is_keyed.all():
            pieces.add_fields(*keyed)
        else:  # only the keyed rows have a field PartitionKey
            pieces.add_column(
                pc.if_else(pa.array(is_keyed), pack_fields(rows.count, keyed), pack_fields(rows.count, unkeyed))
            )

    def _append_topic(self, pieces: _MessagePieces, topic: pa.Array | None) -> None:
        if topic is None:
            name = self.topic or b""
            pieces.add_fields((">i2", len(name)), _bytes_field(name))
        else:
            pieces.add_fields((">i2", byte_sizes(topic)))
            pieces.add_column(topic)

    def header_sizes(self, rows: Rows) -> IntArray | int:
        """Return the size in bytes of each row's record headers, or one size if it is equal for all rows."""
        return self._stamp_header_size + (0 if rows.headers is None else byte_sizes(rows.headers))

    def _append_headers(self, pieces: _MessagePieces, rows: Rows, sequence: int, now_ms: int) -> None:
        pieces.add_fields((">i4", self.header_sizes(rows)))
        if rows.headers is not None:
            pieces.add_column(rows.headers)
        if self.author is not None:
            value_size = (">i4", _STAMP_BYTES_BEFORE_AUTHOR + len(self.author))
            pieces.add_fields((">i2", len(STAMP_KEY)), _bytes_field(STAMP_KEY), value_size)
            time_and_author = _bytes_field(b" %013d %s" % (now_ms, self.author))
            pieces.add_fields(*_sixteen_digits(sequence, rows.count), time_and_author)

    def _topic_column(self, column: pa.Array | None) -> pa.Array | None:
        if column is None:
            return None
        topics = _to_binary(column)
        return topics if self.topic is None else pc.fill_null(topics, self.topic)

    def _partition_key_column(self, column: pa.Array | None, key: pa.Array | None) -> pa.Array | None:
        """Return the column's partition keys; the partitioner derives those of rows that have none."""
        if key is None or self.partitioner is Partitioner.NONE:
            return column
        hashed = hash_keys(key, self.partitioner)
        return hashed if column is None else pc.coalesce(column.cast(pa.int64()), hashed)

    def _lowest_version(self, value: pa.Array, key: pa.Array | None, headers: pa.Array | None) -> int:
        """Return the lowest version that can encode all rows.

        Versions below `NULLS_VERSION` cannot tell null from empty: to the daemon, a key of size 0 is null, and its
        configuration decides whether a value of size 0 is null or empty.
        """
        if value.null_count or _has_empty(value) or (key is not None and _has_empty(key)):
            return NULLS_VERSION
        return HEADERS_VERSION if headers is not None or self.author is not None else PLAIN_VERSION

    def _size_without_columns(self, topic: pa.Array | None, version: int) -> int:
        """Return the part of a message's size that is equal for all rows."""
        topic_size = len(self.topic or b"") if topic is None else 0
        headers_size = 0 if version == PLAIN_VERSION else _HEADERS_SIZE_BYTES
        return _FIXED_BYTES + topic_size + headers_size + self._stamp_header_size

    @property
    def _stamp_header_size(self) -> int:
        """Return the size of the record header with the stamp; 0 if there is no stamp."""
        if self.author is None:
            return 0
        return _HEADER_OVERHEAD_BYTES + len(STAMP_KEY) + _STAMP_BYTES_BEFORE_AUTHOR + len(self.author)


def _append_sized(pieces: _MessagePieces, column: pa.Array | None, *, null_size: int) -> None:
    """Append a size field and the bytes of the column; `null_size` is the size of nulls, and of a missing column."""
    if column is None:
        pieces.add_fields((">i4", null_size))
    else:
        pieces.add_fields((">i4", byte_sizes(column, null=null_size)))
        pieces.add_column(column)


def _has_empty(column: pa.Array) -> bool:
    """Return True if the column has a value that is empty, but not null."""
    return bool(pc.min(pc.binary_length(column)).as_py() == 0)


def byte_sizes(column: pa.Array, *, null: int = 0) -> IntArray:
    """Return the size of each value in bytes; `null` is the size of nulls."""
    return _to_integers(pc.binary_length(column), null)


def _encode_headers(column: pa.Array) -> pa.Array:
    """Encode the headers of each row, each as int16 key size, key, int32 value size (-1: null), value."""
    flat = pc.list_flatten(column)
    key, value = _to_binary(pc.struct_field(flat, "key")), _to_binary(pc.struct_field(flat, "value"))
    pieces = _MessagePieces(len(flat))
    pieces.add_fields((">i2", byte_sizes(key)))
    pieces.add_column(key)
    pieces.add_fields((">i4", np.where(_validity_mask(value), byte_sizes(value), -1)))
    pieces.add_column(value)
    if not len(flat):
        return pa.array([b""] * len(column), pa.binary())
    joined = pa.py_buffer(pieces.join())
    # first_headers[i] is the index in `flat` of row i's first header, and header_starts[n] the offset in `joined` of
    # header n. So header_starts[first_headers] are the offsets of the rows.
    first_headers = _bounds(_to_integers(pc.list_value_length(column), 0))
    header_starts = _bounds(_HEADER_OVERHEAD_BYTES + byte_sizes(key) + byte_sizes(value)).astype(np.int32)
    return pa.Array.from_buffers(pa.binary(), len(column), [None, pa.py_buffer(header_starts[first_headers]), joined])


def _bounds(sizes: IntArray) -> IntArray:
    """Return the start of each part when parts of these sizes are joined, and the end of the last part."""
    return np.concatenate(([0], np.cumsum(sizes)))


def _measure_longest_header_keys(column: pa.Array) -> IntArray | None:
    """Return `Rows.longest_header_keys` for a column `headers`."""
    sizes = byte_sizes(_to_binary(pc.struct_field(pc.list_flatten(column), "key")))
    if not len(sizes) or sizes.max() <= _SHORT_HEADER_KEY_BYTES:
        return None
    longest = np.zeros(len(column), np.int64)
    np.maximum.at(longest, _to_integers(pc.list_parent_indices(column), 0), sizes)
    return longest


def _to_milliseconds(column: pa.Array | None, now_ms: int) -> IntArray | int:
    """Return timestamps in ms since the epoch; `now_ms` stands for nulls, and for a missing column."""
    if column is None:
        return now_ms
    micros = _to_integers(pc.cast(column, pa.timestamp("us", column.type.tz)).cast(pa.int64()), now_ms * _MICROS_PER_MS)
    return np.floor_divide(micros, _MICROS_PER_MS)


def _to_binary(column: pa.Array) -> pa.Array:
    return column if column.type == pa.binary() else column.cast(pa.binary())


def _validity_mask(column: pa.Array) -> np.ndarray[Any, np.dtype[np.bool_]]:
    return np.asarray(column.is_valid().to_numpy(zero_copy_only=False), np.bool_)


def _to_integers(column: pa.Array, null: int) -> IntArray:
    filled = pc.fill_null(column, null) if column.null_count else column
    return np.asarray(filled.to_numpy(zero_copy_only=False), np.int64)
