"""The audit as one page of HTML: works offline, says the verdict first, then shows each topic over time.

What is collected from Spark is bounded: the worst topics, for each at most `_BARS` spans of time, and the first ranges
of messages in which something is wrong.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from typing import TYPE_CHECKING, Final

from bruce_mp.spark.audit.chart import PROBLEMS, STYLE, VOLUMES, Bar, chart
from bruce_mp.spark.storage import open_directory

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pyspark.sql import Column, DataFrame

    from bruce_mp.spark.audit.run import Verdict

__all__ = ["write_report"]

_TOPICS: Final = 50
_BARS: Final = 120
_RANGES: Final = 100
_REASONS: Final = 20
_MINUTE_MS: Final = 60_000
_SERIES: Final = (*VOLUMES, *PROBLEMS)
_COLUMNS: Final = ("sent", *_SERIES, "unknown", "p50_ms", "p99_ms")
_HEADS: Final = {"p50_ms": "latency p50", "p99_ms": "p99", "unknown": "of others"}
_MILLISECONDS: Final = frozenset({"p50_ms", "p99_ms"})
_PAGE_STYLE: Final = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 64rem; padding: 0 1rem; color: #1b1f24;
  background: #fff }
h1 { font-size: 1.4rem } h2 { font-size: 1.1rem; margin: 2rem 0 .5rem; overflow-wrap: anywhere }
.verdict { padding: .8rem 1rem; border-radius: .4rem } .verdict strong { display: block }
.good { background: #dcf3e2; color: #10542a } .bad { background: #fbe0dd; color: #7d1a10 }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums } .wide { overflow-x: auto }
th, td { text-align: right; padding: .25rem .6rem; border-bottom: 1px solid #d9dee3; white-space: nowrap }
th { font-weight: 600; color: #57606a } .text { text-align: left; white-space: normal; overflow-wrap: anywhere }
td.wrong { color: #b3261e; font-weight: 600 } .note { color: #57606a }
@media (prefers-color-scheme: dark) { body { background: #0d1117; color: #e6edf3 } th, td { border-color: #30363d }
  .good { background: #12361f; color: #a6e9bd } .bad { background: #4a1713; color: #ffc9c3 }
  td.wrong { color: #ff8f86 } th, .note { color: #9aa4ae } }
"""


@dataclass(frozen=True, slots=True)
class _Report:
    """What the page shows, fetched from Spark."""

    topics: Sequence[Mapping[str, object]]
    bars: Mapping[str, Sequence[Bar]]
    reasons: Sequence[Mapping[str, object]]
    problems: Sequence[Mapping[str, object]]


def write_report(balance: DataFrame, latencies: DataFrame, problems: DataFrame, verdict: Verdict, output: str) -> str:
    """Write `report.html` into `output`; its path.  `latencies` has a row for each topic."""
    topics = _worst(balance, latencies)
    bars = _bars(balance, [str(row["topic"]) for row in topics])
    found = _Report(topics, bars, _reasons(balance) if verdict.discarded else [], _first(problems))
    system, root = open_directory(output)
    with system.open_output_stream(f"{root}/report.html") as file:
        file.write(_page(found, verdict).encode())
    return f"{root}/report.html"


# --- from Spark ------------------------------------------------------------------------------------------------------
def _worst(balance: DataFrame, latencies: DataFrame) -> Sequence[Mapping[str, object]]:
    counts = ("sent", *_SERIES, "unknown")
    sums = balance.groupBy("topic").agg(*_expressions(*(f"sum({name}) as {name}" for name in counts)))
    wrong = _expressions("missing + doubled + out_of_order")[0]
    rows = sums.orderBy(wrong.desc(), sums["discarded"].desc(), sums["sent"].desc()).limit(_TOPICS)
    joined = rows.join(latencies, "topic", "left").orderBy(wrong.desc(), rows["discarded"].desc(), rows["sent"].desc())
    return [row.asDict() for row in joined.collect()]


def _bars(balance: DataFrame, topics: Sequence[str]) -> dict[str, list[Bar]]:
    """At most `_BARS` spans for each topic, all of the same length and from the same moment."""
    chosen = balance.where(balance["topic"].isin(*topics))
    ends = chosen.selectExpr("min(minute) as first", "max(minute) as last").first()
    if ends is None or ends["first"] is None:
        return {}
    minutes = (ends["last"] - ends["first"]) // _MINUTE_MS + 1
    span = -(-minutes // _BARS) * _MINUTE_MS
    at = f"(minute - {ends['first']}L) div {span}L as at"
    grouped = chosen.selectExpr("topic", at, *_SERIES).groupBy("topic", "at")
    rows = grouped.agg(*_expressions(*(f"sum({name}) as {name}" for name in _SERIES))).orderBy("at").collect()
    found: dict[str, list[Bar]] = {}
    for row in rows:
        bar = Bar(row["at"], ends["first"] + row["at"] * span, span, {name: row[name] for name in _SERIES})
        found.setdefault(row["topic"], []).append(bar)
    return found


def _reasons(balance: DataFrame) -> Sequence[Mapping[str, object]]:
    flat = balance.selectExpr("topic", "explode(reasons) as (reason, count)").groupBy("reason", "topic")
    rows = flat.agg(*_expressions("sum(count) as messages")).orderBy("messages", ascending=False)
    return [row.asDict() for row in rows.limit(_REASONS).collect()]


def _first(problems: DataFrame) -> Sequence[Mapping[str, object]]:
    return [row.asDict() for row in problems.orderBy("problem", "writer", "first").limit(_RANGES).collect()]


def _expressions(*texts: str) -> list[Column]:
    from pyspark.sql import functions as F  # noqa: PLC0415, N812 - Spark's own convention

    return [F.expr(text) for text in texts]


# --- the page --------------------------------------------------------------------------------------------------------
def _page(found: _Report, verdict: Verdict) -> str:
    charts = "".join(_topic(str(row["topic"]), found.bars.get(str(row["topic"]), [])) for row in found.topics)
    return (
        "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>"
        f"<title>Audit</title><style>{_PAGE_STYLE}{STYLE}</style><h1>Audit of {_now()}</h1>{_headline(verdict)}"
        f"{_topics(found.topics)}{charts}{_discards(found.reasons)}{_problems(found.problems)}</html>\n"
    )


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")


def _headline(verdict: Verdict) -> str:
    kind, word = ("good", "The books balance.") if verdict.good else ("bad", "The books do not balance.")
    return f"<p class='verdict {kind}'><strong>{word}</strong> {escape(str(verdict))}</p>"


def _topics(rows: Iterable[Mapping[str, object]]) -> str:
    head = "".join(f"<th>{_HEADS.get(name, name.replace('_', ' '))}" for name in _COLUMNS)
    lines = "".join(
        f"<tr><td class=text>{escape(str(row['topic']))}{''.join(_cell(name, row[name]) for name in _COLUMNS)}"
        for row in rows
    )
    return f"<div class=wide><table><tr><th class=text>topic{head}{lines}</table></div>"


def _cell(name: str, value: object) -> str:
    wrong = " class=wrong" if name in PROBLEMS and value else ""
    unit = " ms" if name in _MILLISECONDS else ""
    return f"<td{wrong}>{f'{value:,}{unit}' if isinstance(value, int) else '&ndash;'}"


def _topic(name: str, bars: Sequence[Bar]) -> str:
    return f"<h2>{escape(name)}</h2>{chart(bars)}"


def _discards(rows: Sequence[Mapping[str, object]]) -> str:
    if not rows:
        return ""
    lines = "".join(
        f"<tr><td class=text>{escape(str(row['reason']))}<td class=text>{escape(str(row['topic']))}"
        f"<td>{row['messages']:,}"
        for row in rows
    )
    return (
        "<h2>Why messages were discarded</h2>"
        f"<table><tr><th class=text>reason<th class=text>topic<th>messages{lines}</table>"
    )


def _problems(rows: Sequence[Mapping[str, object]]) -> str:
    if not rows:
        return ""
    lines = "".join(
        f"<tr><td class=text>{escape(str(row['problem']))}<td class=text>{escape(str(row['writer']))}"
        f"<td>{row['first']:,}<td>{row['last']:,}"
        for row in rows
    )
    return (
        "<h2>Which messages</h2><p class=note>A writer is query/batch/partition; its messages are numbered from 0. "
        f"Discarded messages are among the missing. The first {_RANGES} ranges; the table <code>problems</code> has "
        "all.</p>"
        f"<div class=wide><table><tr><th class=text>problem<th class=text>writer<th>from<th>to{lines}</table></div>"
    )
