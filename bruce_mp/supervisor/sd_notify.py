"""Notifications to the service manager: ready, alive, reloading, stopping.

systemd passes its socket and the watchdog interval in environment variables; without them nothing is sent.
https://www.freedesktop.org/software/systemd/man/sd_notify.html
"""

from __future__ import annotations

import os
import socket
import time
from typing import Final

__all__ = ["ServiceManager"]

_VARIABLES: Final = ("NOTIFY_SOCKET", "WATCHDOG_PID", "WATCHDOG_USEC")
_MARGIN: Final = 3
"""Notifications per watchdog interval."""


class ServiceManager:
    """The service manager of this process, if there is one. Times are in seconds of a monotonic clock.

    `variables` are the environment variables that new code needs after an upgrade.
    """

    def __init__(self) -> None:
        self.variables = {name: os.environ[name] for name in _VARIABLES if name in os.environ}
        address = os.environ.pop("NOTIFY_SOCKET", "")  # popped, so that no process of the daemon notifies in its place
        self._address = f"\0{address[1:]}" if address.startswith("@") else address
        self._said: set[str] = set()
        self._every = _watchdog_s() / _MARGIN
        self._due = 0.0

    def ready(self) -> None:
        """Notify once that the daemon is ready; again after `reloading`."""
        self._say_once("READY=1")

    def reloading(self) -> None:
        """Notify that new code or a new configuration takes over.

        `ready` follows: from the new code, or from this one if the change fails.
        """
        if "READY=1" in self._said:
            self._said.remove("READY=1")
            self._say(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def stopping(self) -> None:
        """Notify once that the daemon ends."""
        self._say_once("STOPPING=1")

    def alive(self, now: float) -> None:
        """Notify the watchdog when its interval requires it."""
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
                return  # its watchdog will expire


def _watchdog_s() -> float:
    """Return the watchdog timeout of systemd in seconds, 0 if it is disabled."""
    if os.environ.pop("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return 0
    text = os.environ.pop("WATCHDOG_USEC", "")
    return int(text) / 1e6 if text.isdigit() else 0
