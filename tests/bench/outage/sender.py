"""Send a load at its pace until SIGTERM, then print the number of sent messages.

    python -m bench.outage.sender SOCKET RATE SIZE PARTITIONS TOPIC...

The sender sends one datagram at a time, each when it is due.  After a longer delay it sends the datagrams of the last
second only, because more would raise the rate of the load.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

from bench.outage.load import Load
from bruce_mp.client import DatagramClient
from support import processes

__all__ = ["start", "stop"]

STUCK_S: Final = 20.0
"""Longest wait of one send."""
LATE_S: Final = 1.0
"""Longest delay that the sender makes up for."""
STOP_S: Final = 10.0


def start(load: Load, socket_path: Path) -> subprocess.Popen[bytes]:
    """Start the sender process."""
    numbers = map(str, (load.rate, load.size, load.partitions))
    words = [sys.executable, "-m", "bench.outage.sender", str(socket_path), *numbers, *load.topics]
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    return processes.spawn(words, output=subprocess.PIPE, env=env)


def stop(sender: subprocess.Popen[bytes]) -> int:
    """Stop the sender, and return the number of sent messages.  Raises AssertionError if the sender failed."""
    sender.terminate()
    words = sender.communicate(timeout=STOP_S)[0].decode()
    assert sender.returncode == 0, f"The sender ended with {sender.returncode}: {words}"
    return int(words)


class _StopFlag:
    is_set = False

    def set(self, *_: object) -> None:
        self.is_set = True


def _send_all(load: Load, path: str, stop: _StopFlag) -> int:
    number, due = 0, time.monotonic()
    with DatagramClient(path, timeout=STUCK_S) as client:
        while not stop.is_set:
            now = time.monotonic()
            time.sleep(max(0.0, due - now))
            client.send_encoded(load.datagram(number, time.time_ns()))
            number += 1
            due = max(due, now - LATE_S) + 1 / load.rate
    return number


def _main() -> None:
    path, *words = sys.argv[1:]
    rate, size, partitions = map(int, words[:3])
    stop = _StopFlag()
    signal.signal(signal.SIGTERM, stop.set)
    print(_send_all(Load(rate, tuple(words[3:]), partitions, size), path, stop))


if __name__ == "__main__":
    _main()
