"""The report for people."""

from __future__ import annotations

from statistics import median
from textwrap import fill
from typing import TYPE_CHECKING, Final

from bench.cases import GROWTH

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from bench.results import Figure, Idle, Life, Report

__all__ = ["render"]

MB: Final = 1e6
WIDTH: Final = 126
HEAD: Final = (
    f"{'':32} {'CPU us per message':^18}  {'multiple':>8} {'(range)':>13} {'was':>6}"
    f"  {'thousand messages/s':^24} {'lost':>6} {'broker':>6}\n"
    f"{'':32} {'plain':>8} {'daemon':>8} {'':>9} {'':>13} {'':>6}"
    f"  {'plain':>7} {'in':>7} {'through':>8} {'%':>6} {'us':>6}"
)
WITH_RHYTHM: Final = "ordinary"
"""The group whose table shows how often processes wake up and how small their work is."""
GROWTH_HEAD: Final = f"{'':32} {'CPU us per message':^18}  {'ratio':>6} {'multiples':>13} {'ratio':>6}"


def render(group: str, report: Report, baseline: Report | None) -> str:
    """`was` is the multiple of the baseline."""
    sections = [_machine(report), _loads(report, baseline), _growth(report), _latencies(report)]
    if group == WITH_RHYTHM:
        sections.append(_rhythm(report))
    sections.append(_rest(report, baseline) if report.idle else _briefly(report.lives))
    texts = ["\n".join(section) for section in sections]
    return "\n\n".join([f"== {group}", *filter(None, texts)])


def _machine(report: Report) -> Iterator[str]:
    yield fill(", ".join(f"{name} {value}" for name, value in report.machine.items()), WIDTH, break_on_hyphens=False)


def _loads(report: Report, baseline: Report | None) -> Iterator[str]:
    if report.figures:
        yield HEAD
    for name, figure in report.figures.items():
        before = baseline.figures.get(name) if baseline else None
        yield _load(name, figure, before)
        yield f"{'':32} {_parts(figure.process_us)}"
    for name, reason in report.refused.items():
        yield f"{name:<32} NO FIGURE: {reason}"
    for name, reason in report.absent.items():
        yield f"{name:<32} not measured: {reason}"


def _load(name: str, figure: Figure, before: Figure | None) -> str:
    spread = f"({figure.lowest_multiple:.1f}-{figure.highest_multiple:.1f})"
    return (
        f"{name:<32} {figure.plain_us:8.2f} {figure.daemon_us:8.2f} {figure.multiple:7.1f} x {spread:>13} "
        f"{f'{before.multiple:.1f}' if before else '-':>6}  {figure.plain_rate / 1e3:7.1f} {figure.rate_in / 1e3:7.1f} "
        f"{figure.rate_through / 1e3:8.1f} {figure.discarded_share * 100:6.1f} {figure.sink_us:6.2f}"
    )


def _parts(values: Mapping[str, float]) -> str:
    """Render the values by process, with all dispatchers as one part."""
    parts = _by_kind(values)
    return "  ".join(f"{name} {abs(value) if abs(value) < 0.005 else value:.2f}" for name, value in parts.items())


def _by_kind(values: Mapping[str, float]) -> dict[str, float]:
    """Return the sums by kind of process: all dispatchers are one kind."""
    parts: dict[str, float] = {}
    for name, value in values.items():
        kind = name.split("-")[0] + "s" if name.startswith("dispatcher-") else name
        parts[kind] = parts.get(kind, 0.0) + value
    return parts


def _growth(report: Report) -> Iterator[str]:
    figures = report.figures
    found = [growth for growth in GROWTH if {growth.small.name, growth.large.name} <= figures.keys()]
    if found:
        yield GROWTH_HEAD
    for growth in found:
        few, many = figures[growth.small.name], figures[growth.large.name]
        yield (
            f"{growth.what:<21} {few.daemon_us:8.2f} {many.daemon_us:8.2f}  {many.daemon_us / few.daemon_us:6.2f} "
            f"{few.multiple:6.1f} {many.multiple:6.1f} {many.multiple / few.multiple:6.2f}"
        )


def _latencies(report: Report) -> Iterator[str]:
    for name, figure in report.figures.items():
        if figure.latency_ms:
            times = "  ".join(f"{share} {value:.2f} ms" for share, value in figure.latency_ms.items())
            yield f"{name:<32} at {figure.rate_in:,.0f}/s from send to ack: {times}"


def _rhythm(report: Report) -> Iterator[str]:
    """Render wake-ups, runs and record batches a second."""
    for name, figure in report.figures.items():
        wakeups = "  ".join(
            f"{kind} {value:.0f}" for kind, value in _by_kind(figure.wakeups_per_s).items() if value >= 1
        )
        work = f"{figure.runs_per_s:.0f} runs/s, {figure.batches_per_s:.0f} record batches/s"
        yield f"{name:<32} {work}; wake-ups/s: {wakeups}"


def _briefly(lives: Sequence[Life]) -> Iterator[str]:
    """Render the largest values over all daemons and dispatchers."""
    seen = [memory for life in lives for memory in (life.memory_at_start, *life.memory_after.values())]
    dispatchers = [size for memory in seen for name, size in memory.items() if name.startswith("dispatcher-")]
    if dispatchers:
        most, largest = max(map(_sum, seen)), max(dispatchers) / MB
        yield f"memory    without the slab at most {most:.0f} MB, a dispatcher at most {largest:.1f} MB"
        yield f"start     {_middle(lives, 'received_s'):.2f} s until a message is received"


def _rest(report: Report, baseline: Report | None) -> Iterator[str]:
    assert report.idle
    was = f" (was {_percent(baseline.idle):.2f} %)" if baseline and baseline.idle else ""
    yield f"idle      {_percent(report.idle):.2f} % of a core{was}: {_idle_parts(report.idle)}"
    yield from _life(report.lives, baseline.lives if baseline else ())


def _percent(idle: Idle) -> float:
    return sum(idle.cpu.values()) * 100


def _idle_parts(idle: Idle) -> str:
    return "  ".join(
        f"{name} {share * 100:.2f} % {idle.wakeups[name]:.1f} wake-ups/s" for name, share in idle.cpu.items()
    )


def _life(lives: Sequence[Life], before: Sequence[Life]) -> Iterator[str]:
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
