"""Senders that outlive the daemon: each runs until it is stopped, and reports its progress.

    with EndlessSenders(daemon, load, rate=5) as senders:
        ...
        senders.stop()
    assert senders.sent == {0: 1234, 1: 1230}

Each sender is a separate process. It sends the messages of its endless part of the load one by one, and repeats those
that the socket refused. On SIGTERM it writes the number of messages that the kernel accepted, and ends.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from bruce_mp.client import DatagramClient, SendError
from support import processes
from support.traffic import Load, Message, messages_of

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Iterable
    from typing import Self

    from support.daemon import Daemon

__all__ = ["UNLIMITED", "EndlessSenders"]

UNLIMITED: Final = 1 << 40
"""Number of messages of a load without end."""
TIMEOUT_S: Final = 5.0
RETRY_S: Final = 0.02
STOP_S: Final = 30.0


class EndlessSenders:
    """The senders of a load, or those in `numbers`; `rate` messages per second each, 0 for no pause.

    `sent` has the number of messages that the kernel accepted from each stopped sender.
    """

    def __init__(self, daemon: Daemon, load: Load, rate: float, numbers: Iterable[int] | None = None) -> None:
        self._daemon = daemon
        self._load = load
        self._rate = rate
        self._numbers = tuple(numbers if numbers is not None else range(load.senders))
        self._running: dict[int, subprocess.Popen[bytes]] = {}
        self.sent: dict[int, int] = {}

    def __enter__(self) -> Self:
        self._running = {number: self._start(number) for number in self._numbers}
        return self

    def __exit__(self, *_: object) -> None:
        for sender in self._running.values():
            sender.kill()
            sender.wait()

    def _report(self, number: int) -> Path:
        return self._daemon.directory / f"sent-{number}"

    def _start(self, number: int) -> subprocess.Popen[bytes]:
        load = msgspec.json.encode(self._load).decode()
        words = (sys.executable, __file__, self._daemon.socket_path, number, self._rate, self._report(number), load)
        env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
        return processes.spawn([str(word) for word in words], output=sys.stderr.fileno(), env=env)

    def stop(self) -> None:
        """Stop all senders and record their progress."""
        for sender in self._running.values():
            sender.send_signal(signal.SIGTERM)
        for number, sender in self._running.items():
            assert sender.wait(STOP_S) == 0
            self.sent[number] = int(self._report(number).read_text())


def _send(path: str, load: Load, number: int, rate: float, is_stopped: Callable[[], bool]) -> int:
    """Send until stopped; return the number of messages that the kernel accepted."""
    sent = 0
    began = time.monotonic()
    with DatagramClient(path, timeout=TIMEOUT_S) as client:
        for message in messages_of(load, number):
            while not (taken := _is_taken(client, message)) and not is_stopped():
                time.sleep(RETRY_S)
            sent += taken
            if is_stopped():
                return sent
            if rate:
                time.sleep(max(0.0, min(1 / rate, began + sent / rate - time.monotonic())))
    raise AssertionError("A load without end has ended.")


def _is_taken(client: DatagramClient, message: Message) -> bool:
    try:
        client.send(
            message.topic,
            message.value,
            key=message.key,
            partition_key=message.partition_key,
            timestamp_ms=message.timestamp_ms,
        )
    except SendError:
        return False
    return True


def _main(path: str, number: str, rate: str, report: str, load: str) -> None:
    stopped: list[int] = []
    signal.signal(signal.SIGTERM, lambda signum, _: stopped.append(signum))
    sent = _send(path, msgspec.json.decode(load, type=Load), int(number), float(rate), lambda: bool(stopped))
    Path(report).write_text(str(sent))


if __name__ == "__main__":
    _main(*sys.argv[1:])
