"""The driver of `chaos.spark`: two streams of rows, from files and from Kafka, through the sink with a ledger.

A failed query is started again. When the file `stop` appears, the driver ends after the last row.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pyspark.errors import StreamingQueryException

from bruce_mp.spark import register
from bruce_mp.spark.pipelines.backfill import Backfill, read_messages
from bruce_mp.spark.session import start_session
from support.spark_session import SMALL

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

POLL_S: Final = 0.2
RETRY_S: Final = 1.0
SETTINGS: Final = {
    **SMALL,
    "spark.executor.extraJavaOptions": SMALL["spark.driver.extraJavaOptions"],
    "spark.executor.memory": "512m",
    "spark.deploy.maxExecutorRetries": "-1",  # the master gives up an application after ten dead executors
    "spark.excludeOnFailure.enabled": "false",
    "spark.executor.heartbeatInterval": "2s",
    "spark.network.timeout": "20s",
    "spark.network.timeoutInterval": "5s",
    "spark.log.level": "WARN",
}


class RestartedQuery:
    """A query that is started again when it fails."""

    def __init__(self, start: Callable[[], StreamingQuery]) -> None:
        self._start = start
        self._query = start()

    def restart_if_failed(self) -> None:
        """Start the query again if it failed; its error becomes a line of the log."""
        if self._query.isActive:
            return
        print(f"FAILED: {self._query.exception()}", flush=True)
        time.sleep(RETRY_S)
        self._query = self._start()

    def finish(self) -> None:
        """Process all rows."""
        while True:
            try:
                return self._query.processAllAvailable()
            except StreamingQueryException:
                self.restart_if_failed()


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    options = argparse.ArgumentParser(prog="python -m chaos.spark_job")
    for name in ("--master", "--directory", "--bootstrap", "--source-topic", "--topic", "--socket", "--acks"):
        options.add_argument(name, required=True)
    return options.parse_args(arguments)


def _read_files(spark: SparkSession, directory: Path) -> DataFrame:
    plan = Backfill(f"{directory}/in", "text", "", {}, files_per_chunk=6)
    return read_messages(spark, plan)


def _read_kafka(spark: SparkSession, bootstrap: str, topic: str) -> DataFrame:
    stream = spark.readStream.format("kafka").options(**{"kafka.bootstrap.servers": bootstrap, "subscribe": topic})
    return stream.options(startingOffsets="earliest", maxOffsetsPerTrigger="3000").load().select("key", "value")


def _starter(frame: DataFrame, directory: Path, name: str, sink: Mapping[str, str]) -> Callable[[], StreamingQuery]:
    writer = frame.writeStream.format("bruce").options(**sink, ledger=f"{directory}/ledger")
    return writer.option("checkpointLocation", f"{directory}/checkpoint-{name}").queryName(name).start


def main(arguments: Sequence[str]) -> int:
    """Run until the file `stop` is there."""
    given = _parse(arguments)
    directory = Path(given.directory)
    places = {"spark.local.dir": f"{directory}/local", "spark.sql.warehouse.dir": f"{directory}/warehouse"}
    spark = start_session("chaos", master=given.master, kafka=True, settings={**SETTINGS, **places})
    register(spark)  # Spark's own lookup fails for good if its Python worker is killed
    sink = {"topic": given.topic, "acks": given.acks, "bruce.socket": given.socket, "maxRecordsPerSecond": "400"}
    frames = {"files": _read_files(spark, directory), "kafka": _read_kafka(spark, given.bootstrap, given.source_topic)}
    queries = [RestartedQuery(_starter(frame, directory, name, sink)) for name, frame in frames.items()]
    while not (directory / "stop").exists():
        time.sleep(POLL_S)
        for query in queries:
            query.restart_if_failed()
    for query in queries:
        query.finish()
    spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
