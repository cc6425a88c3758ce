"""A program with tables of Delta or Iceberg: it sends one, as a batch and as a stream, and audits into others.

Its input is JSON: `socket`, `bootstrap`, `directory`, `format`, `rows`, and `settings` of the session. `namespace` is
null for tables in the directory.
"""

from __future__ import annotations

import io
import json
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import pyspark

from bruce_mp.spark import write
from bruce_mp.spark.audit.run import Audit, audit
from bruce_mp.spark.pipelines.progress import Progress
from bruce_mp.spark.session import start_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TOPICS: Final = ("batch", "streamed")


def _create(table: DataFrame, given: dict[str, Any]) -> None:
    if given["namespace"] is None:
        table.write.format(given["format"]).save(f"{given['directory']}/in")
    else:
        table.writeTo(f"{given['namespace']}.in").using(given["format"]).create()


def _load(spark: SparkSession, given: dict[str, Any], name: str, *, streaming: bool = False) -> DataFrame:
    reader: Any = spark.readStream if streaming else spark.read
    if given["namespace"] is None:
        frame: DataFrame = reader.format(given["format"]).load(f"{given['directory']}/{name}")
    else:
        frame = reader.table(f"{given['namespace']}.{name.rpartition('/')[2]}")
    return frame


def _send(spark: SparkSession, given: dict[str, Any], sink: dict[str, str]) -> None:
    _create(spark.range(0, given["rows"], 1, 4).selectExpr("cast(id as string) as value"), given)
    write(_load(spark, given, "in"), given["socket"], topic="batch", ledger=sink["ledger"])
    stream = _load(spark, given, "in", streaming=True).writeStream.format("bruce").options(**sink, topic="streamed")
    checkpointed = stream.option("checkpointLocation", f"{given['directory']}/checkpoint")
    checkpointed.trigger(availableNow=True).start().awaitTermination()


def main() -> None:
    """Send the rows, audit both topics, then one, into the same tables."""
    given = json.load(sys.stdin)
    spark = start_session("tables", master="local[2]", kafka=True, settings=given["settings"])
    place = given["directory"]
    sink = {"bruce.socket": given["socket"], "ledger": f"{place}/ledger"}
    _send(spark, given, sink)
    plan = Audit(
        given["bootstrap"], TOPICS, [sink["ledger"]], f"{place}/audit", table_format=given["format"],
        namespace=given["namespace"], samples_per_problem=1,
    )  # fmt: skip
    verdicts = []
    for topics in (TOPICS, TOPICS[:1]):
        verdict = audit(spark, replace(plan, topics=topics), Progress("audit", io.StringIO()))
        balance = _load(spark, given, "audit/balance").groupBy("topic").sum("sent", "delivered").collect()
        verdicts.append([str(verdict), sorted(map(list, balance))])
    spark.stop()
    print(json.dumps({"version": pyspark.__version__, "verdicts": verdicts}))


main()
