"""A client library in a separate process: the cost of producing without a daemon.

    produce LIBRARY BOOTSTRAP FILE MESSAGES

The lines of FILE are the messages; they are sent round and round to the topic bench-0, batched as the daemon batches.
Prints "PRODUCED messages seconds cpu-seconds", counted from the first message until all are acknowledged.
"""

from __future__ import annotations

import sys
import time
from itertools import cycle, islice
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

TOPIC = "bench-0"
LINGER_MS = 500
BATCH_BYTES = 65_536
FLUSH_S = 60


def with_confluent_kafka(bootstrap: str, messages: Iterable[bytes]) -> None:
    from confluent_kafka import Producer  # noqa: PLC0415  each library only where it is measured

    producer = Producer(
        {"bootstrap.servers": bootstrap, "linger.ms": LINGER_MS, "batch.size": BATCH_BYTES, "acks": "all"}
    )
    for message in messages:
        while True:
            try:
                producer.produce(TOPIC, message)
                break
            except BufferError:
                producer.poll(0.01)
    producer.flush(FLUSH_S)


def with_kafka_python(bootstrap: str, messages: Iterable[bytes]) -> None:
    from kafka import KafkaProducer  # noqa: PLC0415

    producer = KafkaProducer(
        bootstrap_servers=bootstrap.split(","), linger_ms=LINGER_MS, batch_size=BATCH_BYTES, acks="all"
    )
    for message in messages:
        producer.send(TOPIC, message)
    producer.flush(FLUSH_S)


def main() -> None:
    library, bootstrap, file, wanted = sys.argv[1:]
    lines = Path(file).read_bytes().splitlines()
    produce = {"confluent-kafka": with_confluent_kafka, "kafka-python": with_kafka_python}[library]
    start, cpu = time.monotonic(), time.process_time()
    produce(bootstrap, islice(cycle(lines), int(wanted)))
    print(f"PRODUCED {wanted} {time.monotonic() - start:.6f} {time.process_time() - cpu:.6f}")


if __name__ == "__main__":
    main()
