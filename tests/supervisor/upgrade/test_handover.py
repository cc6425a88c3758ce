"""State that a daemon passes to the code that replaces it."""

from __future__ import annotations

import errno
import multiprocessing
import os
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from bruce_mp.supervisor.processes.process_group import ProcessGroup
from bruce_mp.supervisor.upgrade.handover import Handover, execute

if TYPE_CHECKING:
    from typing import NoReturn

NOTHING = Handover("1.0.0", 0.0, ())


def test_a_pending_signal_is_delivered_again_after_the_handover(monkeypatch: pytest.MonkeyPatch) -> None:
    pending: list[str] = []
    heard: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, _: heard.append(number))

    def no_execve(*_: object) -> NoReturn:
        # Only for this thread: a signal pending for the process goes to any other thread that does not block it.
        status = Path("/proc/thread-self/status").read_text()
        pending.extend(line.split()[1] for line in status.splitlines() if line.startswith("SigPnd:"))
        raise OSError(errno.ENOEXEC, "it cannot be executed")

    monkeypatch.setattr(os, "execve", no_execve)
    try:
        with pytest.raises(OSError, match="cannot be executed"):
            execute(NOTHING, {}, lambda: [signal.SIGUSR1])
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert [int(mask, 16) for mask in pending] == [1 << (signal.SIGUSR1 - 1)]
    assert heard == [signal.SIGUSR1]


@pytest.mark.process
def test_a_handover_names_only_live_processes() -> None:
    """The pid of a dead, reaped process may belong to another process."""
    process = multiprocessing.get_context("spawn").Process(target=int)
    process.start()
    process.join()
    dead = SimpleNamespace(name="router", process=process, connection=None)
    processes = cast("ProcessGroup", SimpleNamespace(members=[dead]))
    assert ProcessGroup.processes_to_pass(processes) == ()
    process.close()
