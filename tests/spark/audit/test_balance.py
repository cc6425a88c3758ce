"""The balance counts each message in Kafka and each discard once, whatever its writers and topics."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from random import Random
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pytest

from bruce_mp.spark.audit.balance import fill_books
from bruce_mp.spark.audit.facts import SCHEMA
from bruce_mp.spark.audit.inputs import DISCARD_COLUMNS, discards_of, read_ledger
from bruce_mp.spark.audit.problems import find_problems
from bruce_mp.spark.audit.run import _SMALL_SETTINGS
from bruce_mp.spark.ledger import MINUTE_MS, TaskAttempt, TaskResult, write_ledger
from bruce_mp.spark.session import temporary_settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from pyspark.sql import Row, SparkSession

M1: Final = 1_700_000_040_000
M2: Final = M1 + MINUTE_MS
DOUBT: Final = "POSSIBLY_DELIVERED"
OTHER: Final = "other"
COUNTS: Final = ("sent", "delivered", "discarded", "missing")
Balance = dict[str, dict[str, int]]
"""By topic: the counts that are not 0."""


@dataclass
class Books:
    """Facts, ledger and discard lines; a query is one task."""

    facts: list[tuple[Any, ...]] = field(default_factory=list)
    ledger: list[TaskResult] = field(default_factory=list)
    lines: list[tuple[str | None, int | None, int | None, str, str]] = field(default_factory=list)
    """Writer (None: a line without headers), attempt, number (both None: no stamp), topic and reason."""

    def arrive(self, query: str | None, topic: str, numbers: Iterable[int], ms: int = M1, attempt: int = 0) -> None:
        """Add a fact for each message; None: messages without a stamp."""
        for number in numbers:
            place = len(self.facts)
            stamp = (None,) * 6 if query is None else (f"{query}/-1/0", attempt, ms, place - number, number, number)
            writer, attempt_or_none, sent, shift, first, last = stamp
            minute = ms - ms % MINUTE_MS
            row = (topic, 0, writer, attempt_or_none, minute, sent, None, shift, first, last, 1, place, place)
            self.facts.append(row)

    def enter(
        self, query: str, rows: Mapping[tuple[str, int], int], acks: str = "delivered", attempt: int = 0, **more: Any
    ) -> None:
        entry = {"stamped": True, "delivered": 0 if acks == "delivered" else None, **more}
        self.ledger.append(TaskResult(TaskAttempt(query, -1, 0, attempt), "host", rows, acks, **entry))

    def audit(self, spark: SparkSession, directory: Path) -> tuple[Balance, list[Row]]:
        """Audit all topics but those that begin with OTHER, and return their balance and problems."""
        write_ledger(f"{directory}/ledger", self.ledger)
        topics = sorted({topic for result in self.ledger for topic, _ in result.rows if not topic.startswith(OTHER)})
        facts = spark.createDataFrame(self.facts, SCHEMA).coalesce(1)
        columns = "writer string, attempt int, number long, topic string, reason string"
        lines = spark.createDataFrame(self.lines, columns).coalesce(1)
        ledger = read_ledger(spark, [f"{directory}/ledger"], topics).coalesce(1)
        sums: dict[str, Counter[str]] = {}
        with temporary_settings(spark, _SMALL_SETTINGS), fill_books(facts, ledger, lines) as books:
            rows = books.balance.collect()
            for row in rows:
                assert min(row[name] for name in COUNTS) >= 0
                assert sum((row["reasons"] or {}).values()) == row["discarded"]
                sums.setdefault(row["topic"], Counter()).update({name: row[name] for name in (*COUNTS, "unknown")})
            problems = find_problems(books, spark.createDataFrame(rows, books.balance.schema), "true").collect()
        balance = {topic: {name: count for name, count in counts.items() if count} for topic, counts in sums.items()}
        return balance, problems


@dataclass
class Scene:
    """A part of common books: no other scene has its topics and queries."""

    name: str
    books: Books

    def topic(self, name: str) -> str:
        return f"{name} of {self.name}"

    def arrive(self, query: str | None, topic: str, numbers: Iterable[int], ms: int = M1, attempt: int = 0) -> None:
        self.books.arrive(query and self.topic(query), self.topic(topic), numbers, ms, attempt)

    def enter(
        self, query: str, rows: Mapping[tuple[str, int], int], acks: str = "delivered", attempt: int = 0, **more: Any
    ) -> None:
        own = {(self.topic(topic), minute): count for (topic, minute), count in rows.items()}
        self.books.enter(self.topic(query), own, acks, attempt, **more)

    def add_lines(
        self, topic: str, numbers: Iterable[int], reason: str = "NO_MEM", query: str | None = None, attempt: int = 0
    ) -> None:
        """Add lines with the stamp of `query`; those of the query `plain` have only other headers, and of None none."""
        for number in numbers:
            stamp = (
                (f"{self.topic(query)}/-1/0", attempt, number) if query and query != "plain" else (query, None, None)
            )
            self.books.lines.append((*stamp, self.topic(topic), reason))


SCENES: Final[dict[str, Callable[[Scene], Balance]]] = {}
"""By name: a function that adds messages to the books, and returns the balance that the audit has to find."""


def scene(fill: Callable[..., Balance]) -> Callable[..., Balance]:
    SCENES[fill.__name__] = fill
    return fill


def scenes(**values: Iterable[Any]) -> Callable[[Callable[..., Balance]], Callable[..., Balance]]:
    """Make a scene of each combination of arguments."""

    def register(fill: Callable[..., Balance]) -> Callable[..., Balance]:
        for arguments in product(*values.values()):
            SCENES[f"{fill.__name__} {arguments}"] = partial(fill, **dict(zip(values, arguments, strict=True)))
        return fill

    return register


@scenes(acks=["none", "received", "delivered"])
def no_message_of_another_topic_is_a_stray(books: Scene, acks: str) -> Balance:
    books.enter("q", {("a", M1): 5, ("b", M1): 5}, acks)
    books.arrive("q", "a", [0, 1, 4])
    books.arrive("q", "b", range(5, 10))
    return {"a": {"sent": 5, "delivered": 3, "missing": 2}, "b": {"sent": 5, "delivered": 5}}


@scenes(acks=["none", "delivered"])
def strays_of_an_earlier_attempt_count_in_their_topic(books: Scene, acks: str) -> Balance:
    books.enter("q", {("a", M2): 3, ("b", M2): 3}, acks, attempt=1)
    books.arrive("q", "b", [3, 4, 5], M1)
    books.arrive("q", "a", [0], M1)
    books.arrive("q", "a", [0, 1], M2, attempt=1)
    books.enter("other", {("a", M1): 1}, acks)
    return {"a": {"sent": 4, "delivered": 2, "missing": 2}, "b": {"sent": 3, "delivered": 3}}


@scene
def copies_of_one_writer_do_not_cancel_strays_of_another(books: Scene) -> Balance:
    for attempt in (0, 1):
        books.enter("twice", {("a", M1): 3}, "none", attempt=attempt)
        books.arrive("twice", "a", range(3), attempt=attempt)
    books.enter("moved", {("a", M2): 3}, "none")
    books.arrive("moved", "a", range(3), M1)
    return {"a": {"sent": 9, "delivered": 9}}


@scenes(stamped=[True, False], topic=["b", "a"])
def an_answer_that_counts_discards_outside_the_audit_explains_no_loss(
    books: Scene, stamped: bool, topic: str
) -> Balance:
    books.enter("q", {("a", M1): 5, (OTHER, M1): 5}, delivered=7, discarded={"NO_MEM": 3}, stamped=stamped)
    books.arrive("q" if stamped else None, "a", range(2))
    if topic == "b":
        books.add_lines("b", range(3))
        return {"a": {"sent": 5, "delivered": 2, "missing": 3}}
    books.add_lines("a", range(2))
    return {"a": {"sent": 5, "delivered": 2, "discarded": 2, "missing": 1}}


@scenes(stamped=[True, False], delivered=[2, None])
def a_line_that_an_answer_counts_explains_no_other_loss(books: Scene, stamped: bool, delivered: int | None) -> Balance:
    books.enter("q1", {("a", M1): 5}, delivered=delivered, discarded={"NO_MEM": 3}, stamped=stamped)
    books.arrive("q1" if stamped else None, "a", range(2))
    books.enter("q2", {("a", M1): 5}, "received", stamped=stamped)
    books.arrive("q2" if stamped else None, "a", range(2))
    books.add_lines("a", range(3))
    return {"a": {"sent": 10, "delivered": 4, "discarded": 3, "missing": 3}}


@scene
def lines_beyond_the_answers_explain_other_losses(books: Scene) -> Balance:
    books.enter("q1", {("a", M1): 5, ("b", M1): 5}, delivered=7, discarded={"NO_MEM": 3})
    books.arrive("q1", "a", range(5))
    books.arrive("q1", "b", range(5, 7))
    books.enter("q2", {("a", M1): 3, ("b", M1): 3}, "received")
    books.arrive("q2", "a", [0])
    books.arrive("q2", "b", [5])
    books.add_lines("a", range(2))
    books.add_lines("b", range(4))
    return {
        "a": {"sent": 8, "delivered": 6, "discarded": 2},
        "b": {"sent": 8, "delivered": 3, "discarded": 4, "missing": 1},
    }


@scene
def a_line_of_a_replayed_message_explains_no_other_loss(books: Scene) -> Balance:
    books.enter("q1", {("a", M1): 10}, delivered=0, discarded={"NO_MEM": 10})
    books.arrive("q1", "a", range(10))
    books.add_lines("a", range(10))
    books.enter("q2", {("a", M1): 6}, delivered=None)
    return {"a": {"sent": 16, "delivered": 10, "missing": 6}}


@scenes(author=["other", "plain", "answered", "lossy"])
def a_stamped_line_explains_a_loss_of_its_writer_only(books: Scene, author: str) -> Balance:
    books.enter("answered", {("a", M1): 5, ("b", M1): 5}, delivered=7, discarded={"NO_MEM": 3})
    books.arrive("answered", "a", range(5))
    books.arrive("answered", "b", range(5, 10))  # a replay delivered the three
    books.enter("lossy", {("a", M1): 5}, "received")
    books.arrive("lossy", "a", range(2))
    books.add_lines("a", range(2, 5), query=author)
    return {"a": {"sent": 10, "delivered": 7, ("discarded" if author == "lossy" else "missing"): 3}} | {
        "b": {"sent": 5, "delivered": 5}
    }


@scene
def a_stamped_line_explains_its_own_message_only(books: Scene) -> Balance:
    books.enter("q", {("a", M1): 8}, "received", attempt=1)
    books.arrive("q", "a", range(3), attempt=1)
    books.add_lines("a", [0, 1], DOUBT, "q", attempt=1)  # Kafka has them
    books.add_lines("a", [3, 4], query="q", attempt=0)  # of an attempt that failed
    books.add_lines("a", [5, 5], query="q", attempt=1)  # the second one of a copied file
    return {"a": {"sent": 8, "delivered": 3, "discarded": 1, "missing": 4}}


@scene
def a_line_without_a_stamp_explains_a_loss_of_plain_messages_only(books: Scene) -> Balance:
    books.enter("q1", {("a", M1): 5}, "received")
    books.enter("q2", {("a", M1): 5}, "received", stamped=False)
    books.add_lines("a", range(9), query="plain")
    return {"a": {"sent": 10, "discarded": 5, "missing": 5}}


@scene
def an_answer_counts_lines_with_and_without_headers_once(books: Scene) -> Balance:
    books.enter("q1", {("a", M1): 5}, "received", discarded={"NO_MEM": 4})
    books.add_lines("a", range(2), query="q1")
    books.enter("q2", {("a", M1): 5}, "received")
    books.add_lines("a", range(3))
    return {"a": {"sent": 10, "discarded": 5, "missing": 5}}


@scene
def a_line_explains_a_loss_with_or_without_a_stamp(books: Scene) -> Balance:
    books.enter("q1", {("a", M1): 5}, "received")
    books.enter("q2", {("a", M1): 5}, "received", stamped=False)
    books.arrive("q1", "a", range(2))
    books.arrive(None, "a", range(2))
    books.add_lines("a", range(3))
    return {"a": {"sent": 10, "delivered": 4, "discarded": 3, "missing": 3}}


@scenes(arrived=[7, 4])
def plain_answers_count_once_in_all_topics(books: Scene, arrived: int) -> Balance:
    books.enter("q1", {("a", M1): 5, ("b", M1): 5}, delivered=7, discarded={"NO_MEM": 3}, stamped=False)
    books.enter("q2", {("a", M1): 5, ("b", M1): 5}, delivered=7, discarded={"NO_MEM": 3}, stamped=False)
    books.arrive(None, "a", range(7))
    books.arrive(None, "b", range(arrived))
    missing = {"missing": 7 - arrived} if arrived < 7 else {}
    return {
        "a": {"sent": 10, "delivered": 7, "discarded": 3},
        "b": {"sent": 10, "delivered": arrived, "discarded": 3, **missing},
    }


@scene
def all_answers_about_plain_messages_of_a_query_count(books: Scene) -> Balance:
    for attempt, discards in enumerate((1, 2)):
        reasons = {"NO_MEM": discards}
        books.enter("q", {("a", M1): 5}, attempt=attempt, delivered=5 - discards, discarded=reasons, stamped=False)
    books.arrive(None, "a", range(7))
    return {"a": {"sent": 10, "delivered": 7, "discarded": 3}}


@scene
def a_copy_hides_no_loss(books: Scene) -> Balance:
    books.enter("q1", {("a", M1): 5})
    books.arrive("q1", "a", [0, 1, 1, 2])
    books.enter("q2", {("b", M2): 5}, attempt=1)
    books.arrive("q2", "b", [0, 1, 1, 2], M1)
    return {"a": {"sent": 5, "delivered": 3, "missing": 2}, "b": {"sent": 5, "delivered": 3, "missing": 2}}


@scene
def a_stray_explains_one_loss(books: Scene) -> Balance:
    books.enter("q", {("a", M1): 3, ("a", M2): 3})
    books.arrive("q", "a", [0], M1 - MINUTE_MS)
    return {"a": {"sent": 6, "delivered": 1, "missing": 5}}


@scene
def a_higher_number_than_the_ledger_has_hides_no_loss(books: Scene) -> Balance:
    """A failed attempt without a fence, which read more rows, sent the last five messages."""
    books.enter("q", {("a", M1): 10}, attempt=1, delivered=10)
    books.arrive("q", "a", range(5, 10), attempt=1)
    books.arrive("q", "a", range(8, 15))
    return {"a": {"sent": 10, "delivered": 5, "missing": 5, "unknown": 5}}


@scene
def a_loss_has_an_answer_or_a_line_for_explanation(books: Scene) -> Balance:
    books.enter("q", {("a", M1): 5}, "received", discarded={"NO_MEM": 1})
    books.arrive("q", "a", range(2))
    books.add_lines("a", range(5))
    return {"a": {"sent": 5, "delivered": 2, "discarded": 3}}


@scenes(minute=[M1, M2], attempt=[0, 1])
def an_answered_plain_task_leaves_the_lines_to_others(books: Scene, minute: int, attempt: int) -> Balance:
    books.enter("q1", {("a", M1): 5}, stamped=False, delivered=5)
    books.enter("q2", {("a", minute): 5}, "received", attempt, stamped=False)
    books.arrive(None, "a", range(5))
    books.arrive(None, "a", range(3), minute)
    books.add_lines("a", range(2))
    return {"a": {"sent": 10, "delivered": 8, "discarded": 2}}


@scene
def a_line_explains_a_loss_that_appears_in_the_minute_of_an_answered_task(books: Scene) -> Balance:
    """Kafka has two messages of the answered task in the minute of the other, which lost two."""
    books.enter("answered", {("a", M1): 5}, stamped=False, delivered=5)
    books.enter("lossy", {("a", M2): 5}, "received", stamped=False)
    books.arrive(None, "a", range(3), M1)
    books.arrive(None, "a", range(5), M2)
    books.add_lines("a", range(2))
    return {"a": {"sent": 10, "delivered": 8, "discarded": 2}}


@scenes(stamped=[True, False])
def an_unclear_answer_makes_no_other_attempt_unclear(books: Scene, stamped: bool) -> Balance:
    books.enter("q", {("a", M1): 5}, delivered=3, discarded={"NO_MEM": 2}, stamped=stamped)
    both = {("a", M1): 5, (OTHER, M1): 5}
    books.enter("q", both, attempt=1, delivered=9, discarded={"NO_MEM": 1}, stamped=stamped)
    books.arrive("q" if stamped else None, "a", range(3))
    books.arrive("q" if stamped else None, "a", range(5), attempt=1)
    return {"a": {"sent": 10, "delivered": 8, "discarded": 2}}


@scenes(stamped=[True, False])
def what_the_answers_count_is_final_only_with_a_number_of_deliveries(books: Scene, stamped: bool) -> Balance:
    books.enter("killed", {("a", M1): 5}, delivered=None, stamped=stamped)
    books.enter("answered", {("b", M1): 5}, delivered=5, stamped=stamped)
    books.enter("early", {("c", M1): 5}, "received", discarded={"NO_MEM": 1}, stamped=stamped)
    books.add_lines("a", range(5))
    books.add_lines("b", range(5))
    return {
        "a": {"sent": 5, "discarded": 5},
        "b": {"sent": 5, "missing": 5},
        "c": {"sent": 5, "discarded": 1, "missing": 4},
    }


@scene
def a_line_of_a_possibly_delivered_message_that_kafka_has_explains_no_loss(books: Scene) -> Balance:
    books.enter("q1", {("a", M1): 5}, delivered=2, discarded={DOUBT: 3})
    books.arrive("q1", "a", range(5))
    books.enter("q2", {("a", M1): 5}, "received")
    books.arrive("q2", "a", range(2))
    books.add_lines("a", range(3), DOUBT)
    return {"a": {"sent": 10, "delivered": 7, "missing": 3}}


class Audited(NamedTuple):
    """All scenes, ranges and random cases, and the results of their audit."""

    scenes: dict[str, Balance]
    cases: list[Truth]
    balance: Balance
    problems: list[Row]


@pytest.fixture(scope="module")
def audited(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Audited:
    """Audit everything at once: an audit takes ten seconds of CPU time, for one message or for many."""
    chance, books = Random(17), Books()
    expected = {name: fill(Scene(name, books)) for name, fill in SCENES.items()}
    fill_ranges(Scene("ranges", books))
    cases = [plant_case(chance, books, case) for case in range(300)]
    return Audited(expected, cases, *books.audit(spark, tmp_path_factory.mktemp("books")))


@pytest.mark.parametrize("name", SCENES)
def test_the_balance_counts_each_message_and_each_discard_once(audited: Audited, name: str) -> None:
    ending, found = Scene(name, Books()).topic(""), audited.balance
    assert {topic.removesuffix(ending): counts for topic, counts in found.items() if topic.endswith(ending)} == (
        audited.scenes[name]
    )


def test_lines_of_abandoned_attempts_explain_no_loss(spark: SparkSession) -> None:
    infos = [("DISC", "a", "NO_MEM"), ("DISC", "a", "ABANDONED_ATTEMPT"), ("DUP", "a", "NONE"), ("DISC", "b", "NO_MEM")]
    lines = spark.createDataFrame([(event, topic, info, 0, None) for event, topic, info in infos], DISCARD_COLUMNS)
    assert [tuple(row) for row in discards_of(lines, ["a"]).collect()] == [(None, None, None, "a", "NO_MEM")]


def test_the_stamp_of_a_line_names_its_writer(spark: SparkSession) -> None:
    stamp = ("bruce.stamp", bytearray(b"%016d %013d q/7/2/3" % (41, M1)))
    headers = [[("other", None), stamp], [stamp, stamp], [stamp, ("other", bytearray(b""))], None, None]
    lines = spark.createDataFrame([("DISC", "a", "NO_MEM", 0, each) for each in headers], DISCARD_COLUMNS)
    stamps = [row[:3] for row in discards_of(lines, ["a"]).collect()]
    assert stamps == [("q/7/2", 3, 41)] * 2 + [("plain", None, None)] + [(None, None, None)] * 2


def test_the_stamp_of_a_line_has_its_time(spark: SparkSession) -> None:
    """The record's own timestamp may be years older."""
    headers = [[("bruce.stamp", bytearray(b"%016d %013d q/7/2/3" % (0, ms)))] for ms in (M1, M2)]
    lines = spark.createDataFrame(
        [("DISC", "a", "NO_MEM", ms, header) for header in [*headers, None] for ms in (M1, M2)], DISCARD_COLUMNS
    )
    assert [row["writer"] for row in discards_of(lines, ["a"], M2).collect()] == ["q/7/2", "q/7/2", None]


def fill_ranges(books: Scene) -> None:
    """Add tasks with absent messages, and one with unknown ones, to the books."""
    books.enter("short", {("h", M1): 2}, attempt=1, delivered=2)
    books.arrive("short", "h", range(2), attempt=1)
    books.arrive("short", "h", range(1, 4))
    books.enter("lossy", {("a", M1): 5}, delivered=5)
    books.enter("limited", {("b", M1): 5}, delivered=2, discarded={"RATE_LIMIT": 3})
    books.enter("both", {("a", M1): 5}, delivered=4, discarded={"RATE_LIMIT": 1})
    books.enter("wide", {("a", M1): 3, ("c", M1): 3}, delivered=6)
    books.enter("partly", {("a", M1): 4, (f"{OTHER}1", M1): 1}, delivered=4, discarded={"BAD_TOPIC": 1})
    books.enter("partly lossy", {("a", M1): 4, (f"{OTHER}1", M1): 1}, delivered=5)
    books.enter("unclear", {("a", M1): 4, (f"{OTHER}1", M1): 1}, delivered=3, discarded={"BAD_TOPIC": 2})
    books.enter("open 1", {("d", M1): 2}, "received")
    books.enter("open 2", {("d", M1): 2}, "received")
    books.enter("fewer lines 1", {("e", M1): 2}, "received")
    books.enter("fewer lines 2", {("e", M1): 2}, "received")
    books.enter("wide again", {("f", M1): 3, ("g", M1): 3}, delivered=6)
    books.enter("wider", {("f", M1): 1, ("g", M1): 1}, delivered=2)
    books.add_lines("d", range(2))
    books.add_lines("e", range(1))
    for query, topic in {"lossy": "a", "limited": "b", "both": "a"}.items():
        books.arrive(query, topic, [0, 1])
    for number in (1, 2):
        books.arrive(f"open {number}", "d", [1])
        books.arrive(f"fewer lines {number}", "e", [1])
    books.arrive("wide", "a", range(3))
    books.arrive("partly", "a", range(4))
    books.arrive("partly lossy", "a", range(3))
    books.arrive("unclear", "a", range(3))
    books.arrive("wide again", "f", range(3))
    books.arrive("wide again", "g", [5])


def test_a_range_names_the_fates_of_its_messages(audited: Audited) -> None:
    ending = " of ranges"
    problems = [row for row in audited.problems if f"{ending}/" in (row["writer"] or "")]
    found = {
        (
            row["problem"], row["topic"] and row["topic"].removesuffix(ending),
            row["writer"].removesuffix("/-1/0").removesuffix(ending), row["first"], row["last"],
        )
        for row in problems
    }  # fmt: skip
    assert found == {
        ("missing", "a", "lossy", 2, 4),
        ("discarded", "b", "limited", 2, 4),
        ("missing or discarded", "a", "both", 2, 4),
        ("missing", "c", "wide", 3, 5),
        ("missing or not audited", None, "partly lossy", 3, 4),
        ("missing or discarded or not audited", None, "unclear", 3, 4),
        ("discarded", "d", "open 1", 0, 0),
        ("discarded", "d", "open 2", 0, 0),
        ("missing or discarded", "e", "fewer lines 1", 0, 0),
        ("missing or discarded", "e", "fewer lines 2", 0, 0),
        ("missing", "g", "wide again", 3, 4),
        ("missing", None, "wider", 0, 1),
        ("doubled", "h", "short", 1, 1),
        ("unknown", "h", "short", 2, 3),
    }


# --- random books ----------------------------------------------------------------------------------------------------


@dataclass
class Truth:
    """What happened in a case, with its own topics and queries, and if the audit can know it.

    `fates` has topic and fate of each stamped message of a query that is absent from the audited topics. `answered` are
    the queries with final answers.
    """

    sent: Counter[str] = field(default_factory=Counter)
    arrived: Counter[str] = field(default_factory=Counter)
    discarded: Counter[str] = field(default_factory=Counter)
    fates: dict[str, dict[int, tuple[str, str]]] = field(default_factory=dict)
    answered: set[str] = field(default_factory=set)
    lines: int = 0
    has_spare_discards: bool = False
    """Some discards concern messages that Kafka has, or those of a failed attempt, and so may explain losses."""
    has_wide_answer: bool = False
    """An answer concerns several topics, and does not say which of them its discards have."""
    has_open_discards: bool = False
    """A task without a final answer has discards."""
    has_foreign_discards: bool = False
    """An answer counts discards in a topic that is not audited, or may do so."""

    @property
    def is_sharp(self) -> bool:
        """Return True if the audit can tell discards from losses."""
        return not (self.has_foreign_discards or (self.has_wide_answer and self.has_open_discards))

    def balance(self, topic: str) -> Counter[str]:
        sent, arrived, discarded = self.sent[topic], self.arrived[topic], self.discarded[topic]
        return Counter(sent=sent, delivered=arrived, discarded=discarded, missing=sent - arrived - discarded)


def plant_case(chance: Random, books: Books, case: int) -> Truth:
    """Add up to four tasks with up to two topics in common, and a further one in some cases, which is not audited."""
    truth, topics = Truth(), [f"{case}a", f"{case}b"]
    has_other = chance.random() < 0.2
    has_doubt, has_retries, has_stamps = chance.random() < 0.3, chance.random() < 0.5, chance.random() < 0.5
    for number in range(chance.randrange(1, 5)):
        query, stamped = f"{case}-{number}", chance.random() < 0.7
        answer = chance.choice(["all", "all", "some", "none"])
        mine = chance.sample(topics, chance.choice([1, 1, 2]))
        mine += [f"{OTHER}{case}"] if has_other else []
        rows = [(chance.choice(mine), chance.choice([M1, M2])) for _ in range(chance.randrange(1, 12))]
        risks = chance.choice([(0, 0), (0.3, 0), (0, 0.3), (0.3, 0.3)])
        reasons: Counter[str] = Counter()
        for sequence, (topic, minute) in enumerate(rows):
            is_lost, is_discarded = (chance.random() < risk for risk in risks)
            author = query if stamped else None
            arrives = not (is_lost or is_discarded)
            if topic.startswith(OTHER):
                reasons.update(["NO_MEM"] if is_discarded else [])
                truth.fates.setdefault(query, {})[sequence] = topic, "not audited"
                continue
            is_early = has_retries and stamped and chance.random() < 0.3
            if is_early:
                books.arrive(author, topic, [sequence], chance.choice([M1 - MINUTE_MS, M1, M2]), attempt=0)
            if is_discarded:
                reason = DOUBT if has_doubt and chance.random() < 0.5 else chance.choice(["NO_MEM", "RATE_LIMIT"])
                arrives = reason == DOUBT and chance.random() < 0.5
                reasons[reason] += 1
                stamp = (f"{query}/-1/0", 1, sequence) if stamped else ("plain", None, None)
                books.lines.append((*(stamp if has_stamps else (None, None, None)), topic, reason))
                truth.lines += 1
                is_known = has_stamps and stamped and answer == "none"  # that Kafka has the message of the line
                truth.has_spare_discards |= (arrives or is_early) and not is_known
            if arrives:
                books.arrive(author, topic, [sequence], minute, attempt=1)
            truth.sent[topic] += 1
            truth.arrived[topic] += arrives or is_early
            truth.discarded[topic] += is_discarded and not (arrives or is_early)
            if not (arrives or is_early):
                truth.fates.setdefault(query, {})[sequence] = topic, "discarded" if is_discarded else "missing"
        part = {reason: chance.randint(1, count) for reason, count in reasons.items()}
        told = {"all": reasons, "some": part, "none": {}}[answer]
        delivered = len(rows) - sum(reasons.values()) if answer == "all" else None
        more = {"discarded": told, "delivered": delivered, "stamped": stamped}
        books.enter(query, Counter(rows), "delivered" if answer == "all" else "received", 1, **more)
        truth.has_wide_answer |= len({topic for topic, _ in rows}) > 1 and bool(told)
        truth.has_open_discards |= answer != "all" and bool(reasons)
        truth.has_foreign_discards |= has_other and bool(told)
        truth.fates[query] = truth.fates.get(query, {}) if stamped else {}
        truth.answered |= {query} if answer == "all" else set()
    return truth


def check_problems(truth: Truth, problems: Mapping[str, list[Row]]) -> int:
    """Check the ranges of each query against the truth, and return the number of exact ones."""
    exact = 0
    for query, fates in truth.fates.items():
        lossy = {topic for topic, fate in fates.values() if fate != "not audited"}
        rows = problems.get(query, [])
        listed = {number for row in rows for number in range(row["first"], row["last"] + 1)}
        assert listed == (fates.keys() if lossy else set()), query
        words = {word for row in rows for word in row["problem"].split(" or ")}
        topics = {row["topic"] for row in rows}
        known = {fate for _, fate in fates.values()} if lossy else set()
        assert known - words <= ({"discarded"} if not truth.is_sharp else set()), f"{query}: a fate is not named"
        if query in truth.answered and truth.is_sharp:
            assert known == words, f"{query}: a wrong fate"
            exact += len(rows)
        if rows:
            assert topics == (lossy if len(lossy) == 1 and "not audited" not in known else {None}), query
    return exact


def test_random_books_hide_no_loss_and_raise_no_false_alarm(audited: Audited) -> None:
    exact, exact_ranges = 0, 0
    problems: dict[str, list[Row]] = {}
    for row in (row for row in audited.problems if row["from_offset"] is None):  # absent messages have no offsets
        problems.setdefault((row["writer"] or "").split("/")[0], []).append(row)
    for case, truth in enumerate(audited.cases):
        balance = {topic: Counter(audited.balance[topic]) for topic in truth.sent}
        expected = {topic: truth.balance(topic) for topic in truth.sent}
        total, expected_total = (sum(each.values(), Counter()) for each in (balance, expected))
        assert {topic: counts["delivered"] for topic, counts in balance.items()} == truth.arrived, case
        if truth.has_spare_discards:
            continue
        exact_ranges += check_problems(truth, problems)
        assert total["discarded"] <= truth.lines, f"case {case}: a discard counts twice"
        assert total["missing"] >= expected_total["missing"], f"case {case}: a loss is hidden"
        if truth.is_sharp:
            assert total == expected_total, f"case {case}: a false alarm"
            exact += 1
        if not (truth.has_wide_answer or truth.has_foreign_discards):
            assert balance == expected, f"case {case}: a wrong topic"
    assert exact > 100
    assert exact_ranges > 100
