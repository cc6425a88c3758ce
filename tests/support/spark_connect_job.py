"""A program with a session of Spark Connect: it runs a backfill, and prints its count and its progress.

Its input is JSON: `socket`, `directory` with the folder `in` of JSON files.
"""

from __future__ import annotations

import io
import json
import os
import sys

from pyspark.sql import SparkSession

from bruce_mp.spark.pipelines.backfill import Backfill, backfill
from bruce_mp.spark.pipelines.progress import Progress


def main() -> None:
    """Run the backfill twice; the second run finds nothing to send."""
    given = json.load(sys.stdin)
    place = given["directory"]
    settings = {
        "spark.driver.memory": "512m",
        "spark.driver.host": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.connect.grpc.binding.address": "127.0.0.1",
    }
    os.environ["SPARK_TESTING"] = "1"  # a free port for the local server
    builder = SparkSession.builder.remote("local[2]")
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    sink = {"bruce.socket": given["socket"], "topic": "t", "timeoutMs": "60000"}
    plan = Backfill(f"{place}/in", "json", f"{place}/check", sink, timestamp="timestamp_millis(at)", files_per_chunk=1)
    out = io.StringIO()
    counts = [backfill(spark, plan, Progress("backfill", out)) for _ in range(2)]
    spark.stop()
    print(json.dumps({"counts": counts, "shown": out.getvalue().splitlines()}))


main()
