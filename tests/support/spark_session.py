"""One Spark session for all tests of a run: a start takes seconds, and two sessions would not fit into memory.

The JVM is small and starts fast.  Workers find the package by PYTHONPATH, so that tests cover the discovery of data
sources as with an installed package.  `local[2,3]`: two tasks at a time, three tries of each.

Queries of tests have few rows, so Spark would need most of the CPU time to compile them and to plan them anew between
their stages: by default it does neither.  The fixture `spark_defaults` lets a test run them as in a user's session.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from bruce_mp.spark.session import start_session
from support import processes

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

__all__ = ["QUICK_JVM", "SMALL", "SPARK_DEFAULTS", "python_path", "spark_session"]

ROOT: Final = Path(__file__).resolve().parents[2]
QUICK_JVM: Final = (
    "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 "
    "-XX:ReservedCodeCacheSize=240m "  # Java 17 would else spend a tenth of its time on removing code from 48m
    "-XX:MetaspaceSize=256m"  # without garbage collections while classes are loaded
)
SMALL: Final = {
    "spark.driver.memory": "512m",
    "spark.driver.extraJavaOptions": QUICK_JVM,
    "spark.sql.shuffle.partitions": "2",
    "spark.log.level": "ERROR",
}
SPARK_DEFAULTS: Final = {
    "spark.sql.codegen.wholeStage": "true",
    "spark.sql.codegen.factoryMode": "FALLBACK",
    "spark.sql.adaptive.enabled": "true",
}
QUICK_QUERIES: Final = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
}
END_S: Final = 30


def python_path() -> str:
    """Return the PYTHONPATH with which a process finds the package of this working copy."""
    return os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))


@contextmanager
def spark_session(warehouse: Path) -> Iterator[SparkSession]:
    """Yield the session, with Spark's Kafka connector; the end of the block ends its JVM."""
    os.environ["PYTHONPATH"] = python_path()
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    places = {"spark.sql.warehouse.dir": str(warehouse), "spark.local.dir": str(warehouse)}
    spark = start_session("tests", master="local[2,3]", kafka=True, settings={**SMALL, **QUICK_QUERIES, **places})
    gateway = spark.sparkContext._gateway
    assert gateway is not None
    java: subprocess.Popen[bytes] = gateway.proc
    processes.long_lived_trees.add(java.pid)
    try:
        yield spark
    finally:
        spark.stop()
        gateway.shutdown()
        assert java.stdin is not None
        java.stdin.close()  # tells the JVM that its driver has ended
        java.wait(END_S)
