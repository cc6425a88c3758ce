"""Collect the status of many daemons over time as a table, and rank the daemons, the worst first.

In each round, Spark's tasks fetch the status pages of all daemons. The pages of one daemon in one round become some
dozens of rows, a *sample* (`SAMPLE_COLUMNS`). The sample of an unreachable daemon is one row with the reason. Each
round appends its samples to the table OUTPUT/samples.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from http import HTTPStatus
from http.client import HTTPException
from threading import Event
from typing import TYPE_CHECKING, Any, Final
from urllib.error import HTTPError
from urllib.request import urlopen

from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

from bruce_mp.spark.errors import OptionError
from bruce_mp.spark.expressions import expressions
from bruce_mp.spark.pipelines.progress import Progress
from bruce_mp.spark.storage import absolute_path

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession

__all__ = ["FleetRanking", "collect_fleet", "fetch_rows", "rank_daemons", "read_hosts"]

SAMPLE_COLUMNS: Final = "since bigint, kind string, topic string, name string, period bigint, value bigint"
"""The columns of a sample's rows; `kind` decides the meaning of `name` and `value`:

    unreachable  name: the reason
    problem      name: a sentence of /healthz
    counter      name: received, delivered, discarded REASON or held STAGE (see /books); value: the current count
    queue        topic; value: messages held by the router and the dispatchers
    discards     topic; name: the reason; period: the report's id; value: discards up to now in this period (see
                 /discards)

`since` is the start of the daemon in seconds since the epoch; 0 if unreachable. Each start numbers periods anew.
"""
_FETCH_TIMEOUT_S: Final = 10
_MAX_RANKED_ROWS: Final = 20  # of each printed table
_ABANDONED: Final = "ABANDONED_ATTEMPT"
_NO_TOPIC: Final = "(no topic)"
"""The topic of discards that reports do not list by topic, such as discards of malformed messages."""
_SampleRow = tuple[int, str, str | None, str | None, int | None, int | None]
"""The values of `SAMPLE_COLUMNS`."""


def read_hosts(names: Sequence[str], file: str | None) -> list[str]:
    """Return the addresses in `names`, and in the lines of `file`, in which # begins a comment."""
    hosts = list(names)
    if file is not None:
        try:
            with open(file) as lines:  # noqa: PTH123 - the user's path, unchanged
                hosts += [text for line in lines if (text := line.partition("#")[0].strip())]
        except (OSError, UnicodeDecodeError) as error:
            raise OptionError(f"{file} cannot be read: {getattr(error, 'strerror', None) or error}.") from error
    if not hosts:
        raise OptionError("No daemons to ask: name their http.listen addresses (HOST:PORT), or give a file with them.")
    return list(dict.fromkeys(hosts))


def collect_fleet(
    spark: SparkSession,
    hosts: Sequence[str],
    output: str,
    *,
    rounds: int = 1,
    every_s: float = 60,
    stop: Event | None = None,
    progress: Progress | None = None,
) -> DataFrame:
    """Sample all daemons `rounds` times, and return the table, in which samples of earlier calls remain.

    A round begins every `every_s`; no more rounds begin when `stop` is set. The columns are `at_ms` (the start of the
    round, in ms since the epoch), `daemon` and `SAMPLE_COLUMNS`.
    """
    display, stopped = progress or Progress("fleet"), stop or Event()
    samples_path = f"{absolute_path(output)}/samples"
    # Spark may call a deterministic function again for the same row.
    fetch = F.udf(fetch_rows, f"array<struct<{SAMPLE_COLUMNS}>>", useArrow=False).asNondeterministic()
    for round_number in range(1, rounds + 1):
        started_s = time.time()
        daemons = spark.createDataFrame([(host,) for host in hosts], "daemon string").repartition(len(hosts))
        sample_rows = daemons.select(F.lit(int(started_s * 1000)).alias("at_ms"), "daemon", F.inline(fetch("daemon")))
        sample_rows.repartition(1).write.mode("append").parquet(samples_path)
        display.show(f"round {round_number} of {rounds}, {len(hosts)} daemons")
        if round_number < rounds and stopped.wait(max(started_s + every_s - time.time(), 0)):
            break
    return spark.read.parquet(samples_path)


# --- in tasks --------------------------------------------------------------------------------------------------------
def fetch_rows(daemon: str) -> list[_SampleRow]:
    """Return the sample of a daemon, which is given as HOST:PORT or a URL."""
    base_url = daemon if "://" in daemon else f"http://{daemon}"
    try:
        pages = {page: _fetch_page(f"{base_url.rstrip('/')}{path}") for page, path in _PAGES.items()}
        since = int(pages["books"]["since"])
        return [(since, *row) for read in _READERS for row in read(pages)]
    except (OSError, HTTPException, ValueError, LookupError, TypeError, AttributeError) as error:
        # A page of another program may have any shape.
        return [(0, "unreachable", None, f"{type(error).__name__}: {error}", None, None)]


_PAGES: Final = {
    "books": "/books/json", "queues": "/queues/json", "discards": "/discards/json", "health": "/healthz"
}  # fmt: skip


def _fetch_page(url: str) -> Mapping[str, Any]:
    try:
        with urlopen(url, timeout=_FETCH_TIMEOUT_S) as answer:  # noqa: S310 - the user's address
            return _parse_object(answer.read())
    except HTTPError as error:
        if error.code != HTTPStatus.SERVICE_UNAVAILABLE:  # the status of /healthz of an unhealthy daemon
            raise
        return _parse_object(error.read())


def _parse_object(data: bytes) -> Mapping[str, Any]:
    page = json.loads(data)
    if not isinstance(page, dict):
        raise ValueError("not the page of a daemon")  # noqa: TRY004 - the response is wrong, not the caller
    return page


def _read_counters(pages: Mapping[str, Any]) -> Iterator[tuple[Any, ...]]:
    books = pages["books"]
    for name in ("received", "delivered"):
        yield "counter", None, name, None, books[name]
    for group in ("discarded", "held"):
        for name, count in books[group].items():
            yield "counter", None, f"{group} {name}", None, count


def _read_queues(pages: Mapping[str, Any]) -> Iterator[tuple[Any, ...]]:
    for entry in pages["queues"]["sending"]:
        yield "queue", entry["topic"], None, None, entry["batch"] + entry["send_wait"] + entry["ack_wait"]


def _read_discards(pages: Mapping[str, Any]) -> Iterator[tuple[Any, ...]]:
    page = pages["discards"]
    for report in (page["unfinished_report"], *page.get("finished_reports", ())):
        for entry in report["discard_topic"]:
            for reason, count in entry["reasons"].items():
                yield "discards", entry["topic"], reason, report["id"], count


def _read_problems(pages: Mapping[str, Any]) -> Iterator[tuple[Any, ...]]:
    for text in pages["health"]["problems"]:
        yield "problem", None, str(text), None, None


_READERS: Final = (_read_counters, _read_queues, _read_discards, _read_problems)


# --- the ranking -----------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class FleetRanking:
    """The worst daemons, topics and discard reasons, at most `_MAX_RANKED_ROWS` of each, the worst first."""

    daemons: Sequence[Mapping[str, Any]]
    """daemon, discarded, abandoned, held (the most in a sample), unreachable (number of rounds), problem (the last)"""
    topics: Sequence[Mapping[str, Any]]
    """topic, discarded, held (the most in a sample of one daemon)"""
    reasons: Sequence[Mapping[str, Any]]
    """reason, discarded, daemons (number of daemons that discarded messages for this reason)"""

    def __str__(self) -> str:
        return "\n\n".join(
            f"{title}\n{_format_table(rows)}"
            for title, rows in (("Daemons", self.daemons), ("Topics", self.topics), ("Reasons", self.reasons))
        )


def rank_daemons(samples: DataFrame) -> FleetRanking:
    """Rank the daemons, topics and reasons of the samples.

    A daemon's discards before its first sample do not count. Messages of abandoned attempts count separately, because
    their clients send them again. The sum of `discarded` is the same in all three tables, unless one has rows beyond
    the limit.
    """
    increases = _counter_increases(samples).cache()
    lost_increases = increases.where(f"reason <> '{_ABANDONED}'")
    try:
        daemons = _worst_rows(_by_daemon(samples, increases), ["discarded", "unreachable", "held"])
        topics = _worst_rows(_by_topic(samples, lost_increases), ["discarded", "held"])
        sums = expressions("sum(increase) as discarded", "count(distinct daemon) as daemons")
        reasons = lost_increases.where("increase > 0").groupBy("reason").agg(*sums)
        return FleetRanking(daemons, topics, _worst_rows(reasons.where("discarded > 0"), ["discarded"]))
    finally:
        increases.unpersist()


def _counter_increases(samples: DataFrame) -> DataFrame:
    """Return daemon, reason and increase: how much the daemon's counter of discards rose between two samples.

    A counter that is lower than in the sample before has started again at 0, in a new slab.
    """
    counters = samples.where("kind = 'counter'").selectExpr(
        "daemon",
        "dense_rank() over (partition by daemon order by at_ms) as sample",
        "substring(name, 11) as reason",  # after the 10 characters of 'discarded '
        "value",
        "startswith(name, 'discarded ') as is_discard",
    )
    # A daemon lists a reason only after the first discard for it. So a reason that the sample before lacks has risen
    # from 0, except in the daemon's first sample, because the discards in it may be old.
    by_reason = "over (partition by daemon, reason order by sample)"
    start = f"if(sample = 1, value, if(lag(sample) {by_reason} = sample - 1, lag(value) {by_reason}, 0))"
    with_start = counters.where("is_discard").selectExpr("*", f"{start} as start")
    return with_start.selectExpr("daemon", "reason", "if(value >= start, value - start, value) as increase")


def _by_daemon(samples: DataFrame, increases: DataFrame) -> DataFrame:
    stages = samples.where("kind = 'counter' and startswith(name, 'held ')").groupBy("daemon", "at_ms")
    held = stages.agg(*expressions("sum(value) as held")).groupBy("daemon").agg(*expressions("max(held) as held"))
    failures = samples.groupBy("daemon").agg(
        *expressions(
            "count(*) filter (where kind = 'unreachable') as unreachable",
            "max_by(name, at_ms) filter (where kind in ('problem', 'unreachable')) as problem",
        )
    )
    discarded = increases.groupBy("daemon").agg(
        *expressions(
            f"coalesce(sum(increase) filter (where reason <> '{_ABANDONED}'), 0) as discarded",
            f"coalesce(sum(increase) filter (where reason = '{_ABANDONED}'), 0) as abandoned",
        )
    )
    joined = failures.join(held, "daemon", "left").join(discarded, "daemon", "left").fillna(0)
    return joined.select("daemon", "discarded", "abandoned", "held", "unreachable", "problem")


def _by_topic(samples: DataFrame, lost_increases: DataFrame) -> DataFrame:
    """Return for each topic the discards since each daemon's first sample, and the most messages that a daemon held.

    `lost_increases` are the `_counter_increases` without abandoned attempts.
    """
    discards = samples.where(f"kind = 'discards' and name <> '{_ABANDONED}'").join(_first_samples(samples), "daemon")
    period_increases = discards.groupBy("daemon", "since", "period", "topic", "name").agg(
        *expressions("max(value) - coalesce(max(value) filter (where at_ms = first_ms), 0) as increase")
    )
    with_topic = period_increases.groupBy("topic").agg(*expressions("sum(increase) as discarded"))
    # The counters have all discards, the reports only those with a topic.
    without_topic = (
        lost_increases.selectExpr("increase")
        .unionByName(with_topic.selectExpr("-discarded as increase"))
        .agg(*expressions(f"'{_NO_TOPIC}' as topic", "sum(increase) as discarded"))
        .where("discarded > 0")
    )
    held = samples.where("kind = 'queue'").groupBy("topic").agg(*expressions("max(value) as held"))
    return with_topic.unionByName(without_topic).join(held, "topic", "full").fillna(0)


def _first_samples(samples: DataFrame) -> DataFrame:
    """Return each daemon and `first_ms`, the start of the first round in which it answered."""
    return samples.groupBy("daemon").agg(*expressions("min(at_ms) filter (where kind = 'counter') as first_ms"))


def _worst_rows(table: DataFrame, order: Sequence[str]) -> list[dict[str, Any]]:
    """Return the rows with the highest values in the columns `order`, compared in this order."""
    rows = table.orderBy(*(table[name].desc() for name in order), *table.columns[:1]).limit(_MAX_RANKED_ROWS)
    return [row.asDict() for row in rows.collect()]


def _format_table(rows: Sequence[Mapping[str, Any]]) -> str:
    if not rows:
        return "  none"
    texts = ([f"{each:,}" if isinstance(each, int) else str(each or "") for each in row.values()] for row in rows)
    lines = [list(rows[0]), *texts]
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    numeric = [isinstance(value, int) for value in rows[0].values()]
    return "\n".join(
        ("  " + "  ".join(
            text.rjust(width) if right else text.ljust(width)
            for text, width, right in zip(line, widths, numeric, strict=True)
        )).rstrip()
        for line in lines
    )  # fmt: skip
