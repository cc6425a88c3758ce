"""The figures of applications: medians, the table, and the recorded file."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["Applications", "Cost", "Figure", "Load", "figures_of", "render"]


class Load(msgspec.Struct, frozen=True):
    """Messages with values of `size` bytes; `rate` in messages a second, 0 = flat out."""

    size: int
    rate: int
    messages: int

    @property
    def name(self) -> str:
        """The name on the command line and in the table, such as `1KB` or `100B-20k/s`."""
        size = f"{self.size}B" if self.size < 1024 else f"{self.size // 1024}KB"
        return f"{size}-{self.rate // 1000}k/s" if self.rate else size


class Cost(msgspec.Struct, frozen=True):
    """One run: CPU in microseconds per message, and the rate in messages a second."""

    sender: str
    load: str
    application_us: float
    daemon_us: float
    rate: float


class Figure(msgspec.Struct, frozen=True):
    """Medians of the runs of one sender with one load."""

    application_us: float
    daemon_us: float
    total_us: float
    lowest_us: float
    highest_us: float
    rate: float


class Applications(msgspec.Struct, frozen=True):
    """A recorded sitting; figures by sender and load, absent senders with their reasons."""

    machine: dict[str, str | float]
    figures: dict[str, dict[str, Figure]]
    absent: dict[str, str]
    refused: dict[str, str]


def figures_of(costs: Sequence[Cost]) -> dict[str, dict[str, Figure]]:
    """Return the medians over the repetitions."""
    found: dict[str, dict[str, Figure]] = {}
    for sender, load in dict.fromkeys((cost.sender, cost.load) for cost in costs):
        runs = [cost for cost in costs if (cost.sender, cost.load) == (sender, load)]
        totals = [run.application_us + run.daemon_us for run in runs]
        found.setdefault(sender, {})[load] = Figure(
            median(run.application_us for run in runs),
            median(run.daemon_us for run in runs),
            median(totals),
            min(totals),
            max(totals),
            median(run.rate for run in runs),
        )
    return found


COLUMN: Final = 19


def render(report: Applications, loads: Sequence[Load]) -> str:
    """Return the table: application + daemon = total, CPU us per message, for each load."""
    return "\n".join([*_table(report, loads), *(f"{name}: {text}" for name, text in _notes(report))])


def _table(report: Applications, loads: Sequence[Load]) -> Iterator[str]:
    yield "CPU us per message, application + daemon = total; Kafka clients have no daemon"
    yield f"{'':22}" + "".join(f"{load.name:>{COLUMN}}" for load in loads)
    for sender, figures in report.figures.items():
        cells = [_cell(figures[load.name]) if load.name in figures else "-" for load in loads]
        yield f"{sender:22}" + "".join(f"{cell:>{COLUMN}}" for cell in cells)


def _cell(figure: Figure) -> str:
    if not figure.daemon_us:
        return f"{figure.total_us:.2f}"
    return f"{figure.application_us:.2f}+{figure.daemon_us:.2f}={figure.total_us:.2f}"


def _notes(report: Applications) -> Iterator[tuple[str, str]]:
    yield from ((f"{name}, not measured", text) for name, text in report.absent.items())
    yield from ((f"{name}, NO FIGURE", text) for name, text in report.refused.items())
