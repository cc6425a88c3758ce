"""The audit as one page of HTML: works offline, says the verdict first, then shows each topic over time.

What is collected from Spark is bounded: the worst topics, and for each at most `_BARS` spans of time.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from itertools import pairwise
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from pyspark.sql import Column, DataFrame

    from bruce_mp.spark.audit.run import Verdict

__all__ = ["write_report"]

_TOPICS: Final = 50
_BARS: Final = 120
_GAPS: Final = 100
_MINUTE_MS: Final = 60_000
_SERIES: Final = ("delivered", "discarded", "missing", "doubled", "out_of_order")
_COLUMNS: Final = ("sent", *_SERIES, "unknown", "p50_ms", "p99_ms")
_STYLE: Final = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 60rem; padding: 0 1rem; color: #1b1f24;
  background: #fff }
h1 { font-size: 1.4rem } h2 { font-size: 1.1rem; margin-top: 2rem; overflow-wrap: anywhere }
.verdict { padding: .8rem 1rem; border-radius: .4rem; font-weight: 600 }
.good { background: #dcf3e2; color: #10542a } .bad { background: #fbe0dd; color: #7d1a10 }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums } .wide { overflow-x: auto }
th, td { text-align: right; padding: .25rem .6rem; border-bottom: 1px solid #d9dee3 } th:first-child, td:first-child {
  text-align: left; overflow-wrap: anywhere }
td.wrong { color: #b3261e; font-weight: 600 }
svg { width: 100%; height: auto; background: #f6f8fa; border-radius: .4rem }
.delivered { fill: #3a8f5c } .discarded { fill: #d9a400 } .missing { fill: #c0392b } .doubled { fill: #7d4cc2 }
.out_of_order { fill: #2f7dc1 } .axis { font-size: 11px; fill: #57606a }
.key span { display: inline-block; margin-right: 1rem } .key svg { width: .8rem; height: .8rem; border-radius: .15rem }
@media (prefers-color-scheme: dark) { body { background: #0d1117; color: #e6edf3 } svg { background: #161b22 }
  th, td { border-color: #30363d } .good { background: #12361f; color: #a6e9bd }
  .bad { background: #4a1713; color: #ffc9c3 }
  td.wrong { color: #ff8f86 } .axis { fill: #9aa4ae } }
"""


@dataclass(frozen=True, slots=True)
class _Bar:
    """A span of time of one topic."""

    start_ms: int
    counts: dict[str, int]


def write_report(balance: DataFrame, gaps: DataFrame, verdict: Verdict, output: Path) -> Path:
    """Write `report.html` into `output`; its path."""
    topics = _worst(balance)
    bars = _bars(balance, [str(row["topic"]) for row in topics])
    body = "".join(_topic(str(row["topic"]), bars.get(str(row["topic"]), [])) for row in topics)
    page = (
        "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>"
        f"<title>Audit</title><style>{_STYLE}</style><h1>Audit of {_now()}</h1>{_headline(verdict)}"
        f"{_table(topics)}{body}{_missing(gaps)}</html>"
    )
    output.mkdir(parents=True, exist_ok=True)
    file = output / "report.html"
    file.write_text(page)
    return file


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")


def _headline(verdict: Verdict) -> str:
    kind, word = ("good", "The books balance.") if verdict.good else ("bad", "The books do not balance.")
    return f"<p class='verdict {kind}'>{word} {escape(str(verdict))}</p>"


def _worst(balance: DataFrame) -> Sequence[dict[str, object]]:
    sums = balance.groupBy("topic").agg(
        *_expressions(*(f"sum({name}) as {name}" for name in ("sent", *_SERIES, "unknown"))),
        *_expressions("max(p50_ms) as p50_ms", "max(p99_ms) as p99_ms"),
    )
    wrong = _expressions("missing + doubled + out_of_order")[0]
    rows = sums.orderBy(wrong.desc(), sums["discarded"].desc(), sums["sent"].desc()).limit(_TOPICS)
    return [row.asDict() for row in rows.collect()]


def _expressions(*texts: str) -> list[Column]:
    from pyspark.sql import functions as F  # noqa: PLC0415, N812 - Spark's own convention

    return [F.expr(text) for text in texts]


def _bars(balance: DataFrame, topics: Sequence[str]) -> dict[str, list[_Bar]]:
    """At most `_BARS` spans for each topic."""
    chosen = balance.where(balance["topic"].isin(*topics))
    ends = chosen.selectExpr("min(minute) as first", "max(minute) as last").first()
    if ends is None or ends["first"] is None:
        return {}
    minutes = (ends["last"] - ends["first"]) // _MINUTE_MS + 1
    span = -(-minutes // _BARS) * _MINUTE_MS
    grouped = chosen.selectExpr(
        "topic", f"{ends['first']} + (minute - {ends['first']}) div {span} * {span} as at", *_SERIES
    )
    rows = grouped.groupBy("topic", "at").agg(*_expressions(*(f"sum({name}) as {name}" for name in _SERIES)))
    found: dict[str, list[_Bar]] = {}
    for row in rows.orderBy("at").collect():
        found.setdefault(row["topic"], []).append(_Bar(row["at"], {name: row[name] for name in _SERIES}))
    return found


def _table(topics: Iterable[dict[str, object]]) -> str:
    head = "".join(f"<th>{name.replace('_', ' ')}" for name in _COLUMNS)
    rows = "".join(
        f"<tr><td>{escape(str(row['topic']))}{''.join(_cell(name, row[name]) for name in _COLUMNS)}" for row in topics
    )
    return f"<div class=wide><table><tr><th>topic{head}{rows}</table></div>"


def _cell(name: str, value: object) -> str:
    wrong = " class=wrong" if name in {"missing", "doubled", "out_of_order"} and value else ""
    return f"<td{wrong}>{f'{value:,}' if isinstance(value, int) else 'n/a'}"


def _topic(name: str, bars: Sequence[_Bar]) -> str:
    return f"<h2>{escape(name)}</h2>{_chart(bars)}{_KEY}"


_KEY: Final = (
    "<p class=key>"
    + "".join(
        f"<span><svg viewBox='0 0 1 1'><rect class={name} width=1 height=1 /></svg> {name.replace('_', ' ')}</span>"
        for name in _SERIES
    )
    + "</p>"
)


def _chart(bars: Sequence[_Bar]) -> str:
    """Stacked bars over time."""
    if not bars:
        return "<p>Nothing.</p>"
    first, last = bars[0].start_ms, bars[-1].start_ms
    step = min((b.start_ms - a.start_ms for a, b in pairwise(bars)), default=_MINUTE_MS)
    slots = (last - first) // step + 1
    tallest = max(1, *(sum(bar.counts.values()) for bar in bars))
    width = 900 / max(slots, 10)
    parts = [_stack(bar, (bar.start_ms - first) // step * width + 50, width, 180 / tallest) for bar in bars]
    labels = (
        f"<text class=axis x=50 y=215>{_moment(first)}</text>"
        f"<text class=axis x=950 y=215 text-anchor=end>{_moment(last)}</text>"
        f"<text class=axis x=45 y=22 text-anchor=end>{tallest:,}</text>"
    )
    return f"<svg viewBox='0 0 960 225' role=img aria-label='messages over time'>{''.join(parts)}{labels}</svg>"


def _stack(bar: _Bar, x: float, width: float, scale: float) -> str:
    parts, y = [], 195.0
    for name in _SERIES:
        if bar.counts[name]:
            height = max(bar.counts[name] * scale, 1.0)
            y -= height
            title = f"{_moment(bar.start_ms)}: {bar.counts[name]:,} {name.replace('_', ' ')}"
            parts.append(
                f"<rect class={name} x={x:.1f} y={y:.1f} width={max(width - 1, 1):.1f} height={height:.1f}>"
                f"<title>{title}</title></rect>"
            )
    return "".join(parts)


def _moment(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M")


def _missing(gaps: DataFrame) -> str:
    rows = gaps.orderBy("writer", "first").limit(_GAPS).collect()
    if not rows:
        return ""
    lines = "".join(
        f"<tr><td>{escape(row['writer'])}<td>{row['attempt']}<td>{row['first']:,}<td>{row['last']:,}" for row in rows
    )
    return (
        "<h2>Sequence numbers that are not in Kafka</h2><p>Discarded messages are among them.</p>"
        f"<table><tr><th>writer<th>attempt<th>first<th>last{lines}</table>"
    )
