"""Record keys, and the partitions that Kafka's own producers choose for them."""

from __future__ import annotations

import random
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Final

from confluent_kafka import Message, Producer

from support.kafka_config import JVM_FLAGS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from support.kafka_dist import KafkaDist

__all__ = ["partitions_of_java", "partitions_of_librdkafka", "random_keys", "run_java_source"]

PROGRAMS: Final = Path(__file__).parent / "java"
RUN_S: Final = 120


def random_keys(count: int, longest: int = 40) -> list[bytes]:
    """Return distinct keys of 1 to `longest` random bytes; every length occurs."""
    rng = random.Random(19)
    keys = {rng.randbytes(1 + number % longest) for number in range(count)}
    while len(keys) < count:
        keys.add(rng.randbytes(longest))
    return sorted(keys)


def run_java_source(dist: KafkaDist, program: str, arguments: Sequence[str], keys: Iterable[bytes]) -> list[str]:
    """Run a program of `support/java`, which reads keys and prints a line for each."""
    command = [str(dist.java), *JVM_FLAGS, "-cp", dist.class_path, str(PROGRAMS / program), *arguments]
    lines = "".join(f"{key.hex()}\n" for key in keys)
    done = subprocess.run(command, input=lines, capture_output=True, text=True, timeout=RUN_S, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def partitions_of_java(dist: KafkaDist, bootstrap: str, topic: str, keys: Sequence[bytes]) -> dict[bytes, int]:
    """Produce the keys to a topic with the Java client, and return the partition of each."""
    found = run_java_source(dist, "ProduceKeys.java", [bootstrap, topic], keys)
    return dict(zip(keys, map(int, found), strict=True))


def partitions_of_librdkafka(bootstrap: str, topic: str, keys: Iterable[bytes], partitioner: str) -> dict[bytes, int]:
    """Produce the keys to a topic with librdkafka and the named partitioner, and return the partition of each."""
    found: dict[bytes, int] = {}

    def on_delivery(error: object, message: Message) -> None:
        key, partition = message.key(), message.partition()
        assert error is None
        assert isinstance(key, bytes)
        assert partition is not None
        found[key] = partition

    producer = Producer({"bootstrap.servers": bootstrap, "partitioner": partitioner})
    for key in keys:
        producer.produce(topic, key, key, on_delivery=on_delivery)
    assert producer.flush(RUN_S) == 0
    return found
