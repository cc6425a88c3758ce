"""The page `/processes`: the processes of the daemon, from their process rows and from the kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec
import psutil

from bruce_mp.slab import layout as lay
from bruce_mp.status.pages.header import Page, read_header
from bruce_mp.telemetry.counters import Counter

if TYPE_CHECKING:
    from bruce_mp.slab.file import Slab

__all__ = ["STALLED_MS", "ProcessLine", "ProcessesPage", "read_processes", "row_name"]

STALLED_MS: Final = 15_000
"""A process counts as stalled if its last heartbeat is older. Processes store a heartbeat in their row each second."""

_NAMES: Final = {
    lay.ROW_SUPERVISOR: "supervisor",
    lay.ROW_ROUTER: "router",
    lay.ROW_STATUS: "status",
    lay.ROW_FIRST_INPUT: "input",
    lay.ROW_JOURNAL: "journal",
}


def row_name(row: int) -> str:
    """Return the name of the process that uses a row, as `ps` shows it."""
    if row in _NAMES:
        return _NAMES[row]
    if row < lay.ROW_FIRST_DISPATCHER:
        return f"input-{row - lay.ROW_FIRST_INPUT}"
    return f"dispatcher-{row - lay.ROW_FIRST_DISPATCHER}"


class ProcessLine(msgspec.Struct, frozen=True):
    """A process that was started at least once.

    `state` is `running`, `stalled` (the process runs, but its heartbeat is old), `dead` (it should run, but does not),
    or `stopped` (it should not run). `incarnation` counts the starts. Memory is in bytes: `pss` is the private memory
    plus a share of the memory that the process shares with others; `uss` is the memory that the end of the process
    would free. Memory and CPU time are None if the kernel does not report them. `connections` is the number of open
    connections; it is None unless the process is a stream worker that runs.
    """

    name: str
    pid: int
    state: str
    incarnation: int
    restarts: int
    heartbeat_age_ms: int
    pss: int | None = None
    uss: int | None = None
    cpu_seconds: float | None = None
    connections: int | None = None


class ProcessesPage(Page, frozen=True, kw_only=True):
    """JSON of `/processes`."""

    processes: list[ProcessLine]


def read_processes(slab: Slab, now_ms: int, steady_now_ms: int) -> ProcessesPage:
    """Read all rows. `now_ms` is the time of the wall clock, `steady_now_ms` that of the steady clock."""
    lines = [_read_row(slab, row, steady_now_ms) for row in range(slab.geometry.rows)]
    return ProcessesPage(**read_header(slab, now_ms), processes=[line for line in lines if line.incarnation])


def _read_row(slab: Slab, row: int, steady_now_ms: int) -> ProcessLine:
    offset = slab.row_at(row)
    pid, incarnation = slab.words[(offset + lay.ROW_PID) >> 2], slab.words[(offset + lay.ROW_INCARNATION) >> 2]
    heartbeat_age_ms = max(0, steady_now_ms - slab.read_signed(offset + lay.ROW_HEARTBEAT_MS))
    process = _live_process(pid)
    restarts, state = incarnation - 1, _state(pid, process, heartbeat_age_ms)
    line = ProcessLine(row_name(row), pid, state, incarnation, restarts, heartbeat_age_ms)
    if row in lay.STREAM_ROWS and process is not None:
        connections = slab.longs[((offset + lay.ROW_COUNTERS) >> 3) + Counter.StreamConnections]
        line = msgspec.structs.replace(line, connections=connections)
    return line if process is None else _with_usage(line, process)


def _live_process(pid: int) -> psutil.Process | None:
    """Return the process, or None if it does not run or `pid` is 0."""
    if not pid:
        return None
    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else process
    except psutil.Error:
        return None


def _state(pid: int, process: psutil.Process | None, heartbeat_age_ms: int) -> str:
    if not pid:
        return "stopped"
    if process is None:
        return "dead"
    return "stalled" if heartbeat_age_ms > STALLED_MS else "running"


def _with_usage(line: ProcessLine, process: psutil.Process) -> ProcessLine:
    try:
        memory, times = process.memory_full_info(), process.cpu_times()
    except psutil.Error:
        return line
    cpu_s = round(times.user + times.system, 3)
    return msgspec.structs.replace(line, pss=memory.pss, uss=memory.uss, cpu_seconds=cpu_s)
