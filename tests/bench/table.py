"""The report for people."""

from __future__ import annotations

from statistics import median
from textwrap import fill
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from bench.results import Figure, Idle, Life, Report

__all__ = ["render"]

MB: Final = 1e6
WIDTH: Final = 118
HEAD: Final = (
    f"{'':16} {'CPU us per message':^18}  {'multiple':>8} {'(range)':>13} {'was':>6}"
    f"  {'thousand messages/s':^24} {'lost':>6} {'broker':>6}\n"
    f"{'':16} {'plain':>8} {'daemon':>8} {'':>9} {'':>13} {'':>6}"
    f"  {'plain':>7} {'in':>7} {'through':>8} {'%':>6} {'us':>6}"
)


def render(report: Report, baseline: Report | None) -> str:
    """`was` is the multiple of the baseline."""
    return "\n".join([*_machine(report), "", *_loads(report, baseline), "", *_lives(report, baseline)])


def _machine(report: Report) -> Iterator[str]:
    yield fill(", ".join(f"{name} {value}" for name, value in report.machine.items()), WIDTH, break_on_hyphens=False)


def _loads(report: Report, baseline: Report | None) -> Iterator[str]:
    if report.figures:
        yield HEAD
    for name, figure in report.figures.items():
        before = baseline.figures.get(name) if baseline else None
        yield _load(name, figure, before)
        yield f"{'':16} {_parts(figure.process_us)}"
    for name, reason in report.refused.items():
        yield f"{name:<16} NO FIGURE: {reason}"


def _load(name: str, figure: Figure, before: Figure | None) -> str:
    spread = f"({figure.lowest_multiple:.1f}-{figure.highest_multiple:.1f})"
    return (
        f"{name:<16} {figure.plain_us:8.2f} {figure.daemon_us:8.2f} {figure.multiple:7.1f} x {spread:>13} "
        f"{f'{before.multiple:.1f}' if before else '-':>6}  {figure.plain_rate / 1e3:7.1f} {figure.rate_in / 1e3:7.1f} "
        f"{figure.rate_through / 1e3:8.1f} {figure.discarded_share * 100:6.1f} {figure.sink_us:6.2f}"
    )


def _parts(values: Mapping[str, float]) -> str:
    return "  ".join(f"{name} {abs(value) if abs(value) < 0.005 else value:.2f}" for name, value in values.items())


def _lives(report: Report, baseline: Report | None) -> Iterator[str]:
    if report.idle:
        was = f" (was {_percent(baseline.idle):.2f} %)" if baseline and baseline.idle else ""
        yield f"idle      {_percent(report.idle):.2f} % of a core{was}: {_idle_parts(report.idle)}"
    if report.lives:
        yield from _rest(report.lives, baseline.lives if baseline else ())


def _percent(idle: Idle) -> float:
    return sum(idle.cpu.values()) * 100


def _idle_parts(idle: Idle) -> str:
    return "  ".join(
        f"{name} {share * 100:.2f} % {idle.wakeups[name]:.1f} wake-ups/s" for name, share in idle.cpu.items()
    )


def _rest(lives: Sequence[Life], before: Sequence[Life]) -> Iterator[str]:
    yield (
        f"start     {_middle(lives, 'taken_s'):.2f} s until the socket takes a message{_was(before, 'taken_s')}, "
        f"{_middle(lives, 'received_s'):.2f} s until it is received{_was(before, 'received_s')}"
    )
    first = lives[0]
    yield f"memory    {_sum(first.memory_at_start):.0f} MB after the start: {_megabytes(first.memory_at_start)}"
    for case, memory in first.memory_after.items():
        yield f"          {_sum(memory):.0f} MB after {case}: {_megabytes(memory)}"
    yield f"          and the slab: {first.slab_mapped / MB:.0f} MB mapped, {first.slab_file / MB:.0f} MB the file"


def _middle(lives: Sequence[Life], what: str) -> float:
    return median(float(getattr(life, what)) for life in lives)


def _was(before: Sequence[Life], what: str) -> str:
    return f" (was {_middle(before, what):.2f})" if before else ""


def _sum(memory: Mapping[str, int]) -> float:
    return sum(memory.values()) / MB


def _megabytes(memory: Mapping[str, int]) -> str:
    return "  ".join(f"{name} {size / MB:.1f}" for name, size in memory.items())
