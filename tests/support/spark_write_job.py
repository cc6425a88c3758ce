"""A program for any PySpark from 3.5 on: it writes with `bruce_mp.spark.write`, and prints the errors.

Its input is JSON: `socket`, and `jobs`, each with `options`, and either `columns`, SQL over the numbers below `rows`,
or `stream`, a directory of text files.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any, Final

import pyspark

from bruce_mp.spark import write
from bruce_mp.spark.session import start_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SETTINGS: Final = {
    "spark.driver.memory": "512m",
    "spark.driver.extraJavaOptions": (
        "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:MetaspaceSize=256m"
    ),
    "spark.sql.shuffle.partitions": "2",
    "spark.log.level": "ERROR",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "50",  # so that a task fails after its first batch
}


def _run(spark: SparkSession, socket: str, job: dict[str, Any]) -> str | None:
    try:
        if "stream" in job:
            _stream(spark, socket, job)
        else:
            write(spark.range(0, job["rows"], 1, 4).selectExpr(*job["columns"]), socket, **job["options"])
    except Exception as error:  # noqa: BLE001 - the test checks it
        return str(error)
    return None


def _stream(spark: SparkSession, socket: str, job: dict[str, Any]) -> None:
    def send(frame: DataFrame, number: int) -> None:
        write(frame, socket, runId=f"stream-{number}", **job["options"])

    stream = spark.readStream.option("maxFilesPerTrigger", 1).text(job["stream"]).writeStream.foreachBatch(send)
    checkpoint = f"{job['stream']}/_checkpoint"
    stream.option("checkpointLocation", checkpoint).trigger(availableNow=True).start().awaitTermination()


def main() -> None:
    """Run all jobs, one after the other."""
    given = json.load(sys.stdin)
    spark = start_session("write", master="local[2,3]", settings=SETTINGS)
    errors = [_run(spark, given["socket"], job) for job in given["jobs"]]
    spark.stop()
    print(json.dumps({"version": pyspark.__version__, "errors": errors}))


main()
