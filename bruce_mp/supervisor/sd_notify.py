"""Notifications to the service manager by the protocol of sd_notify: ready, alive, reloading, stopping.

systemd passes the path of its socket and the watchdog interval in environment variables. Without these variables, all
methods do nothing.
https://www.freedesktop.org/software/systemd/man/sd_notify.html
"""

from __future__ import annotations

import os
import socket
import time
from typing import Final

__all__ = ["ServiceManager"]

_VARIABLES: Final = ("NOTIFY_SOCKET", "WATCHDOG_PID", "WATCHDOG_USEC")
_NOTIFICATIONS_PER_INTERVAL: Final = 3
"""Number of notifications that the daemon is alive in one watchdog interval: one more than systemd recommends."""


class ServiceManager:
    """The service manager, if the environment has the path of its socket.

    `variables` are the environment variables from which the new code of an upgrade finds the service manager.
    """

    def __init__(self) -> None:
        self.variables = {name: os.environ[name] for name in _VARIABLES if name in os.environ}
        address = os.environ.pop("NOTIFY_SOCKET", "")  # popped, so that no child process can notify
        self._address = f"\0{address[1:]}" if address.startswith("@") else address
        self._sent: set[str] = set()
        self._alive_interval_s = _watchdog_timeout_s() / _NOTIFICATIONS_PER_INTERVAL
        self._alive_due = 0.0

    def notify_ready(self) -> None:
        """Notify that the daemon is ready. Repeated calls do nothing until the next call of `notify_reloading`.

        They repeat a notification that the service manager's socket has refused.
        """
        self._notify_once("READY=1")

    def notify_reloading(self) -> None:
        """Notify that an upgrade or reload begins, unless the daemon is not ready.

        `notify_ready` must follow, from this code or from the new code of the upgrade.
        """
        reloading = f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}"
        if "READY=1" in self._sent and self._notify(reloading):
            self._sent.remove("READY=1")

    def notify_stopping(self) -> None:
        """Notify that the daemon shuts down, at the first call only."""
        self._notify_once("STOPPING=1")

    def notify_alive(self, now: float) -> None:
        """Notify the watchdog that the daemon is alive, if the interval since the last such notification has passed.

        `now` is in seconds of the monotonic clock.
        """
        if self._alive_interval_s and now >= self._alive_due:
            self._alive_due = now + self._alive_interval_s
            self._notify("WATCHDOG=1")

    def _notify_once(self, message: str) -> None:
        if message not in self._sent and self._notify(message):
            self._sent.add(message)

    def _notify(self, message: str) -> bool:
        """Send a message. Return False if the service manager's socket refuses it, for example because it is full."""
        if not self._address:
            return True
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
            sender.setblocking(False)
            try:
                sender.sendto(message.encode(), self._address)
            except OSError:
                return False
        return True


def _watchdog_timeout_s() -> float:
    """Return the timeout of systemd's watchdog in seconds, 0 if systemd does not watch this process."""
    if os.environ.pop("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return 0
    text = os.environ.pop("WATCHDOG_USEC", "")
    return int(text) / 1e6 if text.isdigit() else 0
