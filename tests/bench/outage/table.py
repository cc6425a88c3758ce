"""The report for people."""

from __future__ import annotations

from textwrap import fill
from typing import TYPE_CHECKING, Final

from bench.outage.results import TARGET, Group
from bruce_mp.telemetry.books import balance_line

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bench.outage.results import Report, Silence, Span

__all__ = ["render"]

WIDTH: Final = 118
HEAD: Final = (
    f"{'':<8} {'':>6} {'cores':>6}  {'messages/s':^23}  {'latency, ms':^43}  {'in the log':^13}\n"
    f"{'':<8} {'s':>6} {'busy':>6}  {'sent':>7} {'arrived':>7} {'ratio':>7}  "
    f"{'p50':>7} {'ratio':>7} {'p99':>8} {'ratio':>7} {'longest':>10}  {'p50':>5} {'p99':>7}"
)


def render(report: Report) -> str:
    """Facts, groups by phase, the dead broker's partitions, seconds, books, and the verdict."""
    return "\n".join(
        [*_machine(report), "", *_groups(report), *_silences(report), "", *_seconds(report), *_end(report)]
    )


def _machine(report: Report) -> Iterator[str]:
    yield fill(", ".join(f"{name} {value}" for name, value in report.machine.items()), WIDTH, break_on_hyphens=False)


def _groups(report: Report) -> Iterator[str]:
    yield HEAD
    for group in Group:
        yield f"partitions of the {group}"
        for span in report.spans:
            yield _flow(report, group, span)
    yield ""


def _flow(report: Report, group: Group, span: Span) -> str:
    flow = span.flows[group]
    throughput, p50, p99 = (report.ratio(group, span, what) for what in ("through", "p50", "p99"))
    logged = (flow.logged_p50, flow.logged_p99)
    return (
        f"  {span.name:<6} {span.seconds:6.1f} {span.cores:6.2f}"
        f"  {flow.sent:7.0f} {flow.arrived:7.0f} {throughput:7.3f}"
        f"  {flow.p50:7.0f} {p50:7.2f} {flow.p99:8.0f} {p99:7.2f} {flow.longest:10.0f}"
        + ("" if None in logged else "  {:5.0f} {:7.0f}".format(*logged))
    )


def _silences(report: Report) -> Iterator[str]:
    for group, silence in report.silences.items():
        yield f"partitions of the {group}: {_silence(report, group, silence)}"


def _silence(report: Report, group: Group, silence: Silence) -> str:
    text = f"nothing came to one of them for {silence.longest:.2f} s at most"
    if not group.is_killed:
        return text
    return (
        f"{text};\n    all flow {silence.flowing:.2f} s after {report.since}, caught up after {silence.caught_up:.2f} s"
    )


def _seconds(report: Report) -> Iterator[str]:
    for group in (Group.OTHERS, Group.DEAD):
        counts = " ".join(map(str, report.per_second[group]))
        yield fill(f"arrived each second, partitions of the {group}: {counts}", WIDTH, subsequent_indent="    ")


def _end(report: Report) -> Iterator[str]:
    books, back = report.books, report.read_back
    yield ""
    yield f"{balance_line(books)}; possible duplicates {books.possible_duplicates}; pauses {report.pauses}"
    yield (
        f"sent {back.sent}, read back {back.read}: missing {back.missing}, twice {back.doubled}, "
        f"out of order {back.disordered}; in another partition than the key names {back.elsewhere}"
    )
    for refusal in report.refusals:
        yield f"NO FIGURE: {refusal}"
    yield from _verdict(report)


def _verdict(report: Report) -> Iterator[str]:
    with_it, without = (
        max(report.ratio(group, span, "p99") for span in report.spans) for group in (Group.OTHERS, Group.DIRECT_OTHERS)
    )
    verdict = "kept" if report.kept >= TARGET else "DID NOT KEEP"
    yield (
        f"The unaffected partitions {verdict} {TARGET:.0%} of their throughput: {report.kept:.1%} in the worst phase. "
        f"Their p99\nlatency was up to {with_it:.1f} times that of before; without the daemon, {without:.1f} times."
    )
