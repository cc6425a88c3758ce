"""Kill, stop and restart the processes of a daemon at random."""

from __future__ import annotations

import os
import re
import signal
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

from support.chaos_sites import FaultKind, WeightedFault

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Mapping

    from support.daemon import Daemon

__all__ = ["DaemonFaults", "Lives"]


class Lives(Protocol):
    """The record of the daemon's lives."""

    sockets_lost: int
    """Number of times that all processes with a listening socket died."""

    def record_life(self, received: int, discarded: Mapping[str, int]) -> None:
        """Add the books of a life that ended with its slab."""
        ...


class DaemonFaults:
    """The faults of a daemon; each describes itself through `record`."""

    def __init__(self, daemon: Daemon, rng: random.Random, record: Callable[[str], None], lives: Lives) -> None:
        self._daemon = daemon
        self._rng = rng
        self._record = record
        self._lives = lives

    def faults(self) -> list[WeightedFault]:
        return [
            WeightedFault(FaultKind.PROCESS, 30, self._kill_one),
            WeightedFault(FaultKind.PROCESS, 8, self._suspend_one),
            WeightedFault(FaultKind.PROCESS, 4, lambda: self._kill("the supervisor", self._daemon.kill_supervisor)),
            WeightedFault(FaultKind.PROCESS, 6, lambda: self._kill("everything", self._daemon.kill_all)),
            WeightedFault(FaultKind.RESTART, 4, self._restart),
        ]

    def _victim(self) -> tuple[str, int] | None:
        alive = sorted(self._daemon.pids().items())
        return self._rng.choice(alive) if alive else None

    def _kill_one(self) -> None:
        if victim := self._victim():
            self._record(f"kill {victim[0]}")
            with suppress(ProcessLookupError):
                os.kill(victim[1], signal.SIGKILL)

    def _suspend_one(self) -> None:
        if victim := self._victim():
            self._record(f"suspend {victim[0]}")
            with suppress(ProcessLookupError):
                os.kill(victim[1], signal.SIGSTOP)
                time.sleep(self._rng.uniform(0.1, 1.5))
                os.kill(victim[1], signal.SIGCONT)

    def _kill(self, what: str, kill: Callable[[], object]) -> None:
        self._record(f"kill {what}")
        self._lives.sockets_lost += 1
        kill()
        self._daemon.start()

    def _restart(self) -> None:
        """Restart the daemon; a clean shutdown also receives the datagrams of the kernel's queue.

        A daemon that delivered everything removes the slab, and the counters with it.
        """
        self._record("restart the daemon")
        assert self._daemon.terminate() == 0
        if not self._daemon.slab_path.exists():
            self._lives.record_life(*_last_books(self._daemon.log()))
        self._daemon.start()


def _last_books(log: str) -> tuple[int, dict[str, int]]:
    """Return the received and the discarded messages of a daemon that has ended, from its log."""
    received, reasons = re.findall(r"received (\d+) = delivered \d+ \+ discarded \d+(?: \(([^)]*)\))?", log)[-1]
    return int(received), {name: int(count) for name, count in (part.split() for part in reasons.split(", ") if part)}
