"""Senders that outlive the daemon: each runs until it is stopped, and reports its progress.

    with EndlessSenders(daemon, load, rate=5) as senders:
        ...
        senders.stop()
    assert senders.sent == {0: 1234, 1: 1230}

Each sender is a separate process. It sends the messages of its endless part of the load one by one, repeats those that
the socket refused, and writes the number of messages that the kernel accepted to a file. SIGTERM ends it.

A *flusher* sends to a stream and flushes after every few messages. It sends no message twice. When a flush fails, the
messages since the last successful flush are in doubt.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from itertools import islice
from pathlib import Path  # noqa: TC003 - msgspec reads the annotation
from typing import TYPE_CHECKING, Final

import msgspec

from bruce_mp.client import DatagramClient, SendError, StreamClient
from bruce_mp.client.flush import LevelName  # noqa: TC001 - msgspec reads the annotation
from support import processes
from support.traffic import Load, Message, messages_of, send_message

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Iterable
    from typing import Self

    from support.daemon import Daemon

__all__ = ["UNLIMITED", "EndlessSenders", "Flusher", "Interval"]

UNLIMITED: Final = 1 << 40
"""Number of messages of a load without end."""
TIMEOUT_S: Final = 5.0
RETRY_S: Final = 0.02
STOP_S: Final = 30.0
FLUSH_EVERY: Final = 40
FLUSH_S: Final = 20.0

Interval = tuple[int, int]
"""Numbers of messages: the first, and the one after the last."""


class Flusher(msgspec.Struct, frozen=True):
    """The stream and the level of a flusher."""

    stream: Path
    level: LevelName


class EndlessSenders:
    """The senders of a load, or those in `numbers`; `rate` messages per second each, 0 for no pause.

    `sent` has the number of messages that the kernel accepted from each stopped sender. With `flusher`, the senders are
    flushers; `in_doubt` has the messages without a known outcome of each stopped one.
    """

    def __init__(
        self,
        daemon: Daemon,
        load: Load,
        rate: float,
        numbers: Iterable[int] | None = None,
        flusher: Flusher | None = None,
    ) -> None:
        self._daemon = daemon
        self._load = load
        self._rate = rate
        self._numbers = tuple(numbers if numbers is not None else range(load.senders))
        self._flusher = flusher
        self._running: dict[int, subprocess.Popen[bytes]] = {}
        self.sent: dict[int, int] = {}
        self.in_doubt: dict[int, list[Interval]] = {}

    def __enter__(self) -> Self:
        self._running = {number: self._start(number) for number in self._numbers}
        for number in self._running:
            self._daemon.wait_for(self._report(number).exists, f"sender {number}", STOP_S)
        return self

    def __exit__(self, *_: object) -> None:
        for sender in self._running.values():
            sender.kill()
            sender.wait()

    def _report(self, number: int) -> Path:
        return self._daemon.directory / f"sent-{number}"

    def _start(self, number: int) -> subprocess.Popen[bytes]:
        task = _Task(self._daemon.socket_path, self._load, number, self._rate, self._report(number), self._flusher)
        self._report(number).unlink(missing_ok=True)
        return processes.spawn_sender("endless_senders", msgspec.json.encode(task, enc_hook=str).decode())

    def progress(self) -> dict[int, int]:
        """Return the number of messages that the kernel has accepted from each sender."""
        return {number: int(self._report(number).read_bytes()) for number in self._running}

    def suspend(self, *, is_suspended: bool) -> None:
        """Suspend or resume all senders."""
        for sender in self._running.values():
            sender.send_signal(signal.SIGSTOP if is_suspended else signal.SIGCONT)

    def stop(self) -> None:
        """Stop all senders and record their progress."""
        for sender in self._running.values():
            sender.send_signal(signal.SIGTERM)
        self.suspend(is_suspended=False)
        for number, sender in self._running.items():
            assert sender.wait(STOP_S) == 0
            if self._flusher is not None:
                self.in_doubt[number] = msgspec.json.decode(_doubts(self._report(number)).read_bytes(), type=_Intervals)
        self.sent = self.progress()


_Intervals = list[Interval]


class _Task(msgspec.Struct, frozen=True):
    """The task of one sender; `report` is the file for the number of its messages."""

    socket: Path
    load: Load
    number: int
    rate: float
    report: Path
    flusher: Flusher | None


def _encode(sent: int) -> bytes:
    """Encode a number in a fixed length, so that each write replaces the one before."""
    return b"%020d" % sent


def _doubts(report: Path) -> Path:
    return report.with_suffix(".doubts")


class _Pace:
    """Counts messages, writes each count to the report, and pauses to keep the rate."""

    def __init__(self, task: _Task) -> None:
        self._rate = task.rate
        task.report.with_suffix(".new").write_bytes(_encode(0))
        self._file = os.open(task.report.with_suffix(".new").rename(task.report), os.O_WRONLY)
        self._began = time.monotonic()
        self.sent = 0

    def count(self, messages: int) -> None:
        self.sent += messages
        os.pwrite(self._file, _encode(self.sent), 0)

    def pause(self) -> None:
        if self._rate:
            due = self._began + self.sent / self._rate
            time.sleep(max(0.0, min(1 / self._rate, due - time.monotonic())))


def _send_datagrams(task: _Task, is_stopped: Callable[[], bool]) -> None:
    """Send until stopped."""
    pace = _Pace(task)
    with DatagramClient(task.socket, timeout=TIMEOUT_S) as client:
        for message in messages_of(task.load, task.number):
            while not (accepted := _is_accepted(client, message)) and not is_stopped():
                time.sleep(RETRY_S)
            pace.count(accepted)
            if is_stopped():
                return
            pace.pause()
    raise AssertionError("A load without end has ended.")


def _send_and_flush(task: _Task, flusher: Flusher, is_stopped: Callable[[], bool]) -> None:
    """Send and flush until stopped, and write the messages in doubt."""
    pace = _Pace(task)
    messages = messages_of(task.load, task.number)
    in_doubt: list[Interval] = []
    with StreamClient(flusher.stream, timeout=TIMEOUT_S) as client:
        while not is_stopped():
            known = pace.sent
            try:
                for message in islice(messages, FLUSH_EVERY):
                    pace.count(1)  # before the call, because a failed one may have sent it
                    send_message(client, message)
                    pace.pause()
                client.flush(FLUSH_S, flusher.level)
            except SendError:
                in_doubt.append((known, pace.sent))
                time.sleep(RETRY_S)
    _doubts(task.report).write_bytes(msgspec.json.encode(in_doubt))


def _is_accepted(client: DatagramClient, message: Message) -> bool:
    try:
        send_message(client, message)
    except SendError:
        return False
    return True


def _main(encoded: str) -> None:
    task = msgspec.json.decode(encoded, type=_Task, dec_hook=lambda kind, text: kind(text))
    stopped: list[int] = []
    signal.signal(signal.SIGTERM, lambda signum, _: stopped.append(signum))
    if task.flusher is None:
        _send_datagrams(task, lambda: bool(stopped))
    else:
        _send_and_flush(task, task.flusher, lambda: bool(stopped))


if __name__ == "__main__":
    _main(*sys.argv[1:])
