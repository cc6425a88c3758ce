"""All processes of the daemon together: who there is, who is to be told what, who is started again.

Input, router and status are always there.  Dispatchers come and go as the router says; a dispatcher is its *slot*, and
a slot whose broker has another address gets a new process.

When a process died, its transaction is finished first (its row says how far it was), then it is started again, then
the router hears of it, who looks what it left in the slab.  The router itself looks when it starts.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, NamedTuple

from bruce_mp.pipes.control import Control, Dispatchers, PeerDied, Ready, RefreshMetadata
from bruce_mp.pipes.start import Start
from bruce_mp.slab import layout as lay
from bruce_mp.slab.rows import Row
from bruce_mp.supervisor.children import Child
from bruce_mp.supervisor.lifecycle import State
from bruce_mp.supervisor.policy import BOOTS_MAX
from bruce_mp.telemetry.counters import Counter
from bruce_mp.telemetry.logs import NOTICE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path
    from socket import socket

    from bruce_mp.config.model import Config
    from bruce_mp.pipes.control import Broker, Word
    from bruce_mp.slab.file import Slab
    from bruce_mp.supervisor.child import Inherited
    from bruce_mp.supervisor.programs import Programs

__all__ = ["Crew", "Equipment"]

log = logging.getLogger(__name__)


class Equipment(NamedTuple):
    """What the supervisor got hold of before it starts a process."""

    config: Config
    run_dir: Path
    slab: Slab
    locks: Sequence[Inherited]
    datagrams: socket
    http: socket


class Crew:
    """The processes.  `failure` says why the daemon cannot go on, once it cannot."""

    def __init__(self, programs: Programs, equipment: Equipment, row: Row, now: float) -> None:
        self._programs = programs
        self._equipment = equipment
        self._row = row
        self._to_introduce: list[Child] = []
        self._draining = False
        self._all_were_ready = False
        self.failure: str | None = None
        router = Child(programs.router, self._start("router", lay.ROW_ROUTER), equipment.locks, now)
        status = Child(
            programs.status, self._start("status", lay.ROW_STATUS, equipment.http), equipment.locks, now
        )
        taker = self._start("input", lay.ROW_FIRST_INPUT, equipment.datagrams)
        self.input = Child(programs.input, taker, equipment.locks, now, ends_when_drained=True)
        self.router = router
        self._fixed = (self.input, router, status)
        self._dispatchers: dict[int, Child] = {}

    def _start(
        self, name: str, row: int, listener: socket | None = None, slot: int = 0, broker: Broker | None = None
    ) -> Start:
        equipment = self._equipment
        return Start(name, row, equipment.config, equipment.run_dir, equipment.slab.path, listener, slot, broker)

    def __iter__(self) -> Iterable[Child]:
        ...
