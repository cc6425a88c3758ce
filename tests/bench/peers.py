"""Other producers that bring the same load to the same brokers, if they are installed already.

rsyslog is a daemon like ours: it receives text from our sender on a socket.  The others have no socket: kcat reads a
file, and the client libraries have the messages in memory, so they show the cost of producing without a daemon.  All
are configured to batch as the daemon does, with acks of all replicas.  They get plain text of the same sizes, because
they do not know the daemon's protocol.
"""

from __future__ import annotations

import resource
import shutil
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

from bench import cost
from bench.brokers import started_brokers
from bench.corpus import lines, write_text
from bench.results import DaemonRun
from bench.tools import PROGRAMS, SendError, finish, run_sender
from support import processes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from bench.brokers import Brokers
    from bench.cases import Case
    from bench.tools import Tools

__all__ = ["PEERS", "absence", "run_peer"]

TIMEOUT_S: Final = 90.0
RSYSLOG: Final = """
global(workDirectory="{directory}" maxMessageSize="64k" parser.escapeControlCharactersOnReceive="off")
module(load="imuxsock" SysSock.Use="off")
module(load="omkafka")
template(name="raw" type="string" string="%msg%")
input(type="imuxsock" Socket="{socket}" RateLimit.Interval="0" CreatePath="off")
action(
    type="omkafka" broker=["{broker}"] topic="bench-0" template="raw" partitions.auto="on"
    confParam=["queue.buffering.max.ms=500", "batch.size=65536", "acks=all"]
    queue.type="LinkedList" queue.size="50000" queue.timeoutEnqueue="60000" queue.dequeueBatchSize="1024"
)
"""
RSYSLOG_HEAD: Final = b"<13>Jan  1 00:00:00 bench bench: "


@dataclass(frozen=True, slots=True)
class Work:
    """The load of a peer."""

    tools: Tools
    case: Case
    directory: Path
    broker: Brokers


@dataclass(frozen=True, slots=True)
class Done:
    """The results of a peer, from its own report or from measurements."""

    seconds: float
    cpu_s: float


def _run_rsyslog(work: Work) -> Done:
    messages, socket = work.directory / "text", work.directory / "rsyslog.dgram"
    write_text(messages, work.case.size, head=RSYSLOG_HEAD)
    with _rsyslog(work.directory, work.broker.bootstrap, socket) as pid:
        cpu, start = cost.cpu_seconds(pid), time.monotonic()
        run_sender(work.tools, work.case, f"datagram:{socket}", messages, bare=True)
        work.broker.wait_until(records=work.case.messages, within=TIMEOUT_S)
        return Done(time.monotonic() - start, cost.cpu_seconds(pid) - cpu)


@contextmanager
def _rsyslog(directory: Path, broker: str, socket: Path) -> Iterator[int]:
    config = directory / "rsyslog.conf"
    config.write_text(RSYSLOG.format(directory=directory, broker=broker, socket=socket))
    program = shutil.which("rsyslogd", path=_PATH)
    assert program is not None
    command = [program, "-n", "-f", str(config), "-i", str(directory / "rsyslog.pid")]
    daemon = processes.spawn(command, output=subprocess.PIPE)
    try:
        processes.wait_until(socket.exists, "rsyslog to listen")
        yield daemon.pid
    finally:
        daemon.terminate()
        finish(daemon, timeout=20.0)


def _run_kcat(work: Work) -> Done:
    file = work.directory / "lines"
    text = lines(work.case.size)
    file.write_bytes(b"".join(text[number % len(text)] + b"\n" for number in range(work.case.messages)))
    program = _kcat()
    assert program is not None
    options = [f"-X{setting}" for setting in ("linger.ms=500", "batch.size=65536", "acks=all")]
    cpu, start = _children_s(), time.monotonic()
    command = [program, "-P", "-b", work.broker.bootstrap, "-t", "bench-0", *options, "-l", str(file)]
    said = finish(processes.spawn(command, output=subprocess.PIPE), TIMEOUT_S)
    if said:
        raise SendError(f"kcat says: {said[-400:]}")
    return Done(time.monotonic() - start, _children_s() - cpu)


def _run_library(work: Work) -> Done:
    file = work.directory / "lines"
    file.write_bytes(b"\n".join(lines(work.case.size)))
    program = [sys.executable, str(PROGRAMS / "produce.py"), work.case.by]
    arguments = [work.broker.bootstrap, str(file), str(work.case.messages)]
    words = finish(processes.spawn([*program, *arguments], output=subprocess.PIPE), TIMEOUT_S).split()
    if words[:2] != ["PRODUCED", str(work.case.messages)]:
        raise SendError(f"{work.case.by} did not produce everything: {' '.join(words[-40:])}")
    return Done(float(words[2]), float(words[3]))


def _children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


_PATH: Final = "/usr/local/sbin:/usr/sbin:/sbin:/usr/local/bin:/usr/bin:/bin"


def _kcat() -> str | None:
    return shutil.which("kcat", path=_PATH) or shutil.which("kafkacat", path=_PATH)


def _has_rsyslog() -> bool:
    """Return True if rsyslog and its separate package for Kafka are installed."""
    program = shutil.which("rsyslogd", path=_PATH)
    if program is None:
        return False
    check = [program, "-N1", "-f", "/dev/stdin"]
    config = b'module(load="omkafka")\naction(type="omfile" file="/dev/null")\n'
    return subprocess.run(check, input=config, capture_output=True, check=False).returncode == 0


PEERS: Final[Mapping[str, tuple[Callable[[], bool], str, Callable[[Work], Done]]]] = {
    "rsyslog": (_has_rsyslog, "on Debian and Ubuntu: apt install rsyslog rsyslog-kafka", _run_rsyslog),
    "kcat": (lambda: _kcat() is not None, "on Debian and Ubuntu: apt install kcat", _run_kcat),
    "confluent-kafka": (lambda: find_spec("confluent_kafka") is not None, "pip install confluent-kafka", _run_library),
    "kafka-python": (lambda: find_spec("kafka") is not None, "pip install kafka-python", _run_library),
}
"""By name: a check of the installation, the way to install, and the function that runs the peer."""


def absence(name: str) -> str:
    """Return the reason why a peer cannot be measured, or an empty string."""
    is_there, remedy, _ = PEERS[name]
    return "" if is_there() else f"{name} is not installed ({remedy})"


def run_peer(tools: Tools, case: Case, directory: Path) -> DaemonRun:
    """Run a peer with a load and fresh brokers.  Raises SendError or TimeoutError."""
    with started_brokers(tools, case.site, directory) as broker:
        sink = cost.cpu_seconds(broker.pid)
        done = PEERS[case.by][2](Work(tools, case, directory, broker))
        stored = broker.statistics().records
        return DaemonRun(
            sent=case.messages,
            received=case.messages,
            delivered=stored,
            discarded=case.messages - stored,
            held=0,
            stored=stored,
            send_s=done.seconds,
            settle_s=done.seconds,
            cpu_s={case.by: done.cpu_s},
            wakeups={},
            sink_cpu_s=cost.cpu_seconds(broker.pid) - sink,
            balanced=True,
            same_processes=True,
        )
