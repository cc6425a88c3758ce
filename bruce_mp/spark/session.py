"""Start a Spark session for the pipelines and the tests, with a Java, Python and jars that work on each machine.

* `java.py` finds Java.
* Python workers use the driver's interpreter, unless PYSPARK_PYTHON names another one. Spark's own default is `python3`
  from PATH, which does not see the packages of a virtual environment.
* Spark's Kafka connector consists of four jars. The session gets them as files, because Spark's own download also needs
  the parent POMs, and fails if a mirror lacks one of them.
"""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from bruce_mp.spark.java import MINIMUM_JAVA, java_major_version, prepare_java_home
from bruce_mp.spark.maven import cache_directory, ensure_jars

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark.sql import SparkSession

__all__ = ["connector_version", "describe_versions", "prepare_environment", "start_session", "temporary_settings"]

_CONNECTOR_VERSIONS: Final = {"4.1": "4.1.0", "4.2": "4.2.0", "4.3": "4.2.0"}
"""Versions of Spark, each with the tested version of the connector; other Spark versions use the last connector."""
_KAFKA_CLIENTS_VERSION: Final = "3.9.2"
_LOOPBACK: Final = "127.0.0.1"


def connector_version(spark_version: str) -> str:
    """Return the version of the Kafka connector for a version of Spark."""
    minor = ".".join(spark_version.split(".")[:2])
    return _CONNECTOR_VERSIONS.get(minor, [*_CONNECTOR_VERSIONS.values()][-1])


def describe_versions() -> str:
    """Return a text with the versions of Spark and of its Kafka connector."""
    from pyspark import __version__  # noqa: PLC0415 - slow

    connector = connector_version(__version__)
    return f"Spark {__version__} with Kafka connector {connector} and kafka-clients {_KAFKA_CLIENTS_VERSION}"


def _kafka_jars() -> str:
    """Return the connector's jars as a value of `spark.jars`; fetch missing ones. Raise `StartError`."""
    from pyspark import __version__  # noqa: PLC0415 - slow

    connector = connector_version(__version__)
    coordinates = (
        f"org.apache.spark:spark-sql-kafka-0-10_2.13:{connector}",
        "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",
        f"org.apache.kafka:kafka-clients:{_KAFKA_CLIENTS_VERSION}",
        "org.apache.commons:commons-pool2:2.13.1",
    )
    directory = ensure_jars(cache_directory() / "spark" / f"kafka-{connector}", coordinates, with_dependencies=False)
    return ",".join(str(jar) for jar in sorted((directory / "jars").glob("*.jar")))


def prepare_environment() -> None:
    """Set Spark's environment variables for Java and Python, unless they are set and JAVA_HOME has a usable Java."""
    home = os.environ.get("JAVA_HOME")
    if not home or java_major_version(Path(home, "bin", "java")) < MINIMUM_JAVA:
        os.environ["JAVA_HOME"] = str(prepare_java_home())
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)


def start_session(
    name: str, *, master: str | None = None, kafka: bool = False, settings: Mapping[str, str] | None = None
) -> SparkSession:
    """Start a session; `master` is as for `spark-submit` (None: Spark's own choice).

    `kafka` adds Spark's Kafka connector to the jars of `settings`. With a `master` that begins with `local`, Spark
    listens on loopback only and has no web page.
    """
    prepare_environment()
    from pyspark.sql import SparkSession  # noqa: PLC0415 - slow, and reads the prepared environment

    builder = SparkSession.builder.appName(name)
    if master is not None:
        builder = builder.master(master)
    chosen = {**_defaults(master), **(settings or {})}
    if kafka:
        chosen["spark.jars"] = ",".join(filter(None, [chosen.get("spark.jars"), _kafka_jars()]))
    for key, value in chosen.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


@contextmanager
def temporary_settings(spark: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """Run the block with these settings, which must all have a value or a default in Spark."""
    before = {key: spark.conf.get(key) for key in settings}
    try:
        for key, value in settings.items():
            spark.conf.set(key, value)
        yield
    finally:
        for key, old in before.items():
            spark.conf.set(key, str(old))


def _defaults(master: str | None) -> dict[str, str]:
    common = {"spark.sql.session.timeZone": "UTC", "spark.ui.showConsoleProgress": "false"}
    if master is None or not master.startswith("local"):
        return common
    return {
        **common,
        "spark.driver.host": _LOOPBACK,
        "spark.driver.bindAddress": _LOOPBACK,
        "spark.ui.enabled": "false",
    }
