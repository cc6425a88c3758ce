"""The results of runs, and the figures from them: medians over the repetitions.

CPU is in microseconds per message, which is seconds per million messages.  A run has no figure if its books do
not agree with the sent messages: it carries the reason instead, and so does a case with such a run.
"""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

__all__ = [
    "FORMAT",
    "DaemonRun",
    "Figure",
    "Idle",
    "Life",
    "Pair",
    "PlainRun",
    "Recorded",
    "Report",
    "figure_of",
    "per_message",
    "refusals_of",
]

FORMAT: Final = 2
"""Version of the JSON, raised when a field changes its meaning."""


class PlainRun(msgspec.Struct, frozen=True):
    """A run of the plain receiver."""

    messages: int
    seconds: float
    cpu_s: float


class DaemonRun(msgspec.Struct, frozen=True):
    """The daemon carried a load.

    `send_s` is the sender's time, `settle_s` the time until the last message was delivered or discarded.  `cpu_s` is by
    process, less what the process uses when idle; `wakeups` as well, but whole.  `sink_cpu_s` is the embedded broker's.
    The counts are differences of the books over the run.  `latency_ms` is by percentile, where it was measured.  The
    inputs handed over `runs`, and the brokers received `batches` of records.
    """

    sent: int
    received: int
    delivered: int
    discarded: int
    held: int
    stored: int
    send_s: float
    settle_s: float
    cpu_s: dict[str, float]
    wakeups: dict[str, int]
    sink_cpu_s: float
    balanced: bool
    same_processes: bool
    latency_ms: dict[str, float] = {}
    runs: int = 0
    batches: int = 0


class Pair(msgspec.Struct, frozen=True):
    """One repetition of a case: both receivers, one after the other."""

    case: str
    plain: PlainRun
    daemon: DaemonRun

    @property
    def multiple(self) -> float:
        """The daemon's CPU per message as a multiple of the plain receiver's."""
        return per_message(sum(self.daemon.cpu_s.values()), self.daemon.delivered) / per_message(
            self.plain.cpu_s, self.plain.messages
        )


class Idle(msgspec.Struct, frozen=True):
    """A daemon with nothing to do: share of a core and wake-ups a second, by process."""

    seconds: float
    cpu: dict[str, float]
    wakeups: dict[str, float]


class Life(msgspec.Struct, frozen=True):
    """Other figures of one daemon: seconds since its start, and bytes.

    `taken_s` until its socket accepts a message, `received_s` until the message is in the slab.  Memory is by process,
    proportional, without the slab; after the start, and after each case.
    """

    taken_s: float
    received_s: float
    idle: Idle
    memory_at_start: dict[str, int]
    memory_after: dict[str, dict[str, int]]
    slab_mapped: int
    slab_file: int


class Figure(msgspec.Struct, frozen=True):
    """Medians of a case.  Rates in messages a second: the plain receiver, into the daemon, through the daemon.

    `latency_ms` from send to ack, by percentile.  Wake-ups, runs and record batches are per second.  `sitting` has date
    and commit of the run.
    """

    multiple: float
    plain_us: float
    daemon_us: float
    process_us: dict[str, float]
    wakeups_per_1000: dict[str, float]
    sink_us: float
    plain_rate: float
    rate_in: float
    rate_through: float
    discarded_share: float
    lowest_multiple: float
    highest_multiple: float
    latency_ms: dict[str, float] = {}
    wakeups_per_s: dict[str, float] = {}
    runs_per_s: float = 0.0
    batches_per_s: float = 0.0
    sitting: str = ""


class Report(msgspec.Struct, frozen=True):
    """The report on a group of cases.  `refused` has the reasons by case, `absent` the reasons for skipped cases."""

    machine: dict[str, str | float]
    figures: dict[str, Figure]
    refused: dict[str, str]
    absent: dict[str, str]
    idle: Idle | None
    lives: list[Life]
    pairs: list[Pair]


class Recorded(msgspec.Struct, frozen=True):
    """The contents of a file: reports by group, each with the machine of its run."""

    format: int
    groups: dict[str, Report]


def per_message(cpu_s: float, messages: int) -> float:
    return cpu_s / max(messages, 1) * 1e6


def refusals_of(run: DaemonRun) -> list[str]:
    """Return the reasons to refuse a run's figures; none for a sound run."""
    return [text for holds, text in _rules(run) if not holds]


def _rules(run: DaemonRun) -> Iterator[tuple[bool, str]]:
    accounted = run.delivered + run.discarded + run.held
    yield run.received == run.sent, f"{run.sent} were sent, {run.received} received"
    yield run.balanced, "the books do not balance"
    yield run.received == accounted, f"received are {run.received}, delivered, discarded or held {accounted}"
    yield run.held == 0, f"{run.held} were still held when the time was up"
    yield run.delivered == run.stored, f"{run.delivered} are delivered by the books, the broker stored {run.stored}"
    yield run.delivered > 0, "nothing was delivered"
    yield run.same_processes, "a process was started again"


def figure_of(pairs: Sequence[Pair], sitting: str = "") -> Figure:
    """Return the medians over the repetitions of one case, all of them sound."""
    runs = [pair.daemon for pair in pairs]
    multiples = [pair.multiple for pair in pairs]
    return Figure(
        multiple=median(multiples),
        plain_us=median(per_message(pair.plain.cpu_s, pair.plain.messages) for pair in pairs),
        daemon_us=median(per_message(sum(run.cpu_s.values()), run.delivered) for run in runs),
        process_us=_by_process(runs, lambda run, name: per_message(run.cpu_s.get(name, 0.0), run.delivered)),
        wakeups_per_1000=_by_process(runs, lambda run, name: run.wakeups.get(name, 0) / run.delivered * 1000),
        sink_us=median(per_message(run.sink_cpu_s, run.delivered) for run in runs),
        plain_rate=median(pair.plain.messages / pair.plain.seconds for pair in pairs),
        rate_in=median(run.received / run.send_s for run in runs),
        rate_through=median(run.delivered / run.settle_s for run in runs),
        discarded_share=median(run.discarded / run.received for run in runs),
        lowest_multiple=min(multiples),
        highest_multiple=max(multiples),
        latency_ms={name: median(run.latency_ms[name] for run in runs) for name in runs[0].latency_ms},
        wakeups_per_s=_by_process(runs, lambda run, name: run.wakeups.get(name, 0) / run.settle_s),
        runs_per_s=median(run.runs / run.settle_s for run in runs),
        batches_per_s=median(run.batches / run.settle_s for run in runs),
        sitting=sitting,
    )


def _by_process(runs: Sequence[DaemonRun], value: Callable[[DaemonRun, str], float]) -> dict[str, float]:
    names: Iterable[str] = dict.fromkeys(name for run in runs for name in run.cpu_s)
    return {name: median(value(run, name) for run in runs) for name in names}
