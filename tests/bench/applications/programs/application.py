"""An application in Python.

    application KIND ADDRESS TOPIC SIZE

KIND is datagram, stream or confluent-kafka; ADDRESS is a socket's path, or a broker. All applications print READY, and
answer each line "MESSAGES RATE DRY" on their standard input with "SENT" once that many messages of SIZE bytes are sent,
and, with streams and Kafka clients, acknowledged by the broker. RATE is in messages a second, 0 without pauses. With
DRY 1 they only pause. They end with their input.
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

LINGER_S = 0.01
BATCH_LINGER_MS = 500
BATCH_BYTES = 65_536
FLUSH_S = 60

Functions = tuple["Callable[[], object]", "Callable[[], object]"]


def datagram(path: str, topic: str, value: bytes) -> Functions:
    from bruce_mp.client import DatagramClient  # noqa: PLC0415  each library only where it is measured

    client = DatagramClient(path)
    return lambda: client.send(topic, value), lambda: None


def stream(path: str, topic: str, value: bytes) -> Functions:
    from bruce_mp.client import StreamClient  # noqa: PLC0415

    client = StreamClient(path, linger=LINGER_S)
    return lambda: client.send(topic, value), lambda: client.flush(FLUSH_S)


def confluent_kafka(broker: str, topic: str, value: bytes) -> Functions:
    from confluent_kafka import Producer  # noqa: PLC0415

    limits = {"linger.ms": BATCH_LINGER_MS, "batch.size": BATCH_BYTES}
    producer = Producer({"bootstrap.servers": broker, "enable.idempotence": True, **limits})

    def send() -> None:
        while True:
            try:
                return producer.produce(topic, value)
            except BufferError:
                producer.poll(0.01)

    return send, lambda: producer.flush(FLUSH_S)


KINDS = {"datagram": datagram, "stream": stream, "confluent-kafka": confluent_kafka}


def run(send: Callable[[], object], messages: int, rate: float) -> None:
    start = time.monotonic()
    for number in range(messages):
        if rate and (pause := start + number / rate - time.monotonic()) > 0:
            time.sleep(pause)
        send()


def main() -> None:
    kind, address, topic, size = sys.argv[1:]
    send, flush = KINDS[kind](address, topic, b"x" * int(size))
    print("READY", flush=True)
    for line in sys.stdin:
        messages, rate, dry = line.split()
        run((lambda: None) if dry == "1" else send, int(messages), float(rate))
        flush()
        print("SENT", flush=True)


if __name__ == "__main__":
    main()
