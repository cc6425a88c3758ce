"""Take all brokers down and up again: messages received during the outage are delivered once and in order.

    PYTHONPATH=tests python -m chaos.outage --minutes 60 --rate 5 --kills 2
    PYTHONPATH=tests python -m chaos.outage --minutes 1 --rate 0 --when-full block

The brokers are the embedded ones; the daemon has its installed settings. Two sender processes send messages of mixed
sizes and both kinds over many topics. The books must balance at every check. After the brokers' return the senders stop
and everything is delivered. Then a second load must pass undisturbed. At the end the test reads all messages back:

* every received message is there once, unchanged and in order, except those discarded because the slab was full;
* the missing messages match the discard report by topic;
* no message received before the first discard is missing: the newest are discarded, never held ones;
* with blocking senders, no message is discarded.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import psutil

from bruce_mp.devbroker.control import DevBroker
from support import processes
from support.daemon import UNHURRIED_PAUSES, Daemon
from support.endless_senders import UNLIMITED, EndlessSenders
from support.read_back import read_back
from support.traffic import Account, Load, compare

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from bruce_mp.telemetry.books import Books

__all__ = ["Outage", "Report", "run_outage"]

BROKERS: Final = 3
PARTITIONS: Final = 3
CHECK_S: Final = 1.0
PROGRESS_S: Final = 60.0
SETTLE_S: Final = 300.0
SECOND_LOAD_RATE: Final = 100.0
"""Messages per second of each sender after the outage."""
SECOND_LOAD_MESSAGES: Final = 300
"""Lowest number of messages after the outage."""
BROKER_MEMORY: Final = 4 << 30
PERIOD_S: Final = 86_400
"""Period of the discard report: longer than any outage here, so one report has all discards."""


@dataclass(frozen=True, slots=True)
class Outage:
    """The parameters of an outage.

    `rate` is messages per second of each sender, 0 for no limit; `kills` counts the SIGKILLs to the whole daemon.
    """

    seconds: float
    rate: float
    kills: int = 0
    when_full: str = "discard"
    slab: str = "64m"
    topics: int = 20
    senders: int = 2
    largest: int = 3000
    keyed: int = 50
    seed: int = 1

    @property
    def load(self) -> Load:
        """Return the load; the sender with the number `senders` sends after the outage."""
        topics = tuple(f"outage-{number}" for number in range(self.topics))
        return Load(topics, self.senders + 1, UNLIMITED, largest=self.largest, keyed=self.keyed, seed=self.seed)

    @property
    def settings(self) -> dict[str, object]:
        return {
            **UNHURRIED_PAUSES,
            "slab.size": self.slab,
            "input.unix_datagram.when_full": self.when_full,
            "http.discard_report_interval_s": PERIOD_S,
            "delivery.shutdown_max_delay_ms": 5000,
        }


@dataclass(slots=True)
class Report:
    """The result; times are seconds since the brokers' return."""

    outage: Outage
    sent: dict[int, int]
    received: int = 0
    discarded: int = 0
    lost_with_socket: int = 0
    held_at_return: int = 0
    checks: int = 0
    first_delivery_s: float = 0.0
    caught_up_s: float = 0.0
    """Time until the messages held at the return were delivered while the senders continued."""
    outage_cpu_s: float = 0.0
    """CPU time of the daemon's processes during the outage, without killed ones."""


class OutageRun:
    """One outage from start to end."""

    def __init__(self, outage: Outage, daemon: Daemon, broker: DevBroker) -> None:
        self.report = Report(outage, {})
        self._outage = outage
        self._daemon = daemon
        self._broker = broker
        self._received_in_full = 0
        """Number of received messages at the last check without a discard."""
        self._received_before_kill: int | None = None
        """The same at the last check before the first SIGKILL, with which the kernel's queue is lost."""
        self._discarded_by_topic: dict[str, int] = {}

    def run(self) -> Report:
        """Run the outage and compare the results."""
        outage = self._outage
        self._daemon.wait_for(self._all_connected, "the dispatchers", 60)
        with EndlessSenders(self._daemon, outage.load, outage.rate, range(outage.senders)) as senders:
            self._daemon.wait_received(1)
            for node in range(1, BROKERS + 1):
                self._broker.broker_down(node)
            self._run_outage()
            self._restart_brokers()
            senders.stop()
        self._settle(sum(senders.sent.values()))
        self._record_discards()
        self._send_second_load()
        self.report.sent |= senders.sent
        substitutes = dict.fromkeys(outage.load.topics, (PARTITIONS,))
        records = read_back(self._broker, outage.load.topics)
        self._check(compare(outage.load, self.report.sent, records, substitutes))
        return self.report

    def _all_connected(self) -> bool:
        return sum(name.startswith("dispatcher") for name in self._daemon.pids()) == BROKERS

    # --- the outage --------------------------------------------------------------------------------------------------

    def _run_outage(self) -> None:
        outage = self._outage
        began = time.monotonic()
        kills = [began + outage.seconds * (number + 1) / (outage.kills + 1) for number in range(outage.kills)]
        print_at = began
        while (now := time.monotonic()) < began + outage.seconds:
            books = self._check_books()
            if kills and now >= kills[0]:
                kills.pop(0)
                self._kill()
            if now >= print_at:
                print_at += PROGRESS_S
                _print_progress(f"{now - began:6.0f} s: {books}")
            time.sleep(min(CHECK_S, max(0.0, began + outage.seconds - time.monotonic())))
        self.report.outage_cpu_s += self._cpu_s()

    def _check_books(self) -> Books:
        books = self._daemon.books_while_stopped()
        assert books.balanced, books
        if not books.discarded:
            self._received_in_full = books.received
        self.report.checks += 1
        return books

    def _kill(self) -> None:
        _print_progress("kill -9 of the whole daemon")
        self.report.outage_cpu_s += self._cpu_s()
        if self._received_before_kill is None:
            self._received_before_kill = self._received_in_full
        self._daemon.kill_all()
        self._daemon.start()

    def _cpu_s(self) -> float:
        pids = (self._daemon.pid, *self._daemon.pids().values())
        times = [psutil.Process(pid).cpu_times() for pid in pids]
        return sum(time.user + time.system for time in times)

    # --- the return --------------------------------------------------------------------------------------------------

    def _restart_brokers(self) -> None:
        books = self._check_books()
        self.report.held_at_return = sum(books.held.values())
        _print_progress(f"the brokers come back: {books}")
        began = time.monotonic()
        for node in range(1, BROKERS + 1):
            self._broker.broker_up(node)
        self._daemon.wait_for(lambda: self._daemon.books().delivered > books.delivered, "a delivery", SETTLE_S)
        self.report.first_delivery_s = time.monotonic() - began
        goal = books.delivered + self.report.held_at_return
        self._daemon.wait_for(
            lambda: self._daemon.books().delivered >= goal, "the delivery of the held messages", SETTLE_S
        )
        self.report.caught_up_s = time.monotonic() - began

    def _settle(self, sent: int) -> None:
        """Wait until no message is held; messages that died with a socket were never received."""
        self._daemon.wait_for(self._is_settled, f"{sent} messages to be settled", SETTLE_S)

    def _is_settled(self) -> bool:
        books = self._daemon.books()
        assert books.balanced or not books.consistent, books
        return books.consistent and not sum(books.held.values())

    def _record_discards(self) -> None:
        self.report.discarded = sum(self._daemon.books().discarded.values())
        if not self._outage.kills:  # a report ends with its daemon
            self._daemon.wait_for(self._is_reported, "the discard report", 30)

    def _is_reported(self) -> bool:
        topics: list[dict[str, Any]] = self._daemon.get("/discards/json")["unfinished_report"]["discard_topic"]
        assert all(item["reasons"].keys() <= {"NO_MEM", "TOPIC_OVER_SHARE"} for item in topics), topics
        self._discarded_by_topic = {item["topic"]: item["count"] for item in topics}
        return sum(self._discarded_by_topic.values()) == self.report.discarded

    def _send_second_load(self) -> None:
        outage, daemon = self._outage, self._daemon
        before = daemon.books()
        with EndlessSenders(daemon, outage.load, SECOND_LOAD_RATE, [outage.senders]) as senders:
            goal = before.received + SECOND_LOAD_MESSAGES
            daemon.wait_for(lambda: daemon.books().received >= goal, "the second load", SETTLE_S)
            senders.stop()
        self._settle(sum(senders.sent.values()))
        assert daemon.books().discarded == before.discarded, daemon.books()
        self.report.sent |= senders.sent

    # --- the comparison ----------------------------------------------------------------------------------------------

    def _check(self, account: Account) -> None:
        books, report = self._daemon.wait_consistent(), self.report
        report.received = books.received
        report.lost_with_socket = len(account.missing) - report.discarded
        assert books.balanced, books
        assert not account.repeated, account.repeated
        assert account.read == books.delivered == books.received - report.discarded, (account.read, books)
        first_missing = [account.first_missing(sender, count) for sender, count in report.sent.items()]
        received = self._received_before_kill
        if received is None or not report.lost_with_socket:
            received = self._received_in_full
        assert sum(first_missing) >= received, (first_missing, received)
        if not self._outage.kills:  # after a kill, messages of the kernel's queue may be missing too
            assert dict(account.missing_by_topic) == self._discarded_by_topic
        if self._outage.when_full == "block":
            assert not report.discarded, books


@contextmanager
def _prepared(outage: Outage, directory: Path) -> Iterator[OutageRun]:
    topics = dict.fromkeys(outage.load.topics, PARTITIONS)
    with (
        DevBroker(brokers=BROKERS, topics=topics, max_bytes=BROKER_MEMORY) as broker,
        Daemon(directory, broker.bootstrap, outage.settings) as daemon,
    ):
        yield OutageRun(outage, daemon, broker)


def run_outage(outage: Outage, directory: Path) -> Report:
    """Run an outage. AssertionError names the violated promise."""
    with _prepared(outage, directory) as run:
        return run.run()


def _print_progress(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def _parse(arguments: Sequence[str]) -> Outage:
    options = argparse.ArgumentParser(prog="python -m chaos.outage", description="All brokers are gone for a time.")
    add = options.add_argument
    add("--minutes", type=float, default=60, help="duration of the outage (60)")
    add("--rate", type=float, default=5, help="messages a second of each sender, 0: as fast as it can (5)")
    add("--kills", type=int, default=0, help="number of SIGKILLs to the whole daemon during the outage (0)")
    add("--when-full", choices=("discard", "block"), default="discard", help="the input's setting when_full (discard)")
    add("--slab", default="64m", help="size of the slab (64m)")
    add("--seed", type=int, default=1, help="seed of the random messages (1)")
    given = options.parse_args(arguments)
    plan = Outage(given.minutes * 60, given.rate, given.kills, given.when_full, given.slab)
    return replace(plan, seed=given.seed)


def main(arguments: Sequence[str]) -> int:
    """Run the command and return the exit code."""
    outage = _parse(arguments)
    processes.become_subreaper()
    with tempfile.TemporaryDirectory(prefix="bruce-outage-") as directory:
        report = run_outage(outage, Path(directory))
    print(msgspec.json.format(msgspec.json.encode(report), indent=1).decode())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
