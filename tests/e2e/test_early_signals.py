"""Signals during the start of a daemon: the daemon obeys them after the start and does not die of them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from signal import Signals
from threading import Event, Thread
from typing import TYPE_CHECKING, Final

import pytest

from bruce_mp.cli import main
from bruce_mp.cli.commands import BLOCKED_AT_START
from bruce_mp.supervisor.upgrade.upgrade_note import UpgradeStage, read_note
from support.daemon import Daemon
from support.read_back import broker_fixture, values_in

if TYPE_CHECKING:
    from typing import Self

    from bruce_mp.devbroker.control import DevBroker

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("unforked")]

TOPICS: Final = ("signals", "upgrade")
EVERY_S: Final = 0.003
WITHIN_S: Final = 60
FAILING: Final = """
import os, signal, sys
import bruce_mp.cli.run
from bruce_mp.cli import main
from bruce_mp.errors import StartError

def fail(_):
    os.kill(os.getpid(), signal.SIGHUP)
    os.kill(os.getpid(), signal.SIGUSR1)
    raise StartError("No.")

bruce_mp.cli.run.main = fail
status = main(["run"])
assert not signal.pthread_sigmask(signal.SIG_BLOCK, []), "it is as before"
sys.exit(status)
"""
"""A start that fails after signals arrived."""


def mask_of(pid: int, field: str) -> set[Signals]:
    """Return the signals that a process blocks (`SigBlk`) or handles (`SigCgt`) according to the kernel; none if it
    ended.
    """
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return set()
    mask = int(next((line.split()[1] for line in lines if line.startswith(f"{field}:")), "0"), 16)
    return {number for number in BLOCKED_AT_START if mask >> (number - 1) & 1}


def blocked_anywhere(daemon: Daemon) -> set[Signals]:
    """Return the signals that any process of the daemon blocks, as a process that has just started does."""
    return set().union(*(mask_of(pid, "SigBlk") for pid in (daemon.pid, *daemon.pids().values())))


class Shower(Thread):
    """A sender of signals to a daemon from the moment when it blocks them: every few ms, or once."""

    def __init__(self, daemon: Daemon, numbers: tuple[Signals, ...], *, once: bool) -> None:
        super().__init__()
        self._daemon = daemon
        self._numbers = numbers
        self._once = once
        self._over = Event()
        self.began_early = False
        """True if only the kernel held the first signals back."""

    def run(self) -> None:
        while not self.began_early:
            if self._over.wait(EVERY_S / 10):
                return
            if self._daemon.has_process:
                blocked, handled = (mask_of(self._daemon.pid, field) for field in ("SigBlk", "SigCgt"))
                self.began_early = blocked == set(BLOCKED_AT_START) and not handled
        while not self._over.is_set():
            for number in self._numbers:
                os.kill(self._daemon.pid, number)
            if self._once or self._over.wait(EVERY_S):
                return

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self.join()


broker = broker_fixture(topics=dict.fromkeys(TOPICS, 1), scope="module")


def deliver(daemon: Daemon, broker: DevBroker, topic: str) -> None:
    values = [b"%d" % number for number in range(10)]
    daemon.send(topic, *values)
    assert daemon.wait_settled(10).delivered == 10
    assert values_in(broker, topic) == values


def test_the_daemon_handles_signals_from_its_first_moment(tmp_path: Path, broker: DevBroker) -> None:
    daemon = Daemon(tmp_path, broker.bootstrap)
    with Shower(daemon, (Signals.SIGHUP, Signals.SIGUSR1), once=False) as shower:
        daemon.start()
    with daemon.checked_at_end():
        assert shower.began_early
        daemon.wait_for(lambda: "nothing has changed" in daemon.log(), "a reload", WITHIN_S)
        counters = daemon.counters()
        assert counters["GotLogfileReopenRequest"] > 0
        daemon.wait_for(lambda: not blocked_anywhere(daemon), "no process to block signals", WITHIN_S)
        deliver(daemon, broker, "signals")


def test_an_upgrade_requested_during_the_start_is_done(tmp_path: Path, broker: DevBroker) -> None:
    daemon = Daemon(tmp_path, broker.bootstrap)
    with Shower(daemon, (Signals.SIGUSR2,), once=True) as shower:
        daemon.start()
        with daemon.checked_at_end():
            assert shower.began_early
            daemon.wait_for(
                lambda: (note := read_note(daemon.run_dir)) is not None and note.stage is UpgradeStage.DONE,
                "the upgrade",
                WITHIN_S,
            )
            deliver(daemon, broker, "upgrade")
            assert mask_of(daemon.pid, "SigBlk") == set()


def test_a_failed_start_exits_with_its_error_despite_deferred_signals(tmp_path: Path) -> None:
    """The deferred signals do not end the daemon instead."""
    ended = subprocess.run([sys.executable, "-c", FAILING], capture_output=True, check=False, cwd=tmp_path)
    assert (ended.returncode, ended.stderr) == (1, b"bruce: No.\n")


@pytest.mark.parametrize("command", [["run", "--check"], ["check-config"]])
def test_only_the_run_command_defers_signals(monkeypatch: pytest.MonkeyPatch, command: list[str]) -> None:
    seen: list[set[int]] = []

    def look(_: list[str]) -> int:
        seen.append({int(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, [])})
        return 0

    for name in ("run", "check_config"):
        monkeypatch.setattr(f"bruce_mp.cli.{name}.main", look)
    assert main(command) == 0
    assert main(["run"]) == 0
    assert seen == [set(), set(map(int, BLOCKED_AT_START))]
