"""The measured daemon: its start, its idle state, and one run under each load.

The slab and the sockets lie in shared memory, where the slab lies by default.  While a load runs, the
benchmark reads only a few counters in the slab; it reads the books before and after.  The brokers are one process; its
CPU is reported separately and belongs to no figure.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from bench import cost
from bench.brokers import STUCK, SinkCounts, started_brokers
from bench.cases import Case
from bench.corpus import datagrams, write_datagrams
from bench.first_message import FirstMessage
from bench.latency import latency_of
from bench.results import DaemonRun, Idle, Life
from bench.tools import run_sender
from bruce_mp.devbroker.control import DevBroker
from bruce_mp.errors import DiscardReason
from bruce_mp.status.pages.slab_use import read_slab_use
from bruce_mp.telemetry.books import counter_total
from bruce_mp.telemetry.counters import Counter, discarded
from support.daemon import Daemon

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from bench.brokers import Brokers, Received
    from bench.cases import Site, Transport
    from bench.cost import Usage
    from bench.tools import Sent, Tools
    from bruce_mp.slab.file import Slab

__all__ = ["MeasuredDaemon", "measured_daemon"]

LATENCY_BOUND: Final = "p99 at most"
SETTLE_TIMEOUT_S: Final = 45.0
WHOLE_S: Final = 120.0
LOADING: Final = " (loading)"
"""The end of the title of a process that still starts."""
CALM_S: Final = 1.0
"""Time after which the work of the start, or of the load before, is over."""
WARM_UP_SHARE: Final = 5
SLAB_BYTES: Final = 128 << 20
SETTINGS: Final[Mapping[str, object]] = {
    "slab.size": SLAB_BYTES,
    "logging.level": "NOTICE",
    "delivery.shutdown_max_delay_ms": 1000,
}
DISCARDED: Final = tuple(discarded(reason) for reason in DiscardReason)
STUCK_SIZE: Final = 1024
GREETING_SIZE: Final = 100
SURE_PERCENT: Final = 80
"""Share of the space that is filled in one step, the rest in more: headers and ends of chunks need some too."""


class MeasuredDaemon:
    """A running daemon and its broker.  `messages` is the number of messages sent before the first load."""

    def __init__(self, daemon: Daemon, broker: Brokers, first: FirstMessage, *, messages: int) -> None:
        self._daemon = daemon
        self._broker = broker
        self._first = first
        self._before = messages
        self._pids = cost.family(daemon.pid)
        self._memory_at_start = self._memory()
        self._memory_after: dict[str, dict[str, int]] = {}
        self._idle = Idle(0.0, {}, {})
        self._stuck = 0

    @property
    def connections(self) -> int:
        """Number of connections that dispatchers opened to their brokers."""
        return self._daemon.counted(Counter.ConnectorConnectSuccess)

    @property
    def processes(self) -> frozenset[str]:
        """The names of the processes with counted cost."""
        return frozenset(self._pids)

    def fill(self, tools: Tools, percent: int, messages: Path) -> None:
        """Fill `percent` of the slab with messages that wait for a leader."""
        write_datagrams(messages, [STUCK], STUCK_SIZE)
        most = SLAB_BYTES * percent // 100 // STUCK_SIZE
        self._stuck = self._send_stuck(tools, most * SURE_PERCENT // 100, messages)
        while (share := self._share_in_use()) < percent / 100:
            self._stuck += self._send_stuck(tools, most // 100, messages)
            assert self._share_in_use() > share, "the daemon discards what should fill its slab"

    def _send_stuck(self, tools: Tools, count: int, messages: Path) -> int:
        case = Case("stuck", STUCK_SIZE, count)
        run_sender(tools, case, self.address("datagram"), messages)
        self._wait_settled(self._before + self._stuck + count, self._before + self._stuck + count)
        return count

    def _share_in_use(self) -> float:
        with self._daemon.open_slab() as slab:
            return read_slab_use(slab).in_use_ratio

    def rest(self, seconds: float) -> None:
        """Measure the idle daemon."""
        time.sleep(CALM_S)
        before, start = cost.usage_of(self._pids), time.monotonic()
        time.sleep(seconds)
        spent = time.monotonic() - start
        after = cost.usage_of(self._pids)
        self._idle = Idle(
            spent,
            {name: (after[name].cpu_s - before[name].cpu_s) / spent for name in before},
            {name: (after[name].wakeups - before[name].wakeups) / spent for name in before},
        )

    def warm_up(self, tools: Tools, case: Case, messages: Path) -> None:
        """Send a part of the load without measuring, because topics and partitions have a first cost of their own.

        Each sender sends the messages in the same order, so the part has all topics only if each sender sends so many.
        """
        received = self._daemon.wait_consistent().received
        count = max(case.messages // WARM_UP_SHARE, case.senders * len(case.site.topic_names))
        sent = run_sender(tools, replace(case, messages=count), self.address(case.transport), messages)
        self._wait_settled(received + sent.messages, self._stuck)

    def carry(self, case: Case, send: Callable[[], Sent]) -> DaemonRun:
        """Call `send` and wait until all its messages are settled.  Raises SendError when it does."""
        books, stored, runs = self._daemon.wait_consistent(), self._broker.statistics(), self._runs()
        before, sink, start = cost.usage_of(self._pids), cost.cpu_seconds(self._broker.pid), time.monotonic()
        sent = send()
        settled = self._wait_settled(books.received + sent.messages, self._stuck)
        sink = cost.cpu_seconds(self._broker.pid) - sink
        spent = settled - start
        after = cost.usage_of(self._pids)
        self._memory_after[case.name] = self._memory().processes
        now, stored_now = self._daemon.wait_consistent(), self._broker.statistics()
        return DaemonRun(
            sent=sent.messages,
            received=now.received - books.received,
            delivered=now.delivered - books.delivered,
            discarded=sum(now.discarded.values()) - sum(books.discarded.values()),
            held=sum(now.held.values()) - self._stuck,
            stored=stored_now.records - stored.records,
            send_s=sent.seconds,
            settle_s=spent,
            cpu_s=self._above_idle(before, after, spent),
            wakeups={name: after[name].wakeups - before[name].wakeups for name in before},
            sink_cpu_s=sink,
            balanced=now.balanced,
            same_processes=cost.family(self._daemon.pid) == self._pids,
            latency_ms=self._latency_since(start) if case.stamped else _longest_wait(case, stored_now),
            runs=self._runs() - runs,
            batches=stored_now.batches - stored.batches,
        )

    def _runs(self) -> int:
        """Return the number of runs that inputs have published."""
        return self._daemon.counted(Counter.InputRunsPublished)

    def _latency_since(self, start: float) -> dict[str, float]:
        assert isinstance(self._broker, DevBroker), "only the embedded brokers know when something came"
        return latency_of(self._broker, int(start * 1e9))

    def address(self, transport: Transport) -> str:
        """Return the address for `run_sender`."""
        if transport == "tcp":
            return f"tcp:{self._daemon.tcp_port}"
        return f"{transport}:{self.path(transport)}"

    def path(self, transport: Transport) -> str:
        """Return the path of a UNIX socket."""
        return str(self._daemon.socket_path if transport == "datagram" else self._daemon.stream_path)

    def _above_idle(self, before: Mapping[str, Usage], after: Mapping[str, Usage], seconds: float) -> dict[str, float]:
        idle = self._idle.cpu
        return {name: after[name].cpu_s - before[name].cpu_s - idle.get(name, 0.0) * seconds for name in before}

    def _wait_settled(self, received: int, stuck: int) -> float:
        """Return the time when all messages but the stuck ones are settled, or of the timeout, as the books show."""
        with self._daemon.open_slab() as slab:
            deadline = time.monotonic() + SETTLE_TIMEOUT_S
            while not _is_settled(slab, received, stuck) and time.monotonic() < deadline:
                time.sleep(0.01)
            return time.monotonic()

    def _memory(self) -> cost.Memory:
        return cost.memory_of(self._pids, self._daemon.slab_path)

    def life(self) -> Life:
        """Return the figures of the daemon beside the loads."""
        return Life(
            taken_s=self._first.taken_s,
            received_s=self._first.received_s,
            idle=self._idle,
            memory_at_start=self._memory_at_start.processes,
            memory_after=self._memory_after,
            slab_mapped=self._memory().slab,
            slab_file=self._daemon.slab_path.stat().st_blocks * 512,
        )


def _longest_wait(case: Case, stored: Received) -> dict[str, float]:
    """Return the sink's bound of the latency; only a sender at a pace dates its messages."""
    return {LATENCY_BOUND: float(stored.wait_ms)} if case.rate and isinstance(stored, SinkCounts) else {}


def _is_settled(slab: Slab, received: int, stuck: int) -> bool:
    so_far = counter_total(slab, Counter.MsgReceived)
    gone = counter_total(slab, Counter.MsgDelivered) + sum(counter_total(slab, reason) for reason in DISCARDED)
    return so_far >= received and gone + stuck >= so_far


@contextmanager
def measured_daemon(tools: Tools, directory: Path, site: Site) -> Iterator[MeasuredDaemon]:
    """Start brokers and a daemon, with their files below `directory`, and stop both at the end."""
    with started_brokers(tools, site, directory) as broker:
        settings = {**SETTINGS, **_streams(directory, site), **site.settings}
        if site.filled:
            settings["topic_share.alpha"] = 0  # one stuck topic is to fill the slab beyond its part
        daemon = Daemon(directory, broker.bootstrap, settings)
        first = FirstMessage(daemon)
        first.start()
        with daemon:
            first.join()
            daemon.wait_settled(1)
            daemon.wait_for(lambda: is_whole(daemon, site), "every process to begin", WHOLE_S)
            _meet_brokers(daemon, site)
            yield MeasuredDaemon(daemon, broker, first, messages=1 + site.brokers)


def is_whole(daemon: Daemon, site: Site) -> bool:
    """Return True if each leader has its dispatcher, and no process still loads code, which is no cost of a message.

    The first message is delivered by whichever dispatcher begins first.  On two busy cores the last of thirty begins
    half a minute later, and until then has another title.
    """
    begun = daemon.counted(Counter.StartKafkaDispatcher)
    return begun >= site.leading_brokers and not any(name.endswith(LOADING) for name in cost.family(daemon.pid))


def _meet_brokers(daemon: Daemon, site: Site) -> None:
    """Send a message to each broker: in the short time of a load, AnyPartition messages do not reach all of thirty.

    A dispatcher connects when it has something to send, which costs as much as thousands of messages.
    """
    daemon.send_encoded(*datagrams(site.topic_names[:1], GREETING_SIZE, keyed=True)[: site.brokers])
    daemon.wait_settled(1 + site.brokers)


def _streams(directory: Path, site: Site) -> Mapping[str, object]:
    if not site.streams:
        return {}
    unix = {"input.unix_stream.enable": "true", "input.unix_stream.path": directory / "in.stream"}
    return {**unix, "input.tcp.enable": "true", "input.tcp.port": 0}
