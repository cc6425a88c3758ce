"""The cost of processes: CPU to the nanosecond, wake-ups, memory in proportional shares.

CPU is read from the process's own clock, the one that clock_getcpuclockid(3) names: /proc/PID/stat counts in hundredths
of a second, which is too coarse where a case costs tenths.  A wake-up is a voluntary context switch of any thread.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Memory", "Usage", "cpu_seconds", "family", "memory_of", "usage_of"]

_SCHED_CLOCK = 2  # CPUCLOCK_SCHED of the kernel: user and system time together, all threads


@dataclass(frozen=True, slots=True)
class Usage:
    """The use of resources by a process since its start."""

    cpu_s: float
    wakeups: int


@dataclass(frozen=True, slots=True)
class Memory:
    """Proportional set size in bytes: of each process without the slab, and of the slab as far as it is mapped."""

    processes: dict[str, int]
    slab: int


def cpu_seconds(pid: int) -> float:
    """Return the user and system time of a process, including its ended threads."""
    return time.clock_gettime(~pid << 3 | _SCHED_CLOCK)


def family(pid: int) -> dict[str, int]:
    """Return the pids of a daemon's processes by name; `pid` is the supervisor's.  Untitled ones are helpers."""
    supervisor = psutil.Process(pid)
    found: dict[str, int] = {}
    for process in (supervisor, *sorted(supervisor.children(recursive=True), key=lambda child: child.pid)):
        found[_unused(_name(process), found)] = process.pid
    return found


def _name(process: psutil.Process) -> str:
    title = " ".join(process.cmdline()).strip()
    return title.removeprefix("bruce: ") if title.startswith("bruce: ") else "helper"


def _unused(name: str, used: Mapping[str, int]) -> str:
    return next(candidate for number in count(1) if (candidate := f"{name} {number}".removesuffix(" 1")) not in used)


def usage_of(pids: Mapping[str, int]) -> dict[str, Usage]:
    """Return the usage of each process so far."""
    return {name: Usage(cpu_seconds(pid), _wakeups(pid)) for name, pid in pids.items()}


def _wakeups(pid: int) -> int:
    statuses = (status.read_text() for status in Path(f"/proc/{pid}/task").glob("*/status"))
    return sum(int(text.partition("\nvoluntary_ctxt_switches:")[2].split()[0]) for text in statuses)


def memory_of(pids: Mapping[str, int], slab: Path) -> Memory:
    """Return the present memory of the processes."""
    own: dict[str, int] = {}
    shared = 0
    for name, pid in pids.items():
        for mapping in psutil.Process(pid).memory_maps(grouped=False):
            if mapping.path == str(slab):
                shared += mapping.pss
            else:
                own[name] = own.get(name, 0) + mapping.pss
    return Memory(own, shared)
