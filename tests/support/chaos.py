"""The chaos driver: a seeded sequence of faults against a running daemon and its brokers.

Senders send during the whole run. The faults hit the brokers (see `chaos_sites`) and our processes (killed, stopped,
the supervisor killed, all killed together, restarted) at any moment. After each fault the driver stops our processes,
reads the books, and requires their balance. At the end it reads all messages back and compares.

One loss is beyond the daemon: datagrams in the kernel's queue vanish with the socket when the last process that holds
it dies. So at most a full queue may be missing for each kill of all processes.
"""

from __future__ import annotations

import os
import random
import re
import signal
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from support.chaos_sites import FaultKind, WeightedFault
from support.endless_senders import EndlessSenders

if TYPE_CHECKING:
    from collections.abc import Collection

    from support.accounts import Account
    from support.chaos_sites import Site
    from support.daemon import Daemon
    from support.traffic import Load

__all__ = ["AT_LEAST_ONCE", "EXACTLY_ONCE", "NO_GUARANTEES", "Chaos", "Law", "Outcome", "check"]

QUEUE: Final = int(Path("/proc/sys/net/unix/max_dgram_qlen").read_text()) + 1
"""Most datagrams in the kernel's queue."""
SETTLE_S: Final = 120.0


class Law(NamedTuple):
    """The promises of a set-up: acknowledged messages may be lost, repeated or reordered, or not."""

    may_lose: bool = False
    may_repeat: bool = False
    may_reorder: bool = False


EXACTLY_ONCE: Final = Law()
AT_LEAST_ONCE: Final = Law(may_repeat=True)
NO_GUARANTEES: Final = Law(may_lose=True, may_repeat=True, may_reorder=True)
"""Without acks, a broker may still read the connection of a killed dispatcher while its successor writes on another."""


@dataclass(slots=True)
class Outcome:
    """The result of a run; `sent` has each sender's number of messages that the kernel accepted."""

    sent: dict[int, int] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    checks: int = 0
    """Number of checks at which the books balanced."""
    sockets_lost: int = 0
    received: int = 0
    """Received messages in all lives of the daemon together."""
    possible_duplicates: int = 0
    """The daemon's count, without lives that ended with a removed slab."""
    possible_by_topic: dict[str, int] = field(default_factory=dict)
    """The counts of the discard report; not used with killed processes, which may take some counts along."""


class Chaos:
    """One run with `seed`: faults of these kinds, and senders with `rate` messages per second each."""

    def __init__(
        self,
        daemon: Daemon,
        site: Site,
        load: Load,
        *,
        rate: float,
        seed: int,
        fault_kinds: Collection[FaultKind] = tuple(FaultKind),
    ) -> None:
        self._daemon = daemon
        self._site = site
        self._senders = EndlessSenders(daemon, load, rate)
        self._rng = random.Random(seed)
        self._fault_kinds = fault_kinds
        faults = [*self._process_faults(), *site.faults(self._rng, self._record)]
        self._faults = [fault for fault in faults if fault.kind in fault_kinds]
        self._outcome = Outcome()

    def run(self, seconds: float) -> Outcome:
        """Send and inject faults for `seconds`, then repair everything and wait for the delivery of all messages."""
        with self._senders:
            self._inject_faults_for(seconds)
            self._senders.stop()
        self._outcome.sent = self._senders.sent
        self._site.heal()
        self._settle()
        return self._outcome

    def _inject_faults_for(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            time.sleep(self._rng.uniform(0.2, 1.5))
            self._site.repair_if_due()
            self._inject_fault()
            self._check_books()

    def _check_books(self) -> None:
        books = self._daemon.still_books()
        assert books.balanced, books
        self._outcome.checks += 1

    def _settle(self) -> None:
        daemon, outcome = self._daemon, self._outcome
        daemon.wait_for(lambda: _is_settled(daemon), "everything to be delivered", SETTLE_S)
        books = daemon.books()
        assert books.balanced, books
        assert not books.discarded, books
        outcome.received += books.received
        outcome.possible_duplicates = books.possible_duplicates
        if FaultKind.PROCESS not in self._fault_kinds:
            daemon.wait_for(self._is_all_reported, "the report of possible duplicates", 20)
            outcome.possible_by_topic = self._possible_by_topic()

    def _is_all_reported(self) -> bool:
        return sum(self._possible_by_topic().values()) == self._outcome.possible_duplicates

    def _possible_by_topic(self) -> dict[str, int]:
        report: dict[str, Any] = self._daemon.get("/discards/json")["unfinished_report"]
        return {item["topic"]: item["count"] for item in report["possible_duplicate_topic"]}

    # --- faults ------------------------------------------------------------------------------------------------------

    def _process_faults(self) -> list[WeightedFault]:
        return [
            WeightedFault(FaultKind.PROCESS, 30, self._kill_one),
            WeightedFault(FaultKind.PROCESS, 8, self._freeze_one),
            WeightedFault(FaultKind.PROCESS, 4, self._kill_supervisor),
            WeightedFault(FaultKind.PROCESS, 6, self._kill_everything),
            WeightedFault(FaultKind.RESTART, 4, self._restart_daemon),
        ]

    def _inject_fault(self) -> None:
        self._rng.choices(self._faults, [fault.weight for fault in self._faults])[0].do()

    def _record(self, text: str) -> None:
        self._outcome.faults.append(f"{time.strftime('%H:%M:%S', time.gmtime())} {text}")

    def _victim(self) -> tuple[str, int] | None:
        alive = sorted(self._daemon.pids().items())
        return self._rng.choice(alive) if alive else None

    def _kill_one(self) -> None:
        if victim := self._victim():
            self._record(f"kill {victim[0]}")
            with suppress(ProcessLookupError):
                os.kill(victim[1], signal.SIGKILL)

    def _freeze_one(self) -> None:
        if victim := self._victim():
            self._record(f"freeze {victim[0]}")
            with suppress(ProcessLookupError):
                os.kill(victim[1], signal.SIGSTOP)
                time.sleep(self._rng.uniform(0.1, 1.5))
                os.kill(victim[1], signal.SIGCONT)

    def _kill_supervisor(self) -> None:
        self._record("kill the supervisor")
        self._outcome.sockets_lost += 1
        self._daemon.kill_supervisor()
        self._daemon.start()

    def _kill_everything(self) -> None:
        self._record("kill everything")
        self._outcome.sockets_lost += 1
        self._daemon.kill_all()
        self._daemon.start()

    def _restart_daemon(self) -> None:
        """Restart the daemon; a clean shutdown also receives the datagrams of the kernel's queue.

        A daemon that delivered everything removes the slab, and the counters with it.
        """
        self._record("restart the daemon")
        assert self._daemon.terminate() == 0
        if not self._daemon.slab_path.exists():
            self._outcome.received += self._received_last()
        self._daemon.start()

    def _received_last(self) -> int:
        """Return the daemon's number of received messages at its end, from its log."""
        return int(re.findall(r"received (\d+)", self._daemon.log())[-1])


def _is_settled(daemon: Daemon) -> bool:
    books = daemon.books()
    return books.consistent and not sum(books.held.values())


def check(law: Law, outcome: Outcome, account: Account) -> None:
    """Check the received messages against the sent ones and the books."""
    missing = sorted(account.missing)
    if not law.may_lose:
        assert len(missing) <= outcome.sockets_lost * QUEUE, f"{len(missing)} are missing: {missing[:20]}"
        assert account.read == outcome.received, f"{outcome.received} received, {account.read} read; {missing[:20]}"
    assert account.read <= outcome.received, f"{account.read} read of {outcome.received} received"
    allowed = outcome.possible_duplicates if law.may_repeat else 0
    assert account.repeated.total() <= allowed, f"{account.repeated} were repeated; counted as possible: {allowed}"
