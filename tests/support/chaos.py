"""The chaos driver: a seeded sequence of faults against a running daemon and a real three-broker Kafka.

Senders send all the while.  The faults hit brokers (killed, stopped, leaders moved) one at a time, and our processes
(killed, stopped, all killed at once, restarted) at any moment.  In the end everything is read back: what the daemon
received is in Kafka exactly once, unchanged and in order.

One thing cannot be asked of the daemon: datagrams that wait in the kernel's queue when the last process that holds the
socket dies are gone with the socket.  So at most that many may be missing for each time that everything was killed.
"""

from __future__ import annotations

import os
import random
import re
import signal
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

import psutil

from support import processes
from support.traffic import Load, Seen, digest_of, messages_of

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Mapping

    from support.daemon import Daemon
    from support.kafka_cluster import KafkaCluster

__all__ = ["Chaos", "Outcome", "check"]

SENDER: Final = Path(__file__).parents[1] / "chaos" / "sender.py"
QUEUE: Final = 64
"""More than any kernel queue of the machines we test on holds by default, per kill of everything."""


@dataclass(slots=True)
class Outcome:
    """What a run did; `sent` has for each sender how many of its messages the kernel took."""

    sent: dict[int, int] = field(default_factory=dict)
    deeds: list[str] = field(default_factory=list)
    sockets_lost: int = 0
    received_before: int = 0
    """What the daemon received in lives that ended with everything delivered."""


class Chaos:
    """One run of `seconds` with `seed`."""

    def __init__(self, daemon: Daemon, cluster: KafkaCluster, load: Load, rate: float, seed: int) -> None:
        self._daemon = daemon
        self._cluster = cluster
        self._load = load
        self._rate = rate
        self._rng = random.Random(seed)
        self._outcome = Outcome()
        self._broker_busy_until = 0.0
        self._mend: Callable[[], None] | None = None

    def run(self, seconds: float) -> Outcome:
        """Send and do harm for so long; then mend everything and wait until all is delivered."""
        senders = [self._start_sender(number) for number in range(self._load.senders)]
        try:
            self._do_harm_for(seconds)
            for number, sender in enumerate(senders):
                self._stop_sender(number, sender)
        finally:
            processes.kill([psutil.Process(sender.pid) for sender in senders if sender.poll() is None])
        self._cluster.heal()
        self._settle()
        return self._outcome

    def _do_harm_for(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            time.sleep(self._rng.uniform(0.2, 1.5))
            self._mend_broker_if_due()
            self._do_harm()
            books = self._daemon.books()
            assert books.balanced or not books.consistent, books
        self._mend_broker()

    def _settle(self) -> None:
        daemon = self._daemon
        daemon.wait_for(lambda: _is_settled(daemon), "everything to be delivered", 120)
        books = daemon.books()
        assert books.balanced, books
        assert not books.discarded, books

    # --- senders -----------------------------------------------------------------------------------------------------

    def _report(self, number: int) -> Path:
        return self._daemon.directory / f"sent-{number}"

    def _start_sender(self, number: int) -> subprocess.Popen[bytes]:
        topics = ",".join(self._load.topics)
        command = [sys.executable, SENDER, self._daemon.socket_path, number, topics, self._rate, self._report(number)]
        env = {**os.environ, "PYTHONPATH": str(SENDER.parents[1])}
        return processes.spawn([str(word) for word in command], output=sys.stderr.fileno(), env=env)

    def _stop_sender(self, number: int, sender: subprocess.Popen[bytes]) -> None:
        sender.send_signal(signal.SIGTERM)
        assert sender.wait(30) == 0
        self._outcome.sent[number] = int(self._report(number).read_text())

    # --- deeds -------------------------------------------------------------------------------------------------------

    def _do_harm(self) -> None:
        deeds = [
            (30, self._kill_one),
            (8, self._freeze_one),
            (6, self._kill_everything),
            (4, self._restart_daemon),
            (12, self._kill_broker),
            (8, self._freeze_broker),
            (14, self._move_leader),
        ]
        deed = self._rng.choices([deed for _, deed in deeds], [weight for weight, _ in deeds])[0]
        deed()

    def _note(self, text: str) -> None:
        self._outcome.deeds.append(f"{time.strftime('%H:%M:%S', time.gmtime())} {text}")

    def _victim(self) -> tuple[str, int] | None:
        alive = sorted(self._daemon.pids().items())
        return self._rng.choice(alive) if alive else None

    def _kill_one(self) -> None:
        if victim := self._victim():
            self._note(f"kill {victim[0]}")
            with suppress(ProcessLookupError):
                os.kill(victim[1], signal.SIGKILL)

    def _freeze_one(self) -> None:
        if victim := self._victim():
            self._note(f"freeze {victim[0]}")
            with suppress(ProcessLookupError):
                os.kill(victim[1], signal.SIGSTOP)
                time.sleep(self._rng.uniform(0.1, 1.5))
                os.kill(victim[1], signal.SIGCONT)

    def _kill_everything(self) -> None:
        self._note("kill everything")
        self._outcome.sockets_lost += 1
        self._daemon.kill_all()
        self._daemon.start()

    def _restart_daemon(self) -> None:
        """A clean shutdown that could deliver everything removes the slab, and the counters with it."""
        self._note("restart the daemon")
        self._outcome.sockets_lost += 1
        assert self._daemon.terminate() == 0
        if not self._daemon.slab_path.exists():
            self._outcome.received_before += self._received_last()
        self._daemon.start()

    def _received_last(self) -> int:
        """What the daemon had received when it ended, by its last words."""
        return int(re.findall(r"received (\d+)", self._daemon.log())[-1])

    def _kill_broker(self) -> None:
        if self._mend is None:
            node = self._rng.choice(self._cluster.node_ids)
            self._note(f"kill broker {node}")
            self._cluster.kill(node)
            self._mend_later(lambda: self._cluster.restart(node))

    def _freeze_broker(self) -> None:
        if self._mend is None:
            node = self._rng.choice(self._cluster.node_ids)
            self._note(f"freeze broker {node}")
            self._cluster.stop(node)
            self._mend_later(lambda: self._cluster.cont(node))

    def _move_leader(self) -> None:
        if self._mend is None:
            topic = self._rng.choice(self._load.topics)
            replicas = list(self._cluster.node_ids)
            self._rng.shuffle(replicas)
            self._note(f"lead {topic}-0 from broker {replicas[0]}")
            with suppress(AssertionError, TimeoutError):
                self._cluster.move_leader(topic, 0, replicas)

    def _mend_later(self, mend: Callable[[], None]) -> None:
        self._mend = mend
        self._broker_busy_until = time.monotonic() + self._rng.uniform(2, 8)

    def _mend_broker_if_due(self) -> None:
        if self._mend is not None and time.monotonic() >= self._broker_busy_until:
            self._mend_broker()

    def _mend_broker(self) -> None:
        """One broker at a time: the next fault waits until every replica is in sync again."""
        if self._mend is not None:
            mend, self._mend = self._mend, None
            mend()
            for topic in self._load.topics:
                self._cluster.wait_in_sync(topic)


def _is_settled(daemon: Daemon) -> bool:
    books = daemon.books()
    return books.consistent and not sum(books.held.values())


def check(load: Load, outcome: Outcome, received: int, records: Mapping[str, list[Seen]]) -> None:
    """What was read back against what was sent: exactly once, unchanged, in order, and as many as the books say."""
    sent = {
        (sender, number): (message.topic, message.key, digest_of(message.value), message.timestamp_ms)
        for sender, count in outcome.sent.items()
        for number, message in zip(range(count), messages_of(load, sender), strict=False)
    }
    keyed = {
        (sender, number): message.partition_key is not None
        for sender, count in outcome.sent.items()
        for number, message in zip(range(count), messages_of(load, sender), strict=False)
    }
    read: set[tuple[int, int]] = set()
    last: dict[tuple[str, int, int, bool], int] = {}
    for topic, some in records.items():
        for seen in some:
            name = _name(seen)
            assert name not in read, f"Message {name} was read twice."
            read.add(name)
            if name not in sent:  # taken by the kernel although its sender was stopped before it noted it
                continue
            assert sent[name] == (topic, seen.key or b"", digest_of(seen.value or b""), seen.timestamp_ms)
            place = (topic, seen.partition, name[0], keyed[name])
            before = last.get(place, -1)
            assert before < name[1], f"{topic}-{seen.partition}: {name} came after {before} (keyed: {keyed[name]})."
            last[place] = name[1]
    missing = sorted(sent.keys() - read)
    assert len(missing) <= outcome.sockets_lost * QUEUE, f"{len(missing)} are missing: {missing[:20]}"
    assert len(read) == received, f"{received} were received and {len(read)} read; missing: {missing[:20]}"


def _name(seen: Seen) -> tuple[int, int]:
    assert seen.value is not None
    sender, number = seen.value.split(b":", 2)[:2]
    return int(sender), int(number)
