"""The brokers of a measured daemon.

The benchmark measures the daemon, so the brokers must cost little, as if they were on other machines.  The sink is a C
program that checks the header of each record batch and discards the rest.  The embedded brokers keep all records and
check every byte: they replace the sink for cases that need this, or without a C compiler.
"""

from __future__ import annotations

import subprocess
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, Self

from bruce_mp.devbroker.control import DevBroker
from support import processes

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from types import TracebackType

    from bench.cases import Site
    from bench.tools import Tools

__all__ = ["STUCK", "Brokers", "Sink", "started_brokers"]

STUCK: Final = "stuck"
"""The topic that fills the slab: its partitions have no leader."""
POLL_INTERVAL_S: Final = 0.02


class Received(Protocol):
    """Counts of the received records and batches of all topics."""

    @property
    def records(self) -> int: ...

    @property
    def batches(self) -> int: ...


class Brokers(Protocol):
    """The interface of a site's brokers, which are all in one process."""

    bootstrap: str

    @property
    def pid(self) -> int:
        """The process id."""

    def statistics(self) -> Received:
        """Return the counts until now."""

    def wait_until(self, *, records: int, within: float) -> object:
        """Return once `records` records have arrived.  Raises TimeoutError."""


class SinkCounts(NamedTuple):
    """Counts of the sink: accepted records and batches, and refused batches.

    `wait_ms` is the 99th percentile, since the last counts, of the time from a record's timestamp to its batch.  Each
    record counts as old as the first of its batch.
    """

    records: int
    batches: int
    refused: int
    wait_ms: int


class Sink:
    """Brokers that discard all records, see `programs/sink.c`.  `directory` is for the sink's file."""

    def __init__(self, tools: Tools, site: Site, directory: Path) -> None:
        topics = directory / "topics"
        lines = [f"{name} {site.partitions}\n" for name in site.topic_names]
        topics.write_text("".join([*lines, f"{STUCK} -1\n"] if site.filled else lines))
        command = [*tools.sink, str(topics), str(site.brokers), str(site.ack_delay_ms)]
        self._process = processes.spawn(command, output=subprocess.PIPE, input=subprocess.PIPE)
        ready, *ports = self._line().split()
        if ready != "READY":
            raise RuntimeError(f"The sink did not start: {ready} {' '.join(ports)}")
        self.bootstrap = ",".join(f"127.0.0.1:{port}" for port in ports)

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().decode()

    @property
    def pid(self) -> int:
        return self._process.pid

    def statistics(self) -> SinkCounts:
        """Return the counts until now."""
        assert self._process.stdin is not None
        self._process.stdin.write(b"\n")
        self._process.stdin.flush()
        return SinkCounts(*map(int, self._line().split()))

    def wait_until(self, *, records: int, within: float) -> SinkCounts:
        """Return once the sink has `records` records.  Raises TimeoutError."""
        deadline = time.monotonic() + within
        while (counts := self.statistics()).records < records:
            if time.monotonic() > deadline:
                raise TimeoutError(f"Of {records} records {counts.records} came within {within:g} s.")
            time.sleep(POLL_INTERVAL_S)
        return counts

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(timeout=10)
        self._process.stdout.close()


@contextmanager
def started_brokers(tools: Tools, site: Site, directory: Path) -> Iterator[Brokers]:
    """Start the brokers of a site, and stop them at the end."""
    if tools.sink and not site.keeps_records:
        with Sink(tools, site, directory) as sink:
            yield sink
    else:
        with _embedded(site) as broker:
            yield broker


def _embedded(site: Site) -> DevBroker:
    """Return embedded brokers, with one more that is down if messages must get stuck."""
    topics = dict.fromkeys(site.topic_names, site.partitions)
    brokers = site.brokers + bool(site.filled)
    broker = DevBroker(topics=topics, brokers=brokers, ack_delay_ms=site.ack_delay_ms)
    if site.filled:
        broker.add_topic(STUCK, 1)
        for topic, partitions in topics.items():
            for partition in range(partitions):
                broker.move_leader(topic, partition, 1 + partition % site.brokers)
        broker.move_leader(STUCK, 0, brokers)
        broker.broker_down(brokers)
    return broker
