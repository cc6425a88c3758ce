"""Daemons that end by themselves, and senders that count their accepted messages."""

from __future__ import annotations

import subprocess
import time
from dataclasses import replace
from threading import Event, Thread
from typing import TYPE_CHECKING, Final, NamedTuple

from bruce_mp.client import DatagramClient, SendError
from support import processes
from support.traffic import messages_of, send_message

if TYPE_CHECKING:
    import socket
    from collections.abc import Mapping
    from pathlib import Path

    from support.traffic import Load, Message

__all__ = ["FinishedDaemon", "Sender", "run_until_exit"]

WITHIN_S: Final = 40.0


class FinishedDaemon(NamedTuple):
    """The exit code and the output of a daemon."""

    code: int
    text: str


def run_until_exit(
    config: Path, settings: Mapping[str, object] | None = None, handed_over: Mapping[str, socket.socket] | None = None
) -> FinishedDaemon:
    """Run a daemon to its end, with sockets of a service manager; return its exit code and output.

    The daemon is subject to file permissions, even if the tests run as root.
    """
    overrides = [f"--set={key}={value}" for key, value in (settings or {}).items()]
    command = [*processes.BRUCE, "run", "--config", str(config), *overrides]
    output = config.with_suffix(".output")
    with output.open("wb") as file:
        process = processes.spawn(command, output=file, sockets=handed_over, is_privileged=False)
    try:
        return FinishedDaemon(process.wait(processes.time_limit(WITHIN_S)), output.read_text(errors="replace"))
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        raise AssertionError(f"The daemon did not end:\n{output.read_text(errors='replace')}") from None


class Sender:
    """A thread that sends the messages of a load's sender 0 until a refusal or `stop`; `accepted` counts them.

    A message is accepted once the kernel has it, before the daemon reads it.  The thread pauses for `pause_s` between
    messages; `longest_s` is the duration of the slowest send.
    """

    def __init__(self, load: Load, path: Path, pause_s: float = 0.0) -> None:
        self.load = load
        self.accepted = 0
        self.longest_s = 0.0
        self.refusal: SendError | None = None
        self._path = path
        self._pause_s = pause_s
        self._stop = Event()
        self._thread = Thread(target=self._run)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> Load:
        """Stop the sender after the present message, and return its sent messages."""
        self._stop.set()
        self.join()
        return replace(self.load, messages=self.accepted)

    def join(self, timeout: float = 60) -> None:
        """Wait for its end."""
        self._thread.join(processes.time_limit(timeout))
        assert not self._thread.is_alive(), f"The sender hangs after {self.accepted} messages."

    @property
    def is_done(self) -> bool:
        return not self._thread.is_alive()

    def _run(self) -> None:
        with DatagramClient(self._path, timeout=60) as client:
            for message in messages_of(self.load, 0):
                if self._stop.wait(self._pause_s):
                    return
                try:
                    self._send(client, message)
                except SendError as error:
                    self.refusal = error
                    return
                self.accepted += 1

    def _send(self, client: DatagramClient, message: Message) -> None:
        began = time.monotonic()
        send_message(client, message)
        self.longest_s = max(self.longest_s, time.monotonic() - began)
