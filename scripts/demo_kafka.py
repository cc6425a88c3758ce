"""Run a real Kafka broker as `bruce dev-broker` runs the embedded one, for `scripts/demo --kafka`.

    demo_kafka.py DIRECTORY TOPIC:PARTITIONS ...      (with tests/ on the path)

The program fetches Kafka unless it is cached, keeps its data below DIRECTORY, and prints `BOOTSTRAP host:port` when the
topics exist. It runs until SIGTERM or the end of standard input. However this process ends, the broker ends with it.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from bruce_mp.errors import StartError
from support.kafka_cluster import KafkaCluster

if TYPE_CHECKING:
    from collections.abc import Sequence


def serve(directory: Path, topics: Sequence[str]) -> None:
    """Run the broker until standard input ends. Raise StartError if Kafka or a Java runtime is unavailable."""
    with KafkaCluster(directory=directory) as cluster:
        for topic in topics:
            name, _, partitions = topic.rpartition(":")
            cluster.create_topic(name, partitions=int(partitions))
        print("BOOTSTRAP", cluster.bootstrap, flush=True)
        sys.stdin.buffer.read()


def main(arguments: Sequence[str]) -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        serve(Path(arguments[0]), arguments[1:])
    except StartError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
