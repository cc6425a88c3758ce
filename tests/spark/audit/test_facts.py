"""Facts describe each message in few rows; the messages out of order agree with a message by message search."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import TYPE_CHECKING, Any, Final

import pytest

from bruce_mp.spark.audit.facts import SCHEMA, explode_facts, facts_of, latency_percentiles
from bruce_mp.spark.audit.order import out_of_order_messages

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pyspark.sql import DataFrame, SparkSession

MINUTE: Final = 60_000
KAFKA: Final = (
    "topic string, partition int, offset long, ms long, timestampType int, "
    "headers array<struct<key:string,value:binary>>"
)
Message = tuple[str, int, str | None, int, int]
"""topic, partition, author (None: no stamp), number, ms when it was sent"""
SPENT: Final = 5


def frame(spark: SparkSession, messages: Iterable[Message], *, appended: bool = True, spent: int = SPENT) -> DataFrame:
    """Return messages with the columns of Spark's Kafka source; offsets count up in each partition."""
    offsets: Counter[tuple[str, int]] = Counter()
    rows = []
    for topic, partition, author, number, ms in messages:
        value = None if author is None else f"{number:016} {ms:013} {author}".encode(errors="surrogateescape")
        headers = None if author is None else [{"key": "bruce.stamp", "value": value}]
        rows.append((topic, partition, offsets[topic, partition], ms + spent, int(appended), headers))
        offsets[topic, partition] += 1
    return spark.createDataFrame(rows, KAFKA).selectExpr("*", "timestamp_millis(ms) as timestamp")


def random_messages(chance: Random) -> list[Message]:
    authors = [None, "q/0/0/0", "query/-1/2/3"]
    numbers = [*range(6), 62, 63, 64, 65, 127, 128, 5_000]
    return [
        (
            chance.choice("ab"), chance.randrange(2), chance.choice(authors), chance.choice(numbers),
            chance.choice([0, 59_999 - SPENT, 60_000]),
        )
        for _ in range(2_000)
    ]  # fmt: skip


def message_counts(facts: DataFrame) -> Counter[tuple[Any, ...]]:
    wanted = ("topic", "partition", "writer", "attempt", "minute", "sent", "latency_ms", "number", "place")
    return Counter(
        tuple(row[name] for name in wanted) for row in explode_facts(facts.where("writer is not null")).collect()
    )


@pytest.mark.usefixtures("spark_defaults")
def test_the_facts_describe_every_message(spark: SparkSession) -> None:
    """Topic `a` has the times of the appends to its log, and topic `b` those of the messages."""
    messages = random_messages(Random(7))
    frames = [frame(spark, [m for m in messages if m[0] == topic], appended=topic == "a") for topic in "ab"]
    facts = facts_of(frames[0].unionByName(frames[1]))
    assert facts.schema.simpleString() == spark.createDataFrame([], SCHEMA).schema.simpleString()
    offsets: Counter[tuple[str, int]] = Counter()
    places: dict[tuple[str, int, str], int] = {}
    expected: Counter[tuple[Any, ...]] = Counter()
    plain: Counter[tuple[Any, ...]] = Counter()
    for topic, partition, author, number, ms in messages:
        if author is None:
            plain[topic, partition, (ms + SPENT) // MINUTE * MINUTE] += 1
        else:
            writer, _, attempt = author.rpartition("/")
            times = ms // MINUTE * MINUTE, ms, SPENT if topic == "a" else None
            lane = topic, partition, author
            places[lane] = places.get(lane, offsets[topic, partition] - 1) + 1
            expected[topic, partition, writer, int(attempt), *times, number, places[lane]] += 1
        offsets[topic, partition] += 1
    assert message_counts(facts) == expected
    counts: Counter[tuple[Any, ...]] = Counter()
    for row in facts.where("writer is null").collect():
        counts[row["topic"], row["partition"], row["minute"]] += row["copies"]
    assert counts == plain


def test_consecutive_messages_of_a_writer_are_one_row(spark: SparkSession) -> None:
    run: list[Message] = [("t", 0, "q/0/0/0", number, 0) for number in range(10, 1_010)]
    other: list[Message] = [("t", 0, "q/0/1/0", number, 0) for number in range(100)]
    alone: list[Message] = [("alone", *message[1:]) for message in run]
    facts = facts_of(frame(spark, [*alone, *run[:500], *other, *run[600:]])).collect()
    (row,) = (row for row in facts if row["topic"] == "alone")
    assert (row["first"], row["last"], row["copies"], row["shift"]) == (10, 1_009, 1_000, -10)
    ranges = sorted((row["writer"], row["first"], row["last"]) for row in facts if row["topic"] == "t")
    assert ranges == [("q/0/0", 10, 509), ("q/0/0", 610, 1_009), ("q/0/1", 0, 99)], "though the shift is the same"


def test_alternating_writers_have_separate_rows(spark: SparkSession) -> None:
    chance = Random(3)
    left: dict[str, list[int]] = {"q/0/0/0": list(range(300)), "q/0/1/0": list(range(200)), "q/0/0/1": list(range(100))}
    turns = chance.sample([author for author, numbers in left.items() for _ in numbers], 600)
    rows = facts_of(frame(spark, [("t", 0, author, left[author].pop(0), 0) for author in turns])).collect()
    ranges = sorted((row["writer"], row["attempt"], row["first"], row["last"]) for row in rows)
    assert ranges == [("q/0/0", 0, 0, 299), ("q/0/0", 1, 0, 99), ("q/0/1", 0, 0, 199)]


def late_by_hand(numbers: Sequence[int]) -> set[int]:
    """Return the numbers that follow a larger one and are no copies."""
    return {n for place, n in enumerate(numbers) if n < max(numbers[: place + 1]) and n not in numbers[:place]}


def test_a_message_after_a_later_one_is_late_and_copies_are_not(spark: SparkSession) -> None:
    chance, messages, expected = Random(11), [], set()
    for case in range(40):
        numbers = list(range(chance.choice([4, 40])))
        if case % 4:
            at = chance.randrange(len(numbers) - 1)
            numbers[at], numbers[at + 1] = numbers[at + 1], numbers[at]
        for _ in range(chance.randrange(3)):
            numbers.insert(chance.randrange(len(numbers)), chance.choice(numbers))
        messages += [(f"t{case}", 0, "q/0/0/0", number * chance.choice([1, 1, 100]), 0) for number in numbers]
        mine = [number for topic, _, _, number, _ in messages if topic == f"t{case}"]
        expected |= {(f"t{case}", number) for number in late_by_hand(mine)}
    rows = out_of_order_messages(facts_of(frame(spark, messages))).collect()
    assert sorted((row["topic"], row["number"]) for row in rows) == sorted(expected)


def test_a_repeated_task_and_each_lane_have_their_own_order(spark: SparkSession) -> None:
    first: list[Message] = [("t", 0, "q/0/0/0", number, 0) for number in (1, 5, 4)]
    again: list[Message] = [("t", 0, "q/0/0/0", number, 1000) for number in (0, 2, 3, 1, 9, 8)]
    lanes: list[Message] = [("t", 1, "q/0/0/0", 3, 0), ("t", 0, "q/0/0/1", 2, 0), ("u", 0, "q/0/0/0", 1, 0)]
    rows = out_of_order_messages(facts_of(frame(spark, [*first, *again, *lanes]))).collect()
    assert sorted(row["number"] for row in rows) == [4, 8], "1 is a copy"


def test_an_invalid_stamp_belongs_to_an_unknown_writer(spark: SparkSession) -> None:
    authors = ["", "q", "q/0/0/x", "q/0/0/99999999999", "q/0/0/01", "\udcff", "7"]
    rows = facts_of(frame(spark, [("t", 0, author, 1, 0) for author in authors])).collect()
    assert sorted(row["copies"] for row in rows) == [1] * len(authors)
    assert all(row["writer"] is not None for row in rows)


def test_an_unparsable_stamp_counts_as_no_stamp(spark: SparkSession) -> None:
    topics = {"empty": b"", "short": b"short", "long": b"x" * 40, "minus": b"-000000000000001 0000000000000 q/0/0/0"}
    keys = ("bruce.stamp", "other")
    rows = [(t, 0, at, 70_000, 0, [(key, value)]) for t, value in topics.items() for at, key in enumerate(keys)]
    messages = spark.createDataFrame(rows, KAFKA).selectExpr("*", "timestamp_millis(ms) as timestamp")
    found = {
        row["topic"]: (row["writer"], row["minute"], row["first"], row["copies"])
        for row in facts_of(messages).collect()
    }
    assert found == dict.fromkeys(topics, (None, 60_000, None, 2))


def test_latencies_count_by_message(spark: SparkSession) -> None:
    rows: list[Message] = [("t", 0, "q/0/0/0", number, 0) for number in range(97)]
    slow: list[Message] = [("t", 0, "q/0/0/0", number, 0) for number in (97, 98, 99)]
    both = frame(spark, rows).unionByName(frame(spark, slow, spent=1_000))
    others = frame(spark, [("without", *row[1:]) for row in rows], appended=False)
    (row,) = latency_percentiles(facts_of(both.unionByName(others)), ["topic"]).collect()
    assert (row["topic"], row["p50_ms"], row["p99_ms"]) == ("t", SPENT, 1_000)


def test_messages_without_a_stamp_have_no_latency(spark: SparkSession) -> None:
    plain: list[Message] = [("t", 0, None, 0, ms) for ms in range(10)]
    late = frame(spark, [("t", 1, "q/0/0/0", 0, 0), ("t", 1, "x", 1, 0)], spent=5_000)
    facts = facts_of(frame(spark, plain).unionByName(late))
    (row,) = latency_percentiles(facts, ["topic"]).collect()
    assert (row["p50_ms"], row["p99_ms"]) == (5_000, 5_000)
    early = frame(spark, [("t", 0, "q/0/0/0", 0, 0)], spent=-5)
    assert [row["latency_ms"] for row in facts_of(early).collect()] == [0]


def test_messages_without_a_stamp_are_one_row_a_minute(spark: SparkSession) -> None:
    frames = [
        frame(spark, [(topic, 0, None, 0, ms) for ms in (*range(10), MINUTE)], appended=topic == "appended")
        for topic in ("appended", "sent")
    ]
    rows = facts_of(frames[0].unionByName(frames[1])).collect()
    found = sorted((row["topic"], row["minute"], row["copies"]) for row in rows)
    assert found == [(topic, *counts) for topic in ("appended", "sent") for counts in ((0, 10), (MINUTE, 1))]
