"""Names each message that is missing, doubled or out of order, as ranges of a writer's sequence numbers.

Only buckets in which something is wrong are unpacked, by a plain Python function, one bucket at a time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from pyspark.sql import DataFrame

__all__ = ["find_problems"]

_BUCKET: Final = 1 << 15
_RANGES: Final = "array<struct<first:bigint,last:bigint>>"


def find_problems(facts: DataFrame, ledger: DataFrame, numbers: DataFrame) -> DataFrame:
    """problem, writer, first, last.  What was discarded is among the missing: nothing says which numbers it had."""
    from pyspark.sql import functions as F  # noqa: PLC0415, N812 - Spark's own convention

    promised = ledger.where("stamped").groupBy("writer").agg(F.max("attempt_rows").alias("rows"))
    buckets = promised.selectExpr("writer", "rows", f"explode(sequence(0L, (rows - 1) div {_BUCKET})) as bucket")
    wanted = f"least(rows - bucket * {_BUCKET}, {_BUCKET})"
    lacking = buckets.join(numbers, ["writer", "bucket"], "left").selectExpr(
        "'missing' as problem", "writer", "bucket", "bits", "different", f"cast({wanted} as int) as wanted"
    )
    holes = lacking.where("coalesce(different, 0) < wanted")
    holes = holes.withColumn("ranges", F.udf(_holes, _RANGES, useArrow=False)("bits", "wanted"))
    known = facts.join(promised.select("writer"), "writer")
    crowded = numbers.where("copies > different").select("writer", "bucket")
    maps = known.join(crowded, ["writer", "bucket"]).groupBy("writer", "bucket")
    twice = maps.agg(F.collect_list("bits").alias("bits"), F.collect_list("again").alias("again")).selectExpr(
        "'doubled' as problem", "*"
    )
    twice = twice.withColumn("ranges", F.udf(_repeated, _RANGES, useArrow=False)("bits", "again"))
    late = known.where("late is not null").selectExpr("'out of order' as problem", "writer", "bucket", "late")
    late = late.withColumn("ranges", F.udf(_set, _RANGES, useArrow=False)("late"))
    named = [table.select("problem", "writer", "bucket", "ranges") for table in (holes, twice, late)]
    return (
        named[0].unionByName(named[1]).unionByName(named[2])
        .selectExpr("problem", "writer", f"bucket * {_BUCKET} as base", "inline(ranges) as (first, last)")
        .selectExpr("problem", "writer", "base + first as first", "base + last as last")
    )  # fmt: skip


def _holes(bits: bytes | None, wanted: int) -> list[tuple[int, int]]:
    """Ranges of zeros among the first `wanted` bits."""
    import numpy as np  # noqa: PLC0415 - in workers only

    flags = _flags(bits)[:wanted]
    return _ranges(np.flatnonzero(~flags).tolist())


def _repeated(maps: Sequence[bytes], again: Sequence[bytes]) -> list[tuple[int, int]]:
    """Ranges of bits that stand in two maps, or in one of `again`."""
    import numpy as np  # noqa: PLC0415 - in workers only

    counts = sum((_flags(bits).astype(np.int32) for bits in maps), np.zeros(_BUCKET, np.int32))
    for bits in again:
        counts += 2 * _flags(bits)
    return _ranges(np.flatnonzero(counts > 1).tolist())


def _set(bits: bytes) -> list[tuple[int, int]]:
    """Ranges of ones."""
    import numpy as np  # noqa: PLC0415 - in workers only

    return _ranges(np.flatnonzero(_flags(bits)).tolist())


def _flags(bits: bytes | None) -> np.ndarray[Any, np.dtype[np.bool_]]:
    import numpy as np  # noqa: PLC0415 - in workers only

    packed = np.frombuffer((bits or b"").ljust(_BUCKET // 8, b"\0"), np.uint8)
    return np.unpackbits(packed, bitorder="little").astype(np.bool_)


def _ranges(numbers: Sequence[int]) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    for number in numbers:
        if found and found[-1][1] == number - 1:
            found[-1] = (found[-1][0], number)
        else:
            found.append((number, number))
    return found
