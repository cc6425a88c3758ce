"""A consumer that records the time of each record: librdkafka, a thread and the clock.

Its part in a latency is one round trip to a broker, which answers as soon as it has records.  The consumer finds a
returning broker within tenths of a second, so it does not lengthen the outage.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, TopicPartition

from bench.outage.load import Place, parse_value
from support.kafka_reader import SETTINGS, ignore_error

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Self

__all__ = ["Arrival", "Watcher"]

POLL_S: Final = 0.1
QUICK: Final = {
    "enable.partition.eof": False,
    "fetch.wait.max.ms": 500,
    "fetch.error.backoff.ms": 50,
    "reconnect.backoff.ms": 50,
    "reconnect.backoff.max.ms": 200,
    "topic.metadata.refresh.fast.interval.ms": 100,
    "topic.metadata.refresh.interval.ms": 1000,
}


class Arrival(NamedTuple):
    """A record and the time of its receipt; times are in ns since the epoch."""

    number: int
    place: Place
    sent_ns: int
    seen_ns: int


class Watcher(threading.Thread):
    """A thread that consumes partitions from their beginning on during its `with` block."""

    def __init__(self, client: Mapping[str, Any], places: Iterable[Place]) -> None:
        super().__init__(name="watcher", daemon=True)
        self.places = {place: place for place in places}
        self._consumer = Consumer({**SETTINGS, **client, **QUICK, "error_cb": ignore_error})
        self._is_over = False
        self._error: Exception | None = None
        self.arrivals: list[Arrival] = []
        self.last_ns = dict.fromkeys(self.places, 0)
        """Time of the last record by partition."""

    def seen_all_since(self, places: Iterable[Place], moment_ns: int) -> bool:
        """Return True if each partition got a record since then.  Raises the error that ended the thread, if any."""
        if self._error is not None:
            raise self._error
        return all(self.last_ns[place] > moment_ns for place in places)

    def __enter__(self) -> Self:
        self._consumer.assign([TopicPartition(*place, OFFSET_BEGINNING) for place in self.places])
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over = True
        self.join()
        self._consumer.close()

    def run(self) -> None:
        """Consume until the block ends."""
        try:
            while not self._is_over:
                self._look()
        except Exception as error:  # noqa: BLE001  the thread that joins this one raises the error again
            self._error = error

    def _look(self) -> None:
        message = self._consumer.poll(POLL_S)
        now_ns = time.time_ns()
        if message is None:
            return
        if (error := message.error()) is not None:
            raise KafkaException(error)
        place = self.places[Place(message.topic() or "", message.partition() or 0)]
        number, sent_ns = parse_value(message.value() or b"")
        self.arrivals.append(Arrival(number, place, sent_ns, now_ns))
        self.last_ns[place] = now_ns
