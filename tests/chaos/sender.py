"""A sender that outlives the daemon: it goes on until it is told to stop, and tells how far it came.

Run as a process: SOCKET SENDER TOPICS RATE REPORT.  It sends message after message; one that the socket refused is sent
again.  On SIGTERM it writes the number of messages that the kernel took to REPORT and ends.
"""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path

from bruce_mp.client import DatagramClient, SendError
from support.traffic import Load, messages_of

FOR_EVER = 1 << 40


def load_of(topics: tuple[str, ...]) -> Load:
    """The endless load of which each sender sends a beginning."""
    return Load(topics, senders=3, messages=FOR_EVER, smallest=20, largest=3000, keyed=50)


def main(path: str, sender: str, topics: str, rate: str, report: str) -> None:
    stopped = []
    signal.signal(signal.SIGTERM, lambda *_: stopped.append(True))
    pause = 1 / float(rate)
    sent = 0
    with DatagramClient(path, timeout=5) as client:
        for message in messages_of(load_of(tuple(topics.split(","))), int(sender)):
            while not stopped:
                try:
                    client.send(
                        message.topic,
                        message.value,
                        key=message.key,
                        partition_key=message.partition_key,
                        timestamp_ms=message.timestamp_ms,
                    )
                except SendError:
                    time.sleep(0.02)
                    continue
                break
            if stopped:
                break
            sent += 1
            time.sleep(pause)
    Path(report).write_text(str(sent))


if __name__ == "__main__":
    main(*sys.argv[1:])
