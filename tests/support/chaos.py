"""The chaos driver: a seeded sequence of faults against a running daemon and its brokers.

Senders send during the whole run. The faults hit the brokers (see `chaos_sites`) and our processes (killed, stopped,
the supervisor killed, all killed together, restarted) at any moment. After each fault the driver stops our processes,
reads the books, and requires their balance. At the end it reads all messages back and compares.

Some losses are allowed. Datagrams in the kernel's queue vanish with the socket when the last process that holds it
dies. So at most a full queue may be missing for each kill of all processes. A power cut loses the last messages and may
repeat those in the journal (see `power_cuts`). A discarded message is missing, unless its discard is in doubt.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from bruce_mp.errors import DiscardReason
from support.attackers import Attackers, Tally
from support.chaos_sites import FaultKind, WeightedFault
from support.daemon_faults import DaemonFaults
from support.endless_senders import EndlessSenders, Flusher
from support.power_cuts import PowerCuts

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from bruce_mp.client.flush import LevelName
    from support.chaos_sites import Site
    from support.daemon import Daemon
    from support.endless_senders import Interval
    from support.power_cuts import PowerCut
    from support.traffic import Account, Load, Name

__all__ = ["AT_LEAST_ONCE", "EXACTLY_ONCE", "NO_GUARANTEES", "Chaos", "Guarantees", "Outcome", "check", "settings_for"]

MAX_QUEUED: Final = int(Path("/proc/sys/net/unix/max_dgram_qlen").read_text()) + 1
"""Most datagrams in the kernel's queue."""
SETTLE_S: Final = 120.0
STUCK_RATE: Final = 400.0
SETTINGS: Final[Mapping[FaultKind, Mapping[str, object]]] = {
    FaultKind.STUCK: {"slab.size": "8m"},
    FaultKind.POWER: {"slab.sync": "interval", "slab.sync_interval_ms": 200},
}
"""Settings that faults of a kind need."""
UNFINISHED: Final = DiscardReason.UNCLEAN_DISCONNECT.name
"""Discards of unfinished messages, which no sender counts as sent."""
IN_DOUBT: Final = DiscardReason.POSSIBLY_DELIVERED.name
REASONS: Final[Mapping[FaultKind, frozenset[str]]] = {
    FaultKind.STUCK: frozenset({DiscardReason.TOPIC_OVER_SHARE.name}),
    FaultKind.RESTART: frozenset({DiscardReason.NO_MEM.name}),  # a shutdown reads the queue, though the slab is full
}
LIMIT_REASONS: Final = frozenset({DiscardReason.DELIVERY_ATTEMPT_LIMIT.name, IN_DOUBT})


def settings_for(directory: Path, fault_kinds: Collection[FaultKind]) -> dict[str, object]:
    """Return the settings that a run with these kinds of faults needs."""
    settings: dict[str, object] = {
        "input.unix_stream.enable": "true",
        "input.unix_stream.path": directory / "in.stream",
        "discard_log.enable": "true",
        "discard_log.path": directory / "discards" / "file",
    }
    for kind in fault_kinds:
        settings |= SETTINGS.get(kind, {})
    return settings


def stuck_load(load: Load, topic: str) -> Load:
    """Return the load of the sender to the stuck topic; its number is that after the flusher's."""
    return replace(load, topics=(topic,), smallest=2000, largest=8000, keyed=0)


class Guarantees(NamedTuple):
    """The faults that a set-up allows: acknowledged messages may be lost, repeated or reordered."""

    may_lose: bool = False
    may_repeat: bool = False
    may_reorder: bool = False


EXACTLY_ONCE: Final = Guarantees()
AT_LEAST_ONCE: Final = Guarantees(may_repeat=True)
NO_GUARANTEES: Final = Guarantees(may_lose=True, may_repeat=True, may_reorder=True)
"""Without acks, a broker may still read the connection of a killed dispatcher while its successor writes on another."""


@dataclass(slots=True)
class Outcome:
    """The result of a run; `sent` has each sender's number of messages that the kernel accepted."""

    sent: dict[int, int] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    checks: int = 0
    """Number of checks at which the books balanced."""
    sockets_lost: int = 0
    """Number of times that the kernel's queue was lost with the datagram socket, because all processes were killed."""
    received: int = 0
    """Received messages in all lives of the daemon together."""
    possible_duplicates: int = 0
    """The daemon's count, without lives that ended with a removed slab."""
    possible_by_topic: dict[str, int] = field(default_factory=dict)
    """The counts of the discard report; not used with killed processes, which may take some counts along."""
    discarded: Counter[str] = field(default_factory=Counter)
    """Discarded messages by reason, in all lives."""
    in_doubt: dict[int, list[Interval]] = field(default_factory=dict)
    """The messages that the flushers sent, but that no successful flush followed."""
    cuts: list[PowerCut] = field(default_factory=list)
    attacks: Tally | None = None
    discarded_names: set[Name] = field(default_factory=set)
    """Messages of the discard file with a reason that excludes a delivery."""

    @property
    def restored(self) -> Counter[Name]:
        """Return how often the power cuts restored each message."""
        return sum((cut.restored for cut in self.cuts), Counter())

    def may_be_missing(self, name: Name) -> bool:
        """Return True for a message that was sent just before a power cut, or is in doubt."""
        recent = [cut.recent[name.sender] for cut in self.cuts if name.sender not in self.in_doubt]
        return any(start <= name.number < stop for start, stop in (*recent, *self.in_doubt.get(name.sender, ())))

    def record_life(self, received: int, discarded: Mapping[str, int]) -> None:
        """Add the books of a life that ended with its slab."""
        self.received += received
        self.discarded.update(discarded)


class Chaos:
    """One run with `seed`: faults of these kinds, and senders with `rate` messages per second each.

    A flusher sends to the stream of `settings_for`. It gets the number after those of the load's senders. The sender to
    the stuck topic gets the next one, and rests while the topic is not refused.
    """

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
        level: LevelName = "durable" if FaultKind.POWER in fault_kinds else "received"
        flusher = Flusher(daemon.stream_path, level)
        stuck_numbers = [load.senders + 1] if FaultKind.STUCK in fault_kinds else []
        self._stuck = EndlessSenders(daemon, stuck_load(load, site.stuck_topic), STUCK_RATE, stuck_numbers)
        self._senders = (
            EndlessSenders(daemon, load, rate),
            EndlessSenders(daemon, load, rate, [load.senders], flusher),
            self._stuck,
        )
        self._rng = random.Random(seed)
        self._power = PowerCuts(daemon, self._rng, self._progress)
        self._fault_kinds = fault_kinds
        self._outcome = Outcome()
        daemon_faults = DaemonFaults(daemon, self._rng, self._record, self._outcome)
        power = WeightedFault(FaultKind.POWER, 5, self._cut_power)
        faults = [*daemon_faults.faults(), power, *site.faults(self._rng, self._record)]
        self._faults = [fault for fault in faults if fault.kind in fault_kinds]

    def run(self, seconds: float) -> Outcome:
        """Send and inject faults for `seconds`, then repair everything and wait for the delivery of all messages."""
        with ExitStack() as stack:
            for senders in self._senders:
                stack.enter_context(senders)
            if FaultKind.ATTACK in self._fault_kinds:
                attackers = stack.enter_context(Attackers(self._daemon))
                self._outcome.attacks = attackers.tally
            self._inject_faults_for(seconds)
            self._stop_senders()
        self._site.heal()
        self._settle()
        return self._outcome

    def _progress(self) -> dict[int, int]:
        return {number: sent for senders in self._senders for number, sent in senders.progress().items()}

    def _stop_senders(self) -> None:
        for senders in self._senders:
            senders.stop()
            self._outcome.sent |= senders.sent
            self._outcome.in_doubt |= senders.in_doubt

    def _inject_faults_for(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            time.sleep(self._rng.uniform(0.2, 1.5))
            self._site.repair_if_due()
            self._stuck.suspend(is_suspended=not self._site.is_refusing)
            self._rng.choices(self._faults, [fault.weight for fault in self._faults])[0].inject()
            self._check_books()

    def _check_books(self) -> None:
        books = self._daemon.books_while_stopped()
        assert books.balanced, books
        self._outcome.checks += 1

    def _settle(self) -> None:
        daemon, outcome = self._daemon, self._outcome
        daemon.wait_for(daemon.is_settled, "everything to be delivered", SETTLE_S)
        books = daemon.books()
        assert books.balanced, books
        outcome.record_life(books.received, books.discarded)
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

    def _record(self, text: str) -> None:
        self._outcome.faults.append(f"{time.strftime('%H:%M:%S', time.gmtime())} {text}")

    def _cut_power(self) -> None:
        """Cut the power; the next life counts the restored messages as received."""
        outcome = self._outcome
        outcome.sockets_lost += 1
        cut = self._power.cut()
        self._record(f"cut the power, {cut.harm} the slab, restore {cut.restored.total()}")
        outcome.cuts.append(cut)
        outcome.record_life(cut.books.received - cut.restored.total(), cut.books.discarded)


def check(guarantees: Guarantees, outcome: Outcome, account: Account) -> None:
    """Check the received messages against the sent ones and the books."""
    missing = sorted(name for name in account.missing if not outcome.may_be_missing(name))
    discarded, in_doubt = outcome.discarded.total(), outcome.discarded[IN_DOUBT]
    most_read = outcome.received - discarded + in_doubt
    if not guarantees.may_lose:
        allowed = outcome.sockets_lost * MAX_QUEUED + discarded - outcome.discarded[UNFINISHED]
        assert len(missing) <= allowed, f"{len(missing)} are missing: {missing[:20]}"
        least_read = outcome.received - discarded - (len(account.missing) - len(missing))
        assert account.read >= least_read, f"{outcome.received} received, {account.read} read; {missing[:20]}"
    in_kafka = outcome.discarded_names - account.missing.keys() - outcome.restored.keys()
    assert not in_kafka, f"discarded, but in Kafka: {sorted(in_kafka)[:20]}"
    assert account.read <= most_read, f"{account.read} read of {outcome.received} received"
    allowed = outcome.possible_duplicates if guarantees.may_repeat else 0
    repeated = account.repeated_names - outcome.restored
    assert repeated.total() <= allowed, f"{repeated} were repeated; counted as possible: {allowed}"
