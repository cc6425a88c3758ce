"""Real Spark with a ledger: drivers, tasks and daemons are killed, and each row is in the broker's log once."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

import pytest

from bruce_mp.devbroker.control import DevBroker
from bruce_mp.spark.cli import main
from support.daemon import Daemon
from support.spark_commands import bruce_spark

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.process

TOPIC: Final = "once"
ROWS: Final = 12_000
TASKS: Final = 6


@pytest.fixture
def broker() -> Iterator[DevBroker]:
    with DevBroker(topics={TOPIC: 3}) as running:
        yield running


@pytest.fixture
def daemon(broker: DevBroker, tmp_path: Path) -> Iterator[Daemon]:
    (tmp_path / "daemon").mkdir()
    settings = {
        "input.unix_stream.enable": "true",
        "input.unix_stream.path": f'"{tmp_path}/stream"',
        "input.streams.spill_dir": f'"{tmp_path}"',
    }
    with Daemon(tmp_path / "daemon", broker.bootstrap, settings) as running:
        yield running


def options(directory: Path, *words: str) -> list[str]:
    """Return the options of a backfill of one chunk."""
    what = ["--format=parquet", "--files-per-chunk=100", f"--tasks-per-chunk={TASKS}", f"--topic={TOPIC}"]
    places = [f"--checkpoint={directory}/checkpoint", f"--socket={directory}/stream"]
    return [f"{directory}/in", *what, *places, *words]


def copies(broker: DevBroker) -> int:
    """Check that no row is missing; return the number of copies beyond the first."""
    values = [record.value or b"" for records in broker.fetch(TOPIC) for record in records]
    assert set(values) == {b"%d" % number for number in range(ROWS)}
    return sum(count - 1 for count in Counter(values).values())


@pytest.mark.parametrize(
    ("with_ledger", "kills_daemon"),
    [
        pytest.param(True, True, id="driver and daemon"),
        pytest.param(True, False, id="driver", marks=pytest.mark.soak),
        pytest.param(False, False, id="without a ledger", marks=pytest.mark.soak),
    ],
)
def test_a_driver_killed_between_the_tasks_of_a_chunk_doubles_nothing_with_a_ledger(
    spark: SparkSession, broker: DevBroker, daemon: Daemon, tmp_path: Path, *, with_ledger: bool, kills_daemon: bool
) -> None:
    spark.range(0, ROWS, 1, TASKS).selectExpr("cast(id as string) as value").write.parquet(f"{tmp_path}/in")
    ledger = [f"--ledger={tmp_path}/ledger"] if with_ledger else []
    # One task after the other, in a driver of its own.
    first = bruce_spark(tmp_path, "backfill", *options(tmp_path, "--rate=1500", *ledger))
    daemon.wait_received(ROWS // 2 + ROWS // TASKS // 2, 120)  # in the middle of the fourth task
    first.kill()
    if kills_daemon:
        daemon.kill_all()
        daemon.start()
    assert main(["backfill", *options(tmp_path, *ledger)]) == 0
    books = daemon.wait_settled(0)
    assert books.discarded.keys() <= {"ABANDONED_ATTEMPT"}
    doubled = copies(broker)
    assert books.delivered == ROWS + doubled
    # Without a ledger the three tasks that ended are repeated; a repartition gives each a few rows more or less.
    assert doubled == (0 if with_ledger else pytest.approx(ROWS // 2, abs=2 * TASKS))
