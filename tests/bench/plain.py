"""One run of the plain receiver, the base for the multiples of the daemon's figures."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from typing import TYPE_CHECKING

from bench.results import PlainRun
from bench.tools import SendError, finish, run_sender
from support import processes

if TYPE_CHECKING:
    from pathlib import Path

    from bench.cases import Case
    from bench.tools import Tools

__all__ = ["run_plain"]


def run_plain(tools: Tools, case: Case, directory: Path, datagrams: Path) -> PlainRun:
    """Run the plain receiver.  Raises SendError if a message is missing."""
    path = directory / "plain"
    path.unlink(missing_ok=True)
    address, count = f"{case.floor}:{path}", str(case.messages)
    receiver = processes.spawn([*tools.receive, address, count, str(case.senders)], output=subprocess.PIPE)
    assert receiver.stdout is not None
    assert receiver.stdout.readline() == b"READY\n"
    try:
        run_sender(tools, replace(case, transport=case.floor, per_write=1), address, datagrams)
    except SendError:
        receiver.kill()
        raise
    finally:
        words = finish(receiver, timeout=10.0).split()
    if words[:2] != ["RECEIVED", str(case.messages)]:
        raise SendError(f"The plain receiver lost messages; sent were {case.messages}: {' '.join(words)}")
    return PlainRun(case.messages, seconds=float(words[2]), cpu_s=float(words[3]))
