"""Kill drivers, executors, Python workers, daemons and brokers under Spark's sink with a ledger.

    PYTHONPATH=tests python -m chaos.spark --minutes 10 --seeds 1 2 3

Two streams of `chaos.spark_job` on `local-cluster` write rows from files and from Kafka to one topic of a real
three-broker Kafka. The seed chooses the faults and their times. The books of the daemon have to balance after each. At
the end each row has to be in the topic once, with its contents, and once in the ledger, and no attempt in doubt.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

import psutil
from confluent_kafka import Producer

from support import processes
from support.chaos_sites import FaultKind, Real, WeightedFault
from support.daemon_faults import DaemonFaults
from support.kafka_cluster import KafkaCluster
from support.kafka_dist import NEWEST
from support.spark_commands import Command, start_python
from support.stream_inputs import daemon_in

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Self

__all__ = ["Report", "SparkChaos"]

BROKERS: Final = 3
SOURCES: Final = ("files", "kafka")
FILE_ROWS: Final = 250
FIRST_COMMIT_S: Final = 600.0
FINISH_S: Final = 1800.0
SETTLE_S: Final = 120.0
MASTER: Final = "local-cluster[2,2,640]"
ABANDONED: Final = frozenset({"ABANDONED_ATTEMPT", "UNCLEAN_DISCONNECT"})
"""Reasons of discards after which the sink sends the messages again."""
BAD_ERRORS: Final = ("the task ended an attempt", "has other rows", "has other headers", "Report this as a bug")
"""Attempts in doubt, batches that Spark did not repeat as they were, and defects of the sink or the daemon."""
SPARK_FAULTS: Final = FaultKind.PROCESS


@dataclass(slots=True)
class Report:
    """The result of a run."""

    seed: int
    variation: Mapping[str, str]
    faults: list[str] = field(default_factory=list)
    rows: dict[str, int] = field(default_factory=dict)
    checks: int = 0
    """Number of checks at which the books balanced."""
    drivers: int = 1
    query_failures: int = 0
    sockets_lost: int = 0
    received: int = 0
    discarded: Counter[str] = field(default_factory=Counter)
    errors: list[str] = field(default_factory=list)

    def record_life(self, received: int, discarded: Mapping[str, int]) -> None:
        """Add the books of a daemon's life that ended with its slab."""
        self.received += received
        self.discarded.update(discarded)

    def record(self, fault: str) -> None:
        self.faults.append(f"{time.strftime('%H:%M:%S', time.gmtime())} {fault}")

    def __str__(self) -> str:
        kinds = Counter(fault.split(" ", 1)[1].rstrip("0123456789- ") for fault in self.faults)
        return (
            f"seed {self.seed}, {dict(self.variation)}: rows {self.rows}, {len(self.faults)} faults {dict(kinds)}, "
            f"books balanced {self.checks} times, {self.drivers} drivers, {self.query_failures} failed queries, "
            f"{self.received} received, discarded {dict(self.discarded)}"
        )


def value_of(source: str, number: int) -> bytes:
    """Return the row of a source: it follows from its number."""
    rng = random.Random(f"{source} {number}")
    return f"{source} {number} ".encode() + bytes(rng.choices(b"abcdefghij", k=rng.randrange(300)))


class Feeder:
    """Writes files and messages with rows at a rate until it is stopped."""

    def __init__(self, directory: Path, bootstrap: str, topic: str, rate: float) -> None:
        self._directory = directory
        self._topic = topic
        self._interval_s = FILE_ROWS / rate
        self._producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "log_level": 0})
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.rows = 0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Stop after the present rows are on disk and in Kafka."""
        self._end.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._end.wait(self._interval_s):
            numbers = range(self.rows, self.rows + FILE_ROWS)
            part = self._directory / f".{self.rows}.part"
            part.write_bytes(b"".join(value_of("files", number) + b"\n" for number in numbers))
            part.rename(self._directory / f"{self.rows:09}.txt")
            for number in numbers:
                self._producer.produce(self._topic, value_of("kafka", number), b"%d" % (number % 50))
            self._producer.poll(0)
            self.rows += FILE_ROWS
        assert not self._producer.flush(SETTLE_S), "the source's messages did not arrive"


class SparkFaults:
    """The faults of a driver and its executors."""

    def __init__(self, job: Job, rng: random.Random, report: Report) -> None:
        self._job = job
        self._rng = rng
        self._report = report

    def faults(self) -> list[WeightedFault]:
        return [
            WeightedFault(SPARK_FAULTS, 8, self._kill_driver),
            WeightedFault(SPARK_FAULTS, 14, lambda: self._kill("an executor", "CoarseGrainedExecutorBackend")),
            WeightedFault(SPARK_FAULTS, 24, lambda: self._kill("a Python worker", "pyspark.daemon")),
            WeightedFault(SPARK_FAULTS, 8, self._suspend_executor),
        ]

    def _kill_driver(self) -> None:
        """Kill the driver only: its executors run on for a moment, beside those of the next driver."""
        if self._job.has_committed():
            self._report.record("kill the driver")
            self._job.kill_driver()
            self._job.start()
            self._report.drivers += 1

    def _kill(self, what: str, word: str) -> None:
        if victims := _descendants_with(word):
            self._report.record(f"kill {what}")
            with suppress(psutil.NoSuchProcess):
                self._rng.choice(victims).kill()

    def _suspend_executor(self) -> None:
        """Suspend an executor for a while, sometimes for so long that the driver replaces it."""
        if victims := _descendants_with("CoarseGrainedExecutorBackend"):
            self._report.record("suspend an executor")
            victim = self._rng.choice(victims)
            with suppress(psutil.NoSuchProcess):
                victim.suspend()
                time.sleep(self._rng.choice((0.5, 2, 2, 25)))
                victim.resume()


def _descendants_with(word: str) -> list[psutil.Process]:
    """Return the descendants with this word in their command, by age."""
    found = []
    for process in processes.descendants():
        with suppress(psutil.Error):
            if any(word in part for part in process.cmdline()):
                found.append((process.create_time(), process.pid, process))
    return [process for _, _, process in sorted(found, key=lambda each: each[:2])]


class Job:
    """The driver of `chaos.spark_job`, which is started again when it ends."""

    def __init__(self, directory: Path, words: Sequence[str]) -> None:
        self._directory = directory
        self._words = words
        self._command: Command | None = None
        self._commits = 0

    def start(self) -> None:
        self._commits = self._count_commits()
        self._command = start_python(self._directory / "job.log", "chaos.spark_job", *self._words)

    @property
    def command(self) -> Command:
        assert self._command is not None
        return self._command

    def restart_if_ended(self) -> bool:
        """Start the driver again if it has failed."""
        has_ended = self.command.process.poll() is not None
        if has_ended:
            self.start()
        return has_ended

    def has_committed(self) -> bool:
        """Return True if this driver has committed a micro-batch."""
        return self._count_commits() > self._commits

    def has_begun(self) -> bool:
        """Return True after the first commit. AssertionError if the driver has ended."""
        assert self.command.process.poll() is None, self.command.output()[-6000:]
        return self.has_committed()

    def _count_commits(self) -> int:
        return sum(1 for _ in (self._directory / "ledger").glob("*.json"))

    def kill_driver(self) -> None:
        """Send SIGKILL to the Python process and the JVM of the driver."""
        killed = [psutil.Process(self.command.process.pid)]
        children = killed[0].children(recursive=True)
        killed += [process for process in _descendants_with("SparkSubmit") if process in children]
        processes.kill(killed)
        self.command.process.wait()

    def finish(self) -> None:
        """Let the driver process all rows and end."""
        (self._directory / "stop").touch()
        deadline = time.monotonic() + FINISH_S
        while (code := self.command.process.poll()) != 0:
            assert time.monotonic() < deadline, f"The driver did not finish:\n{self.command.output()[-6000:]}"
            if code is not None:
                self.start()
            time.sleep(0.2)

    def end(self) -> None:
        """Kill everything of Spark that is left."""
        words = ("chaos.spark_job", "SparkSubmit", "CoarseGrainedExecutorBackend", "pyspark.daemon")
        processes.kill([process for word in words for process in _descendants_with(word)])


class SparkChaos:
    """One run with a new daemon and new topics; `rate` is in rows per second of each source."""

    def __init__(self, seed: int, rate: float, cluster: KafkaCluster, directory: Path) -> None:
        self._rng = rng = random.Random(seed)
        variation = {"acks": rng.choice(("delivered", "delivered", "received")), "slab": rng.choice(("8m", "64m"))}
        self.report = Report(seed, variation)
        self._cluster = cluster
        self._directory = directory
        self._site = Real(cluster)
        source, self._topic = f"in-{directory.name}", f"out-{directory.name}"
        self._site.create_topics([self._topic, source])
        (directory / "in").mkdir()
        self._feeder = Feeder(directory / "in", cluster.bootstrap, source, rate)
        settings = {"slab.size": variation["slab"], "input.streams.spill_dir": directory}
        self._daemon = daemon_in(directory, cluster, **settings)
        words = {"master": MASTER, "directory": directory, "bootstrap": cluster.bootstrap, "source-topic": source}
        words |= {"topic": self._topic, "socket": self._daemon.stream_path, "acks": variation["acks"]}
        self._job = Job(directory, [f"--{name}={value}" for name, value in words.items()])

    def run(self, seconds: float) -> Report:
        """Inject faults for `seconds`, let the job finish, and check. AssertionError names the violated promise."""
        with self._daemon:
            with _running(self._job), self._feeder:
                self._inject_faults_for(seconds)
                self._feeder.stop()
                self._site.heal()
                self._job.finish()
            books = self._daemon.wait_settled(0, SETTLE_S)
            self.report.record_life(books.received, books.discarded)
        self.report.rows = dict.fromkeys(SOURCES, self._feeder.rows)
        self._read_log()
        print(f"{self.report}: {', '.join(self.report.faults)}", flush=True)
        self._check()
        return self.report

    def _inject_faults_for(self, seconds: float) -> None:
        rng, faults = self._rng, self._faults()
        self._daemon.wait_for(self._job.has_begun, "a first commit", FIRST_COMMIT_S)
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            time.sleep(rng.uniform(0.3, 3))
            self._site.repair_if_due()
            self.report.drivers += self._job.restart_if_ended()
            rng.choices(faults, [fault.weight for fault in faults])[0].inject()
            books = self._daemon.books_while_stopped()
            assert books.balanced, books
            self.report.checks += 1

    def _faults(self) -> list[WeightedFault]:
        rng, record = self._rng, self.report.record
        of_brokers = [each for each in self._site.faults(rng, record) if each.kind is FaultKind.BROKER]
        of_daemon = DaemonFaults(self._daemon, rng, record, self.report).faults()
        return [*of_daemon, *of_brokers, *SparkFaults(self._job, rng, self.report).faults()]

    def _read_log(self) -> None:
        lines = self._job.command.output().splitlines()
        self.report.query_failures = sum(line.startswith("FAILED") for line in lines)
        self.report.errors = [line for line in lines if any(word in line for word in BAD_ERRORS)]

    def _check(self) -> None:
        """Check the topic row by row, the ledger and the books."""
        report, rows = self.report, sum(self.report.rows.values())
        records = [record for some in self._cluster.read_all(self._topic).values() for record in some]
        expected = Counter(value_of(source, number) for source, count in report.rows.items() for number in range(count))
        copies = Counter(record.value or b"" for record in records)
        lost, surplus = expected - copies, copies - expected
        assert not lost, f"{lost.total()} lost: {sorted(lost)[:10]}"
        assert not surplus, f"{surplus.total()} doubled or unknown: {sorted(surplus)[:10]}"
        assert not report.errors, report.errors[:5]
        assert report.discarded.keys() <= ABANDONED, report.discarded
        assert report.received - report.discarded.total() == rows, report
        lines = [json.loads(line) for path in (self._directory / "ledger").glob("*.json") for line in path.open()]
        assert sum(line["rows"] for line in lines) == rows, "the ledger has another number of rows"


@contextmanager
def _running(job: Job) -> Iterator[None]:
    job.start()
    try:
        yield
    except BaseException:
        sys.stderr.write(job.command.output()[-20_000:])
        raise
    finally:
        job.end()


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    options = argparse.ArgumentParser(prog="python -m chaos.spark", description="Chaos under Spark with a ledger.")
    add = options.add_argument
    add("--minutes", type=float, default=30, help="duration of each run (30)")
    add("--rate", type=float, default=250, help="rows a second of each of the two sources (250)")
    add("--seeds", type=int, nargs="+", default=[1], help="one run for each (1)")
    return options.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    """Run the command and return the exit code."""
    given = _parse(arguments)
    processes.become_subreaper()
    with (
        tempfile.TemporaryDirectory(prefix="bruce-spark-") as directory,
        KafkaCluster(NEWEST, brokers=BROKERS) as kafka,
    ):
        for seed in given.seeds:
            place = Path(directory) / f"seed-{seed}"
            place.mkdir()
            SparkChaos(seed, given.rate, kafka, place).run(given.minutes * 60)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
