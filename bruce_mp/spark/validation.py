"""Find the rows that cannot be messages, for the sink, its dead letters and the dry run.

The size limits are those of the connected daemon.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bruce_mp.spark.encode import MAX_HEADERS_BYTES, byte_sizes
from bruce_mp.spark.options import is_topic_name

if TYPE_CHECKING:
    from collections.abc import Callable

    from bruce_mp.protocol.client.inquiry import InquiryAnswer
    from bruce_mp.spark.encode import IntArray, MessageEncoder, Rows

__all__ = ["DEFAULT_LIMITS", "BadRow", "RowLimits", "RowProblem", "RowValidator"]

_MAX_HEADER_KEY_BYTES: Final = 32_767
_PARTITION_KEY_RANGE: Final = (-(2**31), 2**32 - 1)  # any int32 or uint32
_TOPIC_RULE: Final = "Kafka allows 1 to 249 letters, digits, '.', '_' and '-'"

Mask = np.ndarray[Any, np.dtype[np.bool_]]


class RowLimits(NamedTuple):
    """The maximum sizes in bytes."""

    message_bytes: int
    """Of a message on the stream connection, size field included."""
    payload_bytes: int
    """Of key, value and headers together."""
    record_bytes: int | None = None
    """Of a message on the stream connection, by the option `maxRecordBytes`; None: no such limit."""

    @classmethod
    def of(cls, answer: InquiryAnswer | None, record_bytes: int | None) -> RowLimits:
        """Return the limits in the answer of a daemon; the default limits if the daemon is too old to answer (None)."""
        if answer is None:
            return DEFAULT_LIMITS._replace(record_bytes=record_bytes)
        return cls(answer.largest_message, answer.largest_payload, record_bytes)


DEFAULT_LIMITS: Final = RowLimits(2 * 1024 * 1024 + 4, 1_000_000 - 26)
"""The limits by the daemon's default settings.

They are `input.max_stream_size` plus the size field, and `batching.message_max_bytes` less the overhead of a record.
"""


@dataclass(frozen=True)
class _MeasuredRows:
    """The rows of a batch, the sizes in bytes that the checks need, and the limits."""

    rows: Rows
    header_sizes: IntArray
    payload_sizes: IntArray
    limits: RowLimits


class RowProblem(NamedTuple):
    """A kind of problem that makes a row bad.

    `summary` names it in the counts of a dry run. `find` returns a mask of the rows with the problem, or None if no row
    has it. `describe` returns a text about the row with a given number in the batch.
    """

    summary: str
    find: Callable[[_MeasuredRows], Mask | None]
    describe: Callable[[_MeasuredRows, int], str]


class BadRow(NamedTuple):
    """The number of a bad row in its batch, the first of the row's problems, and the text about this problem."""

    row: int
    problem: RowProblem
    text: str


class RowValidator:
    """A check of the rows that `encoder` has converted."""

    def __init__(self, encoder: MessageEncoder, limits: RowLimits) -> None:
        self._encoder = encoder
        self._limits = limits

    def find_bad_rows(self, rows: Rows) -> list[BadRow]:
        """Return the bad rows in the order of the batch."""
        measured = self._measure(rows)
        bad_rows: dict[int, BadRow] = {}
        for problem in PROBLEMS:
            mask = problem.find(measured)
            for row in () if mask is None else np.flatnonzero(mask).tolist():
                if row not in bad_rows:
                    bad_rows[row] = BadRow(row, problem, problem.describe(measured, row))
        return [bad_rows[row] for row in sorted(bad_rows)]

    def _measure(self, rows: Rows) -> _MeasuredRows:
        header_sizes = np.broadcast_to(self._encoder.header_sizes(rows), rows.count)
        payload_sizes = header_sizes + byte_sizes(rows.value) + (0 if rows.key is None else byte_sizes(rows.key))
        return _MeasuredRows(rows, header_sizes, payload_sizes, self._limits)


def _to_mask(column: pa.Array) -> Mask:
    return np.asarray(column.to_numpy(zero_copy_only=False), np.bool_)


def _is_corrupt(measured: _MeasuredRows) -> Mask | None:
    return None if measured.rows.corrupt_inputs is None else _to_mask(measured.rows.corrupt_inputs.is_valid())


def _lacks_topic(measured: _MeasuredRows) -> Mask | None:
    return None if measured.rows.topic is None else _to_mask(measured.rows.topic.is_null())


def _has_invalid_topic(measured: _MeasuredRows) -> Mask | None:
    """Find rows with invalid topics. A batch has few topics, so each topic is checked once instead of each row."""
    if measured.rows.topic is None:
        return None
    names = pc.unique(measured.rows.topic.drop_null()).to_pylist()
    invalid = [name for name in names if not is_topic_name(name.decode("latin-1"))]  # latin-1 decodes any bytes
    return _to_mask(pc.is_in(measured.rows.topic, pa.array(invalid, pa.binary()))) if invalid else None


def _has_long_header_key(measured: _MeasuredRows) -> Mask | None:
    longest = measured.rows.longest_header_keys
    return None if longest is None else longest > _MAX_HEADER_KEY_BYTES


def _has_invalid_partition_key(measured: _MeasuredRows) -> Mask | None:
    column = measured.rows.partition_key
    if column is None:
        return None
    low, high = (pa.scalar(bound, pa.int64()) for bound in _PARTITION_KEY_RANGE)
    numbers = column.cast(pa.int64())
    return _to_mask(pc.fill_null(pc.or_(pc.less(numbers, low), pc.greater(numbers, high)), False))


def _describe_partition_key(measured: _MeasuredRows, row: int) -> str:
    number = measured.rows.partition_key[row].as_py() if measured.rows.partition_key is not None else 0
    return f"its partition_key is {number}, and {_PARTITION_KEY_RANGE[0]} to {_PARTITION_KEY_RANGE[1]} are allowed"


def _describe_topic(measured: _MeasuredRows, row: int) -> str:
    name = measured.rows.topic[row].as_py() if measured.rows.topic is not None else b""
    return f"its topic is {name.decode('utf-8', 'replace')[:80]!r} with {len(name)} bytes, and {_TOPIC_RULE}"


def _describe_corrupt(measured: _MeasuredRows, row: int) -> str:
    text = measured.rows.corrupt_inputs[row].as_py() if measured.rows.corrupt_inputs is not None else ""
    return f"its input is malformed: {text[:200]!r}"


PROBLEMS: Final = (
    RowProblem("malformed input", _is_corrupt, _describe_corrupt),
    RowProblem("no topic", _lacks_topic, lambda _, __: "its topic is null, and there is no option 'topic'"),
    RowProblem("a topic that Kafka does not allow", _has_invalid_topic, _describe_topic),
    RowProblem("a partition_key above 32 bits", _has_invalid_partition_key, _describe_partition_key),
    RowProblem(
        "larger than maxRecordBytes",
        lambda measured: (
            None if measured.limits.record_bytes is None else measured.rows.sizes > measured.limits.record_bytes
        ),
        lambda measured, row: (
            f"it has {measured.rows.sizes[row]} bytes, and option maxRecordBytes allows {measured.limits.record_bytes}"
        ),
    ),
    RowProblem(
        "larger than input.max_stream_size",
        lambda measured: measured.rows.sizes > measured.limits.message_bytes,
        lambda measured, row: (
            f"it has {measured.rows.sizes[row]} bytes, and input.max_stream_size of the daemon allows "
            f"{measured.limits.message_bytes}"
        ),
    ),
    RowProblem(
        "larger than batching.message_max_bytes",
        lambda measured: measured.payload_sizes > measured.limits.payload_bytes,
        lambda measured, row: (
            f"its key, value and headers have {measured.payload_sizes[row]} bytes, and batching.message_max_bytes of "
            f"the daemon allows {measured.limits.payload_bytes}"
        ),
    ),
    RowProblem(
        "headers above 65,535 bytes",
        lambda measured: measured.header_sizes > MAX_HEADERS_BYTES,
        lambda measured, row: (
            f"its headers have {measured.header_sizes[row]} bytes with the stamp, and {MAX_HEADERS_BYTES} are allowed"
        ),
    ),
    RowProblem(
        "a header key above 32,767 bytes",
        _has_long_header_key,
        lambda _, __: f"a key of its headers has more than {_MAX_HEADER_KEY_BYTES} bytes",
    ),
)
"""All kinds of problems; a row with several problems counts for the first kind in this order."""
