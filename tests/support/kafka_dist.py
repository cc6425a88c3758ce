"""Real Kafka for tests: the tested versions, their jars, and a Java runtime.

    python -m support.kafka_dist [VERSION ...]      (with tests/ on the path) fetches missing jars

The jars of one version lie in `CACHE/kafka/VERSION/jars`.  A jar that cannot be fetched raises `StartError` with a
remedy.  To add a version, add a row to `RELEASES`, without version ranges: some releases do not resolve.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from bruce_mp.errors import StartError
from bruce_mp.spark.java import find_java, java_major_version
from bruce_mp.spark.maven import cache_directory, ensure_jars

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class KafkaRelease:
    """One version of Kafka and its requirements beside its own jars."""

    version: str
    scala: str
    extra: tuple[str, ...] = ()
    """Maven coordinates: a logging back end, and libraries that later Java versions lack."""
    zookeeper: bool = False
    admin_api: bool = True
    """False before 0.10.1: a command creates topics through ZooKeeper, and brokers lack ApiVersions."""

    lists_brokers: bool = True
    """False for 0.8: its Metadata names no broker until there is a topic."""

    @property
    def coordinates(self) -> tuple[str, ...]:
        return (f"org.apache.kafka:kafka_{self.scala}:{self.version}", *self.extra)


SIMPLE_LOG: Final = "org.slf4j:slf4j-simple:1.7.36"
LOG4J: Final = "org.slf4j:slf4j-reload4j:1.7.36"
JAXB: Final = "javax.xml.bind:jaxb-api:2.3.1"

RELEASES: Final = {
    release.version: release
    for release in (
        KafkaRelease("0.8.2.2", "2.11", zookeeper=True, admin_api=False, lists_brokers=False),
        KafkaRelease("0.9.0.1", "2.11", zookeeper=True, admin_api=False),
        KafkaRelease("0.10.2.2", "2.11", (JAXB,), zookeeper=True),
        KafkaRelease("0.11.0.3", "2.11", (JAXB,), zookeeper=True),
        KafkaRelease("1.1.1", "2.11", (LOG4J,), zookeeper=True),
        KafkaRelease("2.8.2", "2.13", (LOG4J,), zookeeper=True),
        KafkaRelease("3.9.2", "2.13", (LOG4J,)),
        KafkaRelease("4.3.1", "2.13", (SIMPLE_LOG,)),
    )
}
NEWEST: Final = "4.3.1"
TESTED: Final = ("2.8.2", "3.9.2", NEWEST)
"""The versions of most tests of brokers; other versions serve tests of old ones.  `scripts/test` fetches all."""
ALWAYS: Final = ("2.8.2", NEWEST)
"""The versions of them that are no soak tests: the requests to 3.9 have the layout of those to the newest."""


@dataclass(frozen=True, slots=True)
class KafkaDist:
    """A version that is ready to run."""

    release: KafkaRelease
    directory: Path
    java: Path

    @property
    def class_path(self) -> str:
        return f"{self.directory / 'jars'}/*"


def ensure(version: str) -> KafkaDist:
    """Return the jars of `version` and a Java runtime, fetched if missing. Raises `StartError`."""
    release = RELEASES[version]
    directory = ensure_jars(cache_directory() / "kafka" / version, release.coordinates)
    return KafkaDist(release, directory, find_java())


def main(versions: Sequence[str]) -> int:
    try:
        for version in versions or RELEASES:
            began = time.monotonic()
            dist = ensure(version)
            print(f"Kafka {version}: {dist.directory} ({time.monotonic() - began:.1f} s)", flush=True)
        print(f"Java {java_major_version(find_java())}: {find_java()}")
    except StartError as unavailable:
        print(unavailable, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
