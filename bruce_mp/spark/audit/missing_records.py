"""Explain the failure of a read at a record that the brokers do not return, although their offsets include it.

A Kafka consumer waits at such an offset, and Spark's source gives up after a time limit with an error that names only
the offset.

Separate because it needs no Spark.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Final

from bruce_mp.errors import BruceError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bruce_mp.spark.kafka_admin import PartitionOffsets

__all__ = ["MissingRecordsError", "find_missing_offset"]

_ERROR_OF_SPARK: Final = re.compile(r"Cannot fetch record for offset (\d+) in \d+ milliseconds")


class MissingRecordsError(BruceError):
    """A partition has no records from an offset on, although it ends later."""

    def __init__(self, offset: int, partitions: Sequence[PartitionOffsets]) -> None:
        """`partitions` are all those of the audited topics; empty if the brokers do not tell."""
        having = [each for each in partitions if each.begin <= offset < each.end]
        names = " or ".join(f"topic {each.topic}, partition {each.partition} (to {each.end - 1})" for each in having)
        before = _offsets_before(offset, having, partitions)
        super().__init__(
            f"The brokers did not return the record at offset {offset} in time: {names or 'unknown partition'}. Either "
            "they are slow: wait longer with --kafka kafkaConsumer.pollTimeoutMs=MS. Or the last records are lost: "
            f"audit those before, with --kafka endingOffsets={before}; the further messages in the ledgers then count "
            "as missing."
        )


def _offsets_before(offset: int, having: Sequence[PartitionOffsets], all_of: Sequence[PartitionOffsets]) -> str:
    """Return the value of `endingOffsets` in quotes; -1 is a partition's end."""
    if len(having) != 1:
        return f"..., where the partition has {offset}"
    ends: dict[str, dict[int, int]] = {}
    for each in all_of:
        ends.setdefault(each.topic, {})[each.partition] = offset if each is having[0] else -1
    return f"'{json.dumps(ends, separators=(',', ':'))}'"


def find_missing_offset(error: Exception) -> int | None:
    """Return the offset if the error of Spark is about a record that the brokers do not return."""
    found = _ERROR_OF_SPARK.search(str(error))
    return None if found is None else int(found[1])
