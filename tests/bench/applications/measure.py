"""Runs of applications: CPU of the application's process, and of the daemon or of none.

The cost of the pauses between messages is measured by runs that send nothing, and subtracted.
"""

from __future__ import annotations

import subprocess
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, Self

from bench import cost
from bench.applications.results import Cost, Load
from bench.brokers import started_brokers
from bench.cases import Case, Site
from bench.daemon import measured_daemon
from bench.results import per_message, refusals_of
from bench.tools import SendError, Sent
from support import processes

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from bench.applications.senders import Sender
    from bench.brokers import Brokers
    from bench.daemon import MeasuredDaemon
    from bench.tools import Tools

__all__ = ["LOADS", "measure"]

SITE: Final = Site(topics=1, streams=True)
TOPIC: Final = SITE.topic_names[0]
PACED_S: Final = 2
WARM_UP: Final = 5
"""Share of a load that is sent before it is measured, so that a just-in-time compiler has done its work."""
REST_S: Final = 2.0
LOADS: Final = (
    *(Load(size, 0, messages) for size, messages in ((100, 400_000), (1024, 150_000), (10_240, 24_000))),
    *(Load(size, rate, rate * PACED_S) for rate in (2_000, 20_000) for size in (100, 1024, 10_240)),
)


class Application:
    """A running application, which sends loads of one size."""

    def __init__(self, command: Sequence[str], kind: str, address: str, size: int) -> None:
        words = [*command, kind, address, TOPIC, str(size)]
        self._process = processes.spawn(words, output=subprocess.PIPE, input=subprocess.PIPE)
        self._expect("READY")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()

    def _expect(self, word: str) -> None:
        assert self._process.stdout is not None
        line = self._process.stdout.readline().decode().strip()
        if line != word:
            raise SendError(f"the application says {line!r} instead of {word}")

    def run(self, messages: int, rate: int, *, dry: bool = False) -> tuple[Sent, float]:
        """Send messages; return the seconds and the CPU seconds. Raises SendError."""
        assert self._process.stdin is not None
        before, start = cost.cpu_seconds(self._process.pid), time.monotonic()
        self._process.stdin.write(f"{messages} {rate} {int(dry)}\n".encode())
        self._process.stdin.flush()
        self._expect("SENT")
        return Sent(messages, time.monotonic() - start), cost.cpu_seconds(self._process.pid) - before

    def pauses_s(self, load: Load) -> float:
        """Return the CPU seconds of the load's pauses."""
        return self.run(load.messages, load.rate, dry=True)[1] if load.rate else 0.0


def measure(
    sender: Sender, loads: Sequence[Load], tools: Tools, directory: Path, daemon: MeasuredDaemon
) -> Iterator[Cost]:
    """Measure the loads, ordered by size. Raises AbsentError, SendError or TimeoutError."""
    command = sender.command(directory)
    for size in dict.fromkeys(load.size for load in loads):
        mine = [load for load in loads if load.size == size]
        if sender.transport:
            with Application(command, sender.kind, daemon.path(sender.transport), size) as application:
                yield from (_through(daemon, sender, load, application) for load in mine)
        else:
            with (
                started_brokers(tools, SITE, directory) as broker,
                Application(command, sender.kind, broker.bootstrap, size) as application,
            ):
                yield from (_in_process(broker, sender, load, application) for load in mine)


def _through(daemon: MeasuredDaemon, sender: Sender, load: Load, application: Application) -> Cost:
    spent = [0.0]

    def send() -> Sent:
        sent, spent[0] = application.run(load.messages, load.rate)
        return sent

    case = Case(load.name, load.size, load.messages)
    warm_up = load.messages // WARM_UP
    daemon.carry(case, lambda: application.run(warm_up, load.rate)[0])
    run = daemon.carry(case, send)
    if reasons := refusals_of(run):
        raise SendError("; ".join(reasons))
    own = spent[0] - application.pauses_s(load)
    return Cost(
        sender.name,
        load.name,
        per_message(own, load.messages),
        per_message(sum(run.cpu_s.values()), run.delivered),
        run.delivered / run.settle_s,
    )


def _in_process(broker: Brokers, sender: Sender, load: Load, application: Application) -> Cost:
    application.run(load.messages // WARM_UP, load.rate)
    before = broker.statistics().records
    sent, spent = application.run(load.messages, load.rate)
    stored = broker.statistics().records - before
    if stored != load.messages:
        raise SendError(f"{load.messages} were sent, the broker stored {stored}")
    own = spent - application.pauses_s(load)
    return Cost(sender.name, load.name, per_message(own, load.messages), 0.0, load.messages / sent.seconds)


@contextmanager
def resting_daemon(tools: Tools, directory: Path) -> Iterator[MeasuredDaemon]:
    """Start the daemon of all applications, and measure what it costs when idle."""
    with measured_daemon(tools, directory, SITE) as daemon:
        daemon.rest(REST_S)
        yield daemon
