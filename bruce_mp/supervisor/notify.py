"""What a service manager is told: that the daemon is ready, lives, reads its configuration anew, or ends.

systemd says by two variables of the environment where it listens and how often it wants to hear of us; without them
nothing is said.  https://www.freedesktop.org/software/systemd/man/sd_notify.html
"""

from __future__ import annotations

import os
import socket
import time
from typing import Final

__all__ = ["ServiceManager"]

_VARIABLES: Final = ("NOTIFY_SOCKET", "WATCHDOG_PID", "WATCHDOG_USEC")
_MARGIN: Final = 3
"""So many signs of life in the time that systemd waits for one."""


class ServiceManager:
    """The one that started this process, if it wants to be told.  Times in seconds of a monotonic clock.

    `variables` are those of the environment from which code that takes our place knows it, too.
    """

    def __init__(self) -> None:
        self.variables = {name: os.environ[name] for name in _VARIABLES if name in os.environ}
        address = os.environ.pop("NOTIFY_SOCKET", "")  # ours alone: no process of the daemon speaks for it
        self._address = f"\0{address[1:]}" if address.startswith("@") else address
        self._said: set[str] = set()
        self._every = _watchdog_s() / _MARGIN
        self._due = 0.0

    def ready(self) -> None:
        """Say once that the daemon does its work; again after `reloading`."""
        self._say_once("READY=1")

    def reloading(self) -> None:
        """Say that other code, or another configuration, takes over.

        It will be said that it is ready; by us if it does not come to that.
        """
        if "READY=1" in self._said:
            self._said.remove("READY=1")
            self._say(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def stopping(self) -> None:
        """Say once that the daemon ends."""
        self._say_once("STOPPING=1")

    def alive(self, now: float) -> None:
        """Say that we live, as often as it is wanted."""
        if self._every and now >= self._due:
            self._due = now + self._every
            self._say("WATCHDOG=1")

    def _say_once(self, word: str) -> None:
        if word not in self._said:
            self._said.add(word)
            self._say(word)

    def _say(self, word: str) -> None:
        if not self._address:
            return
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
            sender.setblocking(False)
            try:
                sender.sendto(word.encode(), self._address)
            except OSError:
                return  # it will notice that it hears nothing


def _watchdog_s() -> float:
    """How long systemd waits for a sign of life of this process; 0 = it does not."""
    if os.environ.pop("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return 0
    text = os.environ.pop("WATCHDOG_USEC", "")
    return int(text) / 1e6 if text.isdigit() else 0
