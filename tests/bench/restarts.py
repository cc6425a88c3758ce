"""The effect of an upgrade and of restarts on a sender: the longest send of a message, and the failures.

    scripts/bench restarts [--times N]

A sender sends without pause, and retries failed messages.  Each line is the worst of N times.
"""

from __future__ import annotations

import argparse
import socket
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from bruce_mp.client import DatagramClient, SendError
from bruce_mp.devbroker.control import DevBroker
from support.daemon import Daemon
from support.read_back import values_in

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

TOPIC: Final = "restarts"
PAUSE_S: Final = 0.001
SETTLED_S: Final = 60.0


class Sender(threading.Thread):
    """A thread that sends numbers in order, at most one each millisecond, and retries each until it is accepted."""

    def __init__(self, path: Path) -> None:
        super().__init__(daemon=True)
        self._path = path
        self._end = threading.Event()
        self.accepted = 0
        self.failures = 0
        self.longest_s = 0.0

    def run(self) -> None:
        with DatagramClient(self._path) as client:
            while not self._end.wait(PAUSE_S):
                began = time.monotonic()
                while not self._send(client):
                    time.sleep(PAUSE_S)
                self.accepted += 1
                self.longest_s = max(self.longest_s, time.monotonic() - began)

    def _send(self, client: DatagramClient) -> bool:
        try:
            client.send(TOPIC, b"%d" % self.accepted, partition_key=0)
        except SendError:
            self.failures += 1
            return False
        return True

    def stop(self) -> None:
        self._end.set()
        self.join()


@dataclass(frozen=True, slots=True)
class Result:
    """A sender's longest send and failures, and the messages that did not arrive."""

    longest_s: float
    failures: int
    accepted: int
    lost: int


def measure(change: Callable[[Daemon], None], *, handed_over: bool) -> Result:
    """Start a daemon and a sender, make one change, and return the sender's result."""
    with ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        broker = stack.enter_context(DevBroker(topics={TOPIC: 1}))
        daemon = Daemon(place, broker.bootstrap)
        if handed_over:
            opened = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
            opened.bind(str(daemon.socket_path))
            daemon.handed_over["bruce.socket"] = opened
        stack.enter_context(daemon)
        sender = Sender(daemon.socket_path)
        sender.start()
        daemon.wait_for(lambda: daemon.books().delivered > 0, "the first delivery", SETTLED_S)
        change(daemon)
        time.sleep(0.5)  # for effects of the change
        sender.stop()
        arrived = _arrived(daemon, broker, sender.accepted)
        return Result(sender.longest_s, sender.failures, sender.accepted, sender.accepted - len(arrived))


def _arrived(daemon: Daemon, broker: DevBroker, count: int) -> set[bytes]:
    """Return the values in the broker once all have arrived, or once no more arrive."""

    def values() -> set[bytes]:
        return set(values_in(broker, TOPIC))

    deadline = time.monotonic() + SETTLED_S
    while len(values()) < count and time.monotonic() < deadline and any(daemon.wait_consistent().held.values()):
        time.sleep(0.1)
    return values()


def restart(daemon: Daemon) -> None:
    assert daemon.terminate() == 0
    daemon.start()


CASES: Final[tuple[tuple[str, Callable[[Daemon], None], bool], ...]] = (
    ("bruce upgrade", Daemon.upgrade, False),
    ("restart, socket of the service manager", restart, True),
    ("restart, socket of its own", restart, False),
)


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="scripts/bench restarts", description=__doc__)
    parser.add_argument("--times", type=int, default=3, metavar="N", help="how often each (default 3)")
    times = parser.parse_args(argv).times
    print(f"{'':40}{'longest':>9}{'failures':>10}{'accepted':>10}{'lost':>6}")
    for name, change, handed_over in CASES:
        results = [measure(change, handed_over=handed_over) for _ in range(times)]
        worst = max(results, key=lambda result: result.longest_s)
        failures, lost = max(each.failures for each in results), max(each.lost for each in results)
        print(f"{name:40}{worst.longest_s * 1000:6.0f} ms{failures:10}{worst.accepted:10}{lost:6}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
