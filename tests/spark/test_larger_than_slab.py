"""Tasks that send more than the slab holds: all of a job arrives once, and nothing of a task that was killed."""

from __future__ import annotations

import os
import signal
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

import pytest
from pyspark import TaskContext
from pyspark.errors import PythonException

from bruce_mp.devbroker.control import DevBroker
from support.daemon import Daemon

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

ROWS: Final = 60_000
SETTINGS: Final = {"slab.size": "8m", "input.unix_stream.enable": "true", "input.streams.workers": 1}


@pytest.fixture
def broker() -> Iterator[DevBroker]:
    with DevBroker(topics={"large": 4}) as running:
        yield running


def daemon_in(directory: Path, broker: DevBroker, **more: Any) -> Daemon:
    return Daemon(directory, broker.bootstrap, {**SETTINGS, "input.unix_stream.path": directory / "s", **more})


def rows(spark: SparkSession) -> DataFrame:
    """Two partitions, each of which is larger than the slab."""
    return spark.range(0, ROWS, 1, 2).selectExpr("concat(cast(id as string), ':', repeat('x', 290)) as value")


def write(frame: DataFrame, daemon: Daemon) -> None:
    frame.write.format("bruce").mode("append").option("topic", "large").save(str(daemon.directory / "s"))


def numbers(broker: DevBroker) -> Counter[int]:
    records = (record for partition in broker.fetch("large") for record in partition)
    return Counter(int((record.value or b"").partition(b":")[0]) for record in records)


def test_a_job_larger_than_the_slab_arrives_once(spark: SparkSession, tmp_path: Path, broker: DevBroker) -> None:
    with daemon_in(tmp_path, broker) as daemon:
        write(rows(spark), daemon)
        books = daemon.wait_settled(ROWS)
        assert books.discarded == {}
    assert numbers(broker) == Counter(range(ROWS))


def killed_once(last: int) -> Callable[[int, Iterable[int]], Iterable[tuple[str]]]:
    """Makes rows of numbers; kills the first attempt of partition 1 near its end.

    Spark's workers know no modules of tests, so the function that they get is a closure.
    """

    def rows_of(partition: int, numbers: Iterable[int]) -> Iterable[tuple[str]]:
        context = TaskContext.get()
        assert context is not None
        for number in numbers:
            if number == last and partition == 1 and context.attemptNumber() == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            yield (f"{number}:{'x' * 290}",)

    return rows_of


def test_a_killed_task_delivers_nothing(spark: SparkSession, tmp_path: Path, broker: DevBroker) -> None:
    with daemon_in(tmp_path, broker) as daemon:
        made = spark.sparkContext.parallelize(range(ROWS), 2).mapPartitionsWithIndex(killed_once(ROWS - 1000))
        write(spark.createDataFrame(made, "value string"), daemon)
        # Spark ends the worker of the killed task when it likes, and the connection ends with it.
        daemon.wait_for(lambda: bool(daemon.books().discarded), "end of the killed attempt", 60)
        books = daemon.books_while_stopped()
        assert books.balanced
        assert books.discarded == {"ABANDONED_ATTEMPT": books.received - ROWS}
        assert not list(tmp_path.glob("**/*.spill/*.spill"))
    assert numbers(broker) == Counter(range(ROWS))


def test_a_job_refused_by_the_daemon_names_the_reason(spark: SparkSession, tmp_path: Path, broker: DevBroker) -> None:
    with daemon_in(tmp_path, broker, **{"input.streams.max_spill_size": "1m"}) as daemon:
        with pytest.raises(PythonException, match=r"The daemon ended the fenced attempt .*max_spill_size"):
            write(rows(spark), daemon)
        # Spark ends the other task's attempt when it likes.
        daemon.wait_for(lambda: not any(daemon.books().held.values()), "end of all attempts", 60)
        books = daemon.books_while_stopped()
        assert books.balanced
        assert books.discarded == {"ABANDONED_ATTEMPT": books.received}
    assert not numbers(broker)
