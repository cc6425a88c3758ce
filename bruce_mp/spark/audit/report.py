"""Write the audit's report, one HTML page without external files: the verdict first, then each topic over time.

The amount of data collected from Spark is bounded: at most 120 bars for each topic, the reasons with the most discards,
and the first ranges of messages with a problem.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from html import escape
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

from pyarrow.fs import FileType

from bruce_mp.spark.audit.chart import PROBLEMS, STYLE, VOLUMES, Bar, draw_chart
from bruce_mp.spark.audit.tables import AuditTables
from bruce_mp.spark.expressions import expressions
from bruce_mp.spark.storage import open_directory

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from pyspark.sql import DataFrame

    from bruce_mp.spark.audit.balance import AuditBooks

    _Row = Mapping[str, Any]

__all__ = [
    "COUNTS",
    "AuditVerdict",
    "Summary",
    "collect_reasons",
    "describe_unaudited",
    "describe_unconfirmed",
    "remove_report",
    "summarize",
    "write_report",
]

_MAX_TOPICS: Final = 50
_MAX_RANGES: Final = 100
_MAX_REASONS: Final = 20
"""Maximum numbers of topics, of ranges with a problem, and of reasons in the report; the audit's tables have all."""
_MAX_UNAUDITED: Final = 5
"""Maximum number of topics in the line about topics that are not audited."""
_MAX_HOSTS: Final = 5
"""Maximum number of hosts in the line about missing messages that Kafka had not confirmed."""
_NOTHING_SENT: Final = (
    "the ledgers have no messages of these topics and minutes: check that --ledger is the directory of the sink's "
    "option 'ledger'"
)
_IS_LISTED_LAST: Final = "problem in ('unknown', 'discarded')"
_CHART_COUNTS: Final = (*VOLUMES, *PROBLEMS)
COUNTS: Final = ("sent", *_CHART_COUNTS, "unknown")
"""Columns of the balance, and fields of `AuditVerdict`, with numbers of messages."""
_TOPIC_COLUMNS: Final = (*COUNTS, "p50_ms", "p99_ms")
_BARS: Final = {
    # Without a partition clause Spark logs a warning.
    "ends": """
        select *, min(minute) over everything as first, max(minute) over everything as last from {balance}
        window everything as (partition by true)
    """,
    "sized": "select *, ((last - first) div 60000 + 120) div 120 * 60000 as length_ms from {ends}",
    "placed": "select *, (minute - first) div length_ms as bar_number from {sized}",
    "sums": """
        select topic, bar_number, first + bar_number * length_ms as start_ms, length_ms,
          sum(sent) as sent, sum(delivered) as delivered, sum(discarded) as discarded, sum(missing) as missing,
          sum(doubled) as doubled, sum(out_of_order) as out_of_order, sum(unknown) as unknown
        from {placed} group by topic, bar_number, first, length_ms
    """,
    "with_latencies": "select * from {sums} left join {latencies} using (topic)",
}
"""At most 120 bars for each topic, with the latencies of the whole topic.

All bars cover the same number of minutes: the minutes of the whole balance, divided by 120 and rounded up. Bar 0 of
every topic begins at the first minute of the balance.
"""
_UNAUDITED: Final = {
    "sums": """
        select topic, sum(rows) as rows, bool_or(size(discarded) > 0) as has_discards from {entries} group by topic
    """,
    "unaudited": """
        select *, sum(rows) over everything as message_count, count(*) over everything as topic_count,
          bool_or(has_discards) over everything as has_any_discards
        from {sums} window everything as (partition by true)
    """,
}
"""A row for each topic that is in the ledgers, but not audited.

`message_count`, `topic_count` and `has_any_discards` are about all these topics.
"""
_UNCONFIRMED: Final = {
    "entries": """
        select writer, topic, minute, absent - stray as missing, is_open from {strays}
        union all select writer, topic, minute, -count, null from {by_writers}
        union all select writer, topic, minute, -count, null from {by_lines}
    """,
    "open": """
        select writer, topic, minute, sum(missing) as missing
        from {entries} group by writer, topic, minute having bool_or(is_open) and sum(missing) > 0
    """,
    "hosts": "select writer, topic, collect_set(host) as hosts from {ledger} where delivered is null group by all",
    "unconfirmed": "select minute, missing, hosts from {open} join {hosts} using (writer, topic)",
}
"""minute, missing, hosts: the missing messages of tasks without a final answer, and the hosts of these tasks."""
_EXTRA_COUNTS: Final = ("doubled", "out_of_order", "unknown")
"""Counts that are not part of the equation sent = delivered + discarded + missing."""
_HEADINGS: Final = {"p50_ms": "latency p50", "p99_ms": "p99", "unknown": "unknown writers"}
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
class AuditVerdict:
    """The numbers of messages, over all topics and minutes.

    `unknown` counts messages of writers that are in no ledger. `unknown_is_bad` is the field of `Audit`. `topic_lines`
    has a text for each topic with problems. `notes` are texts about possible causes, and about what is not audited.
    """

    sent: int
    delivered: int
    discarded: int
    missing: int
    doubled: int
    out_of_order: int
    unknown: int
    unknown_is_bad: bool = False
    topic_lines: tuple[str, ...] = field(default=(), compare=False)
    notes: tuple[str, ...] = field(default=(), compare=False)

    @property
    def lines(self) -> tuple[str, ...]:
        return *self.topic_lines, *self.notes

    @property
    def has_problems(self) -> bool:
        """Return True if the table `problems` has rows, which may also be about discarded or unknown messages."""
        return bool(self.missing or self.doubled or self.out_of_order or self.discarded or self.unknown)

    @property
    def is_good(self) -> bool:
        """Return True if no message is missing, doubled or out of order, or unknown if `unknown_is_bad` is True.

        Discarded messages do not make the verdict bad, because the discards are reported.
        """
        return not (self.missing or self.doubled or self.out_of_order or (self.unknown_is_bad and self.unknown))

    def __str__(self) -> str:
        equation = _format_equation(self.sent, self.delivered, self.discarded, self.missing)
        return (
            f"{equation}; doubled {self.doubled:,}, out of order {self.out_of_order:,}, from unknown writers "
            f"{self.unknown:,}"
        )


def _format_equation(sent: int, delivered: int, discarded: int, missing: int) -> str:
    return f"sent {sent:,} = delivered {delivered:,} + discarded {discarded:,} + missing {missing:,}"


@dataclass(frozen=True, slots=True)
class Summary:
    """The balance, summed up for the report.

    `topic_rows` has the sums and latencies of each topic, the worst topic first; `bars` has the bars of each topic.
    """

    topic_rows: Sequence[_Row]
    bars: Mapping[str, Sequence[Bar]]

    def total(self, name: str) -> int:
        """Return the sum of a column over all topics."""
        return sum(row[name] for row in self.topic_rows)

    def describe(self, absent_topics: Collection[str], reasons: Sequence[_Row]) -> tuple[str, ...]:
        """Return a line for each topic with problems or discards, and for each of the `absent_topics`.

        A line before them says so if nothing was sent. `reasons` is the result of `collect_reasons`.
        """
        kinds = (*PROBLEMS, "discarded", "unknown")
        rows = [row for row in self.topic_rows if row["topic"] in absent_topics or any(row[kind] for kind in kinds)]
        omitted_count = len(rows) - _MAX_TOPICS
        lines = [_describe_topic(row, absent_topics, reasons) for row in rows[:_MAX_TOPICS]]
        return (
            *([_NOTHING_SENT] if not self.total("sent") else ()),
            *lines,
            *([f"{omitted_count:,} more topics are in the table 'balance'"] if omitted_count > 0 else ()),
        )


def _describe_topic(row: _Row, absent_topics: Collection[str], reasons: Sequence[_Row]) -> str:
    equation = _format_equation(*(row[name] for name in ("sent", "delivered", "discarded", "missing")))
    extra = [f"{_HEADINGS.get(name, name.replace('_', ' '))} {row[name]:,}" for name in _EXTRA_COUNTS if row[name]]
    discards = ", ".join(f"{each['reason']} {each['messages']:,}" for each in reasons if each["topic"] == row["topic"])
    parts = [*(["the brokers have no such topic"] if row["topic"] in absent_topics else ()), equation, *extra]
    return f"{row['topic']}: {'; '.join(parts)}{f' (discarded: {discards})' if discards else ''}"


def describe_unaudited(entries: DataFrame) -> tuple[str, ...]:
    """Return a line about `entries`, the ledger entries of topics that are not audited; no line if there are none."""
    with AuditTables(entries.sparkSession) as tables:
        tables.register("entries", entries)
        rows = tables.query(_UNAUDITED).orderBy("rows", ascending=False).limit(_MAX_UNAUDITED).collect()
    if not rows:
        return ()
    names = ", ".join(f"{row['topic']} {row['rows']:,}" for row in rows)
    omitted_count = rows[0]["topic_count"] - len(rows)
    rest = f" and {omitted_count:,} more topics" if omitted_count else ""
    hint = (
        "; the daemons discarded messages of tasks that wrote these topics: only with --discards can the audit tell "
        "such messages of audited topics from missing ones"
        if rows[0]["has_any_discards"]
        else ""
    )
    text = f"the ledgers also have {rows[0]['message_count']:,} messages of topics that are not audited: {names}"
    return (f"{text}{rest}{hint}",)


def describe_unconfirmed(books: AuditBooks, minute_condition: str) -> tuple[str, ...]:
    """Return a line about the missing messages that a daemon may have held when it was last asked, if there are any.

    Messages must be missing. The audit cannot know if a daemon still has them, or lost them with its slab.
    """
    missing = books.tables.query(_UNCONFIRMED).where(minute_condition)
    totals = ("sum(missing) as missing", "array_sort(array_distinct(flatten(collect_set(hosts)))) as hosts")
    row = missing.agg(*expressions(*totals)).first()
    if row is None or not row["missing"]:
        return ()
    omitted_count = len(row["hosts"]) - _MAX_HOSTS
    rest = f" and {omitted_count:,} more hosts" if omitted_count > 0 else ""
    text = (
        f"{row['missing']:,} missing messages are of tasks that ended before Kafka had confirmed them (acks=received "
        f"or none, or a killed daemon), on {', '.join(row['hosts'][:_MAX_HOSTS])}{rest}: a daemon there may still hold "
        "them, or they were lost with its slab, as in /dev/shm at a reboot"
    )
    return (text,)


def summarize(balance: DataFrame, latencies: DataFrame) -> Summary:
    """Collect the bars and sums of each topic; `latencies` has a row with the latency percentiles of each topic."""
    with AuditTables(balance.sparkSession) as tables:
        tables.register("balance", balance)
        tables.register("latencies", latencies)
        rows = [row.asDict() for row in tables.query(_BARS).collect()]
    bars: dict[str, list[Bar]] = {}
    topics: dict[str, dict[str, Any]] = {}
    for row in sorted(rows, key=itemgetter("bar_number")):
        bar = Bar(row["bar_number"], row["start_ms"], row["length_ms"], {name: row[name] for name in _CHART_COUNTS})
        bars.setdefault(row["topic"], []).append(bar)
        # All rows of a topic have the same latencies, those of the whole topic. So only the counts are added up.
        sums = topics.setdefault(row["topic"], {**row, **dict.fromkeys(COUNTS, 0)})
        sums.update({name: sums[name] + row[name] for name in COUNTS})
    return Summary(sorted(topics.values(), key=_severity), bars)


def _severity(row: _Row) -> tuple[int, int, int, str]:
    """Return the sort key of a topic; topics with the most problems come first."""
    return -sum(row[name] for name in PROBLEMS), -row["discarded"], -row["sent"], row["topic"]


def write_report(
    summary: Summary, reasons: Sequence[_Row], problems: DataFrame, verdict: AuditVerdict, output: str
) -> str:
    """Write `report.html` into the directory `output`, and return the path of the file.

    `summary` and `reasons` are the results of `summarize` and `collect_reasons`, `problems` that of `find_problems`.
    """
    page = _build_page(summary, reasons, _collect_problems(problems) if verdict.has_problems else [], verdict)
    system, root = open_directory(output)
    with system.open_output_stream(f"{root}/report.html") as file:
        file.write(page.encode())
    return f"{root}/report.html"


def remove_report(output: str) -> None:
    """Remove the report of an earlier audit, so that no old report remains if the present audit fails."""
    system, root = open_directory(output)
    if system.get_file_info(f"{root}/report.html").type is FileType.File:
        system.delete_file(f"{root}/report.html")


# --- collected from Spark --------------------------------------------------------------------------------------------
def collect_reasons(balance: DataFrame) -> Sequence[_Row]:
    """Return the pairs of topic and reason with the most discards; `messages` is the number of discards."""
    flat = balance.selectExpr("topic", "explode(reasons) as (reason, count)").groupBy("reason", "topic")
    rows = flat.agg(*expressions("sum(count) as messages")).orderBy("messages", ascending=False)
    return [row.asDict() for row in rows.limit(_MAX_REASONS).collect()]


def _collect_problems(problems: DataFrame) -> Sequence[_Row]:
    ordered = problems.orderBy(*expressions(_IS_LISTED_LAST, "problem", "topic", "writer", "first"))
    return [row.asDict() for row in ordered.limit(_MAX_RANGES).collect()]


# --- the page --------------------------------------------------------------------------------------------------------
def _build_page(summary: Summary, reasons: Sequence[_Row], problems: Sequence[_Row], verdict: AuditVerdict) -> str:
    topics = summary.topic_rows[:_MAX_TOPICS]
    charts = "".join(f"<h2>{escape(row['topic'])}</h2>{draw_chart(summary.bars[row['topic']])}" for row in topics)
    return (
        "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>"
        f"<title>Audit</title><style>{_PAGE_STYLE}{STYLE}</style>"
        f"<h1>Audit of {datetime.now(UTC):%Y-%m-%d %H:%M} UTC</h1>{_headline(verdict)}"
        f"{''.join(f'<p class=note>{escape(note)}.' for note in verdict.notes)}"
        f"{_topics_table(topics)}{charts}{_discards_table(reasons)}{_problems_table(problems)}</html>\n"
    )


def _headline(verdict: AuditVerdict) -> str:
    css_class, text = ("good", "The books balance.") if verdict.is_good else ("bad", "The books do not balance.")
    return f"<p class='verdict {css_class}'><strong>{text}</strong> {escape(str(verdict))}</p>"


def _topics_table(rows: Iterable[_Row]) -> str:
    head = "".join(f"<th>{_HEADINGS.get(name, name.replace('_', ' '))}" for name in _TOPIC_COLUMNS)
    lines = "".join(
        f"<tr><td class=text>{escape(str(row['topic']))}{''.join(_cell(name, row[name]) for name in _TOPIC_COLUMNS)}"
        for row in rows
    )
    return f"<div class=wide><table><tr><th class=text>topic{head}{lines}</table></div>"


def _cell(name: str, value: object) -> str:
    wrong = " class=wrong" if name in PROBLEMS and value else ""
    unit = " ms" if name in _MILLISECONDS else ""
    return f"<td{wrong}>{f'{value:,}{unit}' if isinstance(value, int) else '&ndash;'}"


def _discards_table(rows: Sequence[_Row]) -> str:
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


def _problems_table(rows: Sequence[_Row]) -> str:
    if not rows:
        return ""
    lines = "".join(
        f"<tr><td class=text>{escape(str(row['problem']))}<td class=text>{escape(str(row['topic'] or ''))}"
        f"<td>{_format_number(row['partition'])}<td>{_format_range(row['from_offset'], row['to_offset'])}"
        f"<td class=text>{escape(str(row['writer'] or ''))}<td>{_format_range(row['first'], row['last'])}"
        f"<td>{_format_time(row['from_ms'])}<td>{row['messages']:,}"
        for row in rows
    )
    return (
        "<h2>Which messages</h2><p class=note>A writer is query/batch/partition; its messages are numbered from 0. "
        "Discards are reported without these numbers, so the problem of a range of absent messages names all "
        f"possibilities. These are the first {_MAX_RANGES} ranges; the table <code>problems</code> has all.</p>"
        "<div class=wide><table><tr><th class=text>problem<th class=text>topic<th>partition<th>offsets"
        f"<th class=text>writer<th>numbers<th>from<th>messages{lines}</table></div>"
    )


def _format_number(value: int | None) -> str:
    return "&ndash;" if value is None else f"{value:,}"


def _format_range(first: int | None, last: int | None) -> str:
    return _format_number(first) if first == last else f"{_format_number(first)}&ndash;{_format_number(last)}"


def _format_time(ms: int | None) -> str:
    return "&ndash;" if ms is None else datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
