"""Archives of the classes of Kafka's brokers, with which a broker starts for about half the CPU.

    python -m support.kafka_archive      (with tests/ on the path) fetches missing jars, and creates missing archives

Java ignores an archive of another Java or of other jars: then a start only takes longer.  An archive gets its name when
it is complete, because Java may crash on a part of one.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from bruce_mp.errors import StartError
from support import kafka_dist
from support.kafka_cluster import KafkaCluster
from support.kafka_config import archive_of

if TYPE_CHECKING:
    from support.kafka_config import NodePlan

TOPIC: Final = "topic"


class _Recorded(KafkaCluster):
    """A broker that writes the classes that it has loaded into `archive` when it ends."""

    def __init__(self, version: str, archive: Path) -> None:
        super().__init__(version)
        self._archive = archive

    def _java_options(self, _plan: NodePlan) -> list[str]:
        return [f"-XX:ArchiveClassesAtExit={self._archive}"]


def create_archive(version: str) -> None:
    """Create the archive of `version`, unless there is one that is newer than the Java runtime."""
    dist = kafka_dist.ensure(version)
    archive = archive_of(dist)
    if archive.exists() and archive.stat().st_mtime > dist.java.resolve().stat().st_ctime:
        return
    archive.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory(dir=dist.directory) as scratch:
        made = Path(scratch) / archive.name
        with _Recorded(version, made) as kafka:
            kafka.create_topic(TOPIC)
            kafka.read_all(TOPIC)
            kafka.terminate(1)
        made.replace(archive)


def main() -> int:
    if status := kafka_dist.main([]):
        return status
    try:
        for version in kafka_dist.RELEASES:
            create_archive(version)
    except StartError as unavailable:
        print(unavailable, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
