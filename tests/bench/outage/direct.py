"""A comparison without the daemon: librdkafka's producer sends a tenth of the traffic to a separate topic.

Kafka and not the daemon causes the effects that both show.  The producer has the daemon's settings: idempotent, acks
from all replicas, batches of 100 ms.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import Producer

from support.kafka_reader import ignore_error

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Self

    from bench.outage.load import Load

__all__ = ["DirectProducer"]

FLUSH_S: Final = 30.0
SETTINGS: Final = {"enable.idempotence": True, "linger.ms": 100, "log_level": 0}


class DirectProducer(threading.Thread):
    """A thread that sends a load at its pace during its `with` block, then waits until Kafka has all messages."""

    def __init__(self, client: Mapping[str, Any], load: Load) -> None:
        super().__init__(name="direct producer", daemon=True)
        self._producer = Producer({**client, **SETTINGS, "error_cb": ignore_error})
        self._load = load
        self._is_over = threading.Event()
        self.sent = 0

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self.join()
        self._producer.flush(FLUSH_S)

    def run(self) -> None:
        """Send the load."""
        began = time.monotonic()
        while not self._is_over.wait(began + self.sent / self._load.rate - time.monotonic()):
            home, value = self._load.home(self.sent), self._load.value(self.sent, time.time_ns())
            self._producer.produce(home.topic, value, partition=home.partition)
            self._producer.poll(0)
            self.sent += 1
