"""`scripts/bench spark`: the cost of the Spark sink and the audit, beside Spark's Kafka connector and plain reading.

CPU is that of the JVM (driver and executor in one, with its compiler and garbage collection) with its Python workers,
and that of the daemon, from the call of `save()` to its end, per million rows in eight tasks.  `above noop` is the sum
without the cost of the same rows with the `noop` sink.  The measured runs take turns, after as many runs of each sink
as `--warm-up` says, because the JVM compiles its code in the first ones: `first` is the sum of a sink's first run.
Brokers are those of the cluster together.  Times are until the job is done: Kafka has all, unless stated.  Connections
are the connections that a sink opened to brokers in its first run.  MB are the largest resident memory of the JVM,
whose heap may have 2 GB, and of its Python workers.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
import time
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Final

import psutil

from bench.cost import cpu_seconds
from bench.machine import OthersLoad
from bruce_mp.spark.audit.kafka_source import CONSUMER_OPTIONS, read_topics
from bruce_mp.spark.audit.run import Audit, compare, write_facts
from bruce_mp.spark.ledger import TaskAttempt, TaskResult, write_ledger
from bruce_mp.spark.session import start_session
from support import processes
from support.daemon import Daemon
from support.kafka_cluster import KafkaCluster

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pyspark.sql import DataFrame, SparkSession

TOPIC: Final = "bench"
AUDITED: Final = "audited"
BY_ITSELF: Final = "read and count, Spark by itself"
AS_THE_AUDIT: Final = "read and count, as the audit reads"
WRITER: Final = "0f1c2d3e-4b5a-6978-8796-a5b4c3d2e1f0"
PARTS: Final = 8
TUNED: Final = {"kafka.linger.ms": "20", "kafka.batch.size": "262144"}
SETTINGS: Final = {
    "spark.driver.memory": "2g",
    "spark.log.level": "FATAL",
    "spark.sql.shuffle.partitions": "8",
}


def cpu_of_spark() -> float:
    """Return the CPU seconds of the JVM and of all Python workers, including ended ones."""
    total = 0.0
    for process in _spark_processes():
        with suppress(psutil.Error):
            times = process.cpu_times()
            ended = 0.0 if process.name() == "java" else times.children_user + times.children_system
            total += times.user + times.system + ended
    return total


def memory_of_spark() -> int:
    """Return the resident megabytes of the JVM and of all Python workers."""
    total = 0
    for process in _spark_processes():
        with suppress(psutil.Error):
            total += process.memory_info().rss
    return total >> 20


def cpu_of_daemon(daemon: Daemon) -> float:
    """Return the CPU seconds of the daemon's processes."""
    return sum(map(cpu_seconds, (daemon.pid, *daemon.pids().values())))


def cpu_of_brokers(kafka: KafkaCluster) -> float:
    """Return the CPU seconds of all brokers."""
    return sum(map(cpu_seconds, map(kafka.pid, kafka.node_ids)))


@dataclass
class Watch:
    """Wall time, CPU of Spark, daemon and brokers, and peaks of connections to brokers and of Spark's memory in MB."""

    kafka: KafkaCluster
    daemon: Daemon
    wall: float = 0.0
    cpu: float = 0.0
    daemon_cpu: float = 0.0
    brokers_cpu: float = 0.0
    opened: int = 0
    memory: int = 0
    _done: threading.Event = field(default_factory=threading.Event)

    def run(self, work: Callable[[], object]) -> Watch:
        thread = threading.Thread(target=self._count)
        thread.start()
        began, before = time.monotonic(), cpu_of_spark()
        daemon_before, brokers_before = cpu_of_daemon(self.daemon), cpu_of_brokers(self.kafka)
        try:
            work()
        finally:
            self.wall, self.cpu = time.monotonic() - began, cpu_of_spark() - before
            self.daemon_cpu = cpu_of_daemon(self.daemon) - daemon_before
            self.brokers_cpu = cpu_of_brokers(self.kafka) - brokers_before
            self._done.set()
            thread.join()
        return self

    def sum(self, name: str) -> float:
        """Return the CPU of Spark, and of the daemon if the sink of this name uses it."""
        return self.cpu + self.daemon_cpu * name.startswith("bruce")

    def _count(self) -> None:
        before = self._open()
        while not self._done.wait(0.2):
            self.opened = max(self.opened, self._open() - before)
            self.memory = max(self.memory, memory_of_spark())

    def _open(self) -> int:
        return sum(map(self._connections, _spark_processes()))

    def _connections(self, process: psutil.Process) -> int:
        try:
            found = process.net_connections("tcp")
        except psutil.Error:
            return 0
        ports = set(map(self.kafka.port, self.kafka.node_ids))
        return sum(1 for connection in found if connection.raddr and connection.raddr.port in ports)


def _spark_processes() -> list[psutil.Process]:
    found = []
    for process in psutil.Process().children(recursive=True):
        try:
            words = " ".join(process.cmdline())
        except psutil.Error:
            continue
        if "SparkSubmit" in words or "pyspark" in words:
            found.append(process)
    return found


@dataclass(frozen=True)
class Bench:
    """The objects that all measurements use."""

    spark: SparkSession
    kafka: KafkaCluster
    daemon: Daemon
    socket: str
    rows: int

    def frame(self) -> DataFrame:
        text = "cast(rpad(cast(id as string), 100, 'x') as binary) as value"
        return self.spark.range(0, self.rows, 1, PARTS).selectExpr(text)

    def watch(self, work: Callable[[], object]) -> Watch:
        return Watch(self.kafka, self.daemon).run(work)

    def noop(self) -> None:
        self.frame().write.format("noop").mode("overwrite").save()

    def bruce(self, **options: str) -> None:
        sink = self.frame().write.format("bruce").mode("append").option("topic", TOPIC)
        sink.options(**options).save(self.socket)

    def connector(self, **options: str) -> None:
        sink = self.frame().write.format("kafka").option("topic", TOPIC).mode("append")
        sink.option("kafka.bootstrap.servers", self.kafka.bootstrap).options(**options).save()


def measure_sinks(bench: Bench, warm_up: int, repeat: int) -> list[str]:
    """Lines of the table."""
    plain = {"stamp": "false", "fence": "false"}
    cases: dict[str, Callable[[], None]] = {
        "noop": bench.noop,
        "bruce": bench.bruce,
        "bruce without stamp and fence": lambda: bench.bruce(**plain),
        "Kafka connector": bench.connector,
        "Kafka connector, tuned": lambda: bench.connector(**TUNED),
    }
    all_runs: dict[str, list[Watch]] = {name: [] for name in cases}
    for _ in range(warm_up + repeat):
        for name, case in cases.items():
            all_runs[name].append(bench.watch(case))
    million = bench.rows / 1e6
    base = median(run.cpu for run in all_runs["noop"][warm_up:])
    head = f"{'CPU s/M rows: Spark':>20} {'daemon':>7} {'sum':>6} {'above noop':>11} {'first':>6} {'brokers':>8}"
    lines = [f"{'sink':30} {head} {'wall s':>8} {'connections':>12}"]
    for name, (first, *others) in all_runs.items():
        runs = others[warm_up - 1 :]
        cpu, total = median(run.cpu for run in runs), median(run.sum(name) for run in runs)
        brokers, wall = median(run.brokers_cpu for run in runs), median(run.wall for run in runs)
        figures = f"{cpu / million:20.2f} {(total - cpu) / million:7.2f} {total / million:6.2f}"
        above = f"{(total - base) / million:11.2f} {first.sum(name) / million:6.2f} {brokers / million:8.2f}"
        lines.append(f"{name:30} {figures} {above} {wall:8.2f} {first.opened:12}")
    return lines


def put_stamped(bench: Bench, records: int, ledger: str) -> None:
    """Write messages with the sink's stamps by the connector, and their ledger."""
    now = time.time_ns() // 1_000_000
    stamp = f"cast(concat(lpad(cast(number as string), 16, '0'), ' {now} {WRITER}/-1/', part, '/0') as binary)"
    frame = bench.spark.range(0, records, 1, PARTS).selectExpr(
        "id", "spark_partition_id() as part", f"id % {records // PARTS} as number"
    )
    frame = frame.selectExpr(
        "cast(rpad(cast(id as string), 100, 'x') as binary) as value", "part % 4 as partition",
        f"array(struct('bruce.stamp' as key, {stamp} as value)) as headers",
    )  # fmt: skip
    sink = frame.write.format("kafka").option("topic", AUDITED).option("includeHeaders", "true").mode("append")
    sink.option("kafka.bootstrap.servers", bench.kafka.bootstrap).options(**TUNED).save()
    counts = {(AUDITED, now - now % 60_000): records // PARTS}
    rows = [
        TaskResult(TaskAttempt(WRITER, -1, part, 0), "host", counts, "delivered", stamped=True) for part in range(PARTS)
    ]
    write_ledger(ledger, rows)


def measure_audit(bench: Bench, records: int, directory: Path, repeat: int) -> list[str]:
    """Lines of the table."""
    bench.kafka.create_topic(AUDITED, 4, config={"message.timestamp.type": "LogAppendTime"})
    put_stamped(bench, records, f"{directory}/ledger")
    plan = Audit(bench.kafka.bootstrap, [AUDITED], [f"{directory}/ledger"], f"{directory}/audit")

    def count(frame: DataFrame) -> None:
        assert frame.selectExpr("count(value)").collect()[0][0] == records

    def everything() -> None:
        write_facts(read_topics(bench.spark, plan.kafka_options, plan.topics), plan.facts_directory)
        verdict = compare(bench.spark, plan)
        assert verdict.is_good, verdict
        assert verdict.delivered == records, verdict

    cases: dict[str, Callable[[], None]] = {
        BY_ITSELF: lambda: count(read_by_itself(bench.spark, plan)),
        AS_THE_AUDIT: lambda: count(read_topics(bench.spark, plan.kafka_options, plan.topics)),
        "audit": everything,
    }
    for case in cases.values():
        case()
    runs: dict[str, list[Watch]] = {name: [] for name in cases}
    for _ in range(repeat):
        for name, case in cases.items():
            runs[name].append(bench.watch(case))
    bases = [median(run.wall for run in runs[name]) for name in (BY_ITSELF, AS_THE_AUDIT)]
    title = f"{records / 1e6:g} M records with headers"
    lines = [f"{title:40} {'wall s':>8} {'CPU s':>8} {'times':>6} {'times':>6} {'MB':>6}"]
    for name, found in runs.items():
        wall, cpu = median(run.wall for run in found), median(run.cpu for run in found)
        times, memory = f"{wall / bases[0]:6.2f} {wall / bases[1]:6.2f}", max(run.memory for run in found)
        lines.append(f"{name:40} {wall:8.2f} {cpu:8.2f} {times} {memory:6}")
    return lines


def read_by_itself(spark: SparkSession, plan: Audit) -> DataFrame:
    """Read topics with Spark's defaults, but with the audit's settings of the consumer."""
    places = {"kafka.bootstrap.servers": plan.bootstrap, "subscribe": ",".join(plan.topics)}
    return spark.read.format("kafka").options(**CONSUMER_OPTIONS, **places).load()


@contextmanager
def benchmark(rows: int) -> Iterator[tuple[Bench, Path]]:
    """Three brokers, a daemon with the slab's default size, and a session with two cores."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bruce-bench-")))
        kafka = stack.enter_context(KafkaCluster(brokers=3))
        kafka.create_topic(TOPIC, 6)
        (directory / "daemon").mkdir()
        socket = f"{directory}/daemon/stream"
        settings = {"input.unix_stream.enable": "true", "input.unix_stream.path": f'"{socket}"', "slab.size": '"128m"'}
        daemon = stack.enter_context(Daemon(directory / "daemon", kafka.bootstrap, settings))
        spark = start_session("bench", master="local[2]", kafka=True, settings=SETTINGS)
        stack.callback(spark.stop)
        yield Bench(spark, kafka, daemon, socket, rows), directory


def main(arguments: Sequence[str]) -> int:
    """Run it and print the tables."""
    options = argparse.ArgumentParser(prog="scripts/bench spark", description=__doc__)
    options.add_argument("--rows", type=int, default=1_000_000, metavar="N", help="rows of 100 bytes for each sink")
    options.add_argument(
        "--records", type=int, default=10_000_000, metavar="N", help="records that are audited; 0: none"
    )
    options.add_argument("--warm-up", type=int, default=6, metavar="N", help="runs of each sink before, at least 1")
    options.add_argument("--repeat", type=int, default=3, metavar="N", help="the figures are medians")
    chosen = options.parse_args(arguments)
    processes.become_subreaper()
    others = OthersLoad()
    with benchmark(chosen.rows) as (bench, directory):
        print("\n".join(measure_sinks(bench, max(1, chosen.warm_up), chosen.repeat)), flush=True)
        if chosen.records:
            print("\n" + "\n".join(measure_audit(bench, chosen.records, directory, chosen.repeat)), flush=True)
    print(f"\ncores busy with other work: {others.cores():.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
