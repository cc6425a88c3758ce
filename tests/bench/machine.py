"""The facts that a figure depends on: the machine, and its load by other programs."""

from __future__ import annotations

import os
import platform
import resource
import subprocess
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import psutil

from bruce_mp import __version__

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["OthersLoad", "busy_s", "facts", "scratch_directory"]

SHARED_MEMORY: Final = Path("/dev/shm")


def facts() -> dict[str, str | float]:
    """Return the facts that stay constant during a run."""
    return {
        "date": time.strftime("%Y-%m-%d"),
        "bruce": __version__,
        "commit": _commit(),
        "processor": next(_processors(), platform.machine()),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gb": round(psutil.virtual_memory().total / 1e9, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "net.unix.max_dgram_qlen": int(Path("/proc/sys/net/unix/max_dgram_qlen").read_text()),
    }


def _commit() -> str:
    """Return git's name of the checked out commit, with `-dirty` after local changes."""
    command = ["git", "describe", "--always", "--dirty"]
    try:
        return subprocess.run(
            command, cwd=Path(__file__).parent, capture_output=True, text=True, check=True
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _processors() -> Iterator[str]:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            yield line.partition(":")[2].strip()


@contextmanager
def scratch_directory() -> Iterator[Path]:
    """Yield a new directory, in shared memory if there is any, and remove it at the end."""
    base = SHARED_MEMORY if SHARED_MEMORY.is_dir() else None
    with tempfile.TemporaryDirectory(prefix="bruce-bench-", dir=base) as directory:
        yield Path(directory)


class OthersLoad:
    """The average number of cores that other processes kept busy since the object was created.

    Only processes that have been waited for count as ours, so ask when all have ended.
    """

    def __init__(self) -> None:
        self._start = time.monotonic()
        self._busy, self._ours = busy_s(), _ours_s()

    def cores(self) -> float:
        """On average."""
        others = (busy_s() - self._busy) - (_ours_s() - self._ours)
        return max(0.0, others / (time.monotonic() - self._start))


def busy_s() -> float:
    """Return the CPU seconds that the machine has spent on all programs since its start."""
    times = psutil.cpu_times()
    return float(sum(times) - times.idle - times.iowait - times.guest - times.guest_nice)


def _ours_s() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)
