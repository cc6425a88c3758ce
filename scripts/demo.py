"""Run the steps of scripts/demo after the first, which creates the Python environment. Options: `scripts/demo --help`.

The demo does what a user does: `bruce run` is the daemon, `bruce send --lines` sends the lines, a normal consumer reads
them back, and `bruce check` checks the daemon's books (received = delivered + discarded + held). The demo succeeds only
if each line arrived exactly once, and the lines of each partition are in the order in which they were sent.
"""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
import time
from collections import Counter, defaultdict
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from kafka import KafkaConsumer, TopicPartition

from scripts.demo_input import DemoError, collect
from scripts.demo_services import (
    BRUCE,
    PARTITIONS,
    Daemon,
    Interrupts,
    Service,
    bootstrap_of,
    broker_service,
    run_bruce,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from scripts.demo_input import Feed

# --- the comparison --------------------------------------------------------------------------------------------------


def read_back(bootstrap: str, topics: Iterable[str]) -> dict[str, dict[int, list[bytes]]]:
    """Read all values with kafka-python's consumer. Return them by topic and partition, in the order of offsets."""
    logging.getLogger("kafka").setLevel(logging.ERROR)
    partitions = [TopicPartition(topic, partition) for topic in topics for partition in range(PARTITIONS)]
    values: dict[str, dict[int, list[bytes]]] = defaultdict(dict)
    consumer = KafkaConsumer(bootstrap_servers=bootstrap.split(","), group_id=None, enable_auto_commit=False)
    try:
        consumer.assign(partitions)
        consumer.seek_to_beginning()
        end_offsets = consumer.end_offsets(partitions)
        deadline = time.monotonic() + 60
        while any(consumer.position(partition) < end_offsets[partition] for partition in partitions):
            if time.monotonic() > deadline:
                raise DemoError("The consumer did not reach the end of the topics within 60 s.")
            for partition, records in consumer.poll(500).items():
                values[partition.topic].setdefault(partition.partition, []).extend(record.value for record in records)
    finally:
        consumer.close()
    return values


def faults_of(lines: list[bytes], found: dict[int, list[bytes]]) -> str:
    """Describe how the values in Kafka differ from the sent lines; return "" if each line arrived once and in order.

    `found` has the values of each partition.
    """
    sent, read = Counter(lines), Counter(value for values in found.values() for value in values)
    faults = {
        "missing": sum((sent - read).values()),
        "too many": sum((read - sent).values()),
        "partitions out of order": sum(not is_in_order(lines, values) for values in found.values()),
    }
    return ", ".join(f"{count} {name}" for name, count in faults.items() if count)


def is_in_order(sent: list[bytes], read: list[bytes]) -> bool:
    """Return True if all of `read` are in `sent`, in the same order; other elements of `sent` may be between them."""
    rest = iter(sent)
    return all(value in rest for value in read)  # `in` consumes `rest` up to the value that it finds


# --- the steps -------------------------------------------------------------------------------------------------------


@contextmanager
def step(number: int, text: str) -> Iterator[None]:
    """Print a line about a step of the demo, which the `with` block executes, and its duration at the end."""
    began = time.monotonic()
    print(f"{number}. {text} ... ", end="", flush=True)
    try:
        yield
    except BaseException:
        print(flush=True)
        raise
    print(f"{time.monotonic() - began:.1f} s", flush=True)


def report(text: str) -> None:
    print(f"     {text}", flush=True)


class Demo:
    """The steps from number 2 on. At its end, `stack` stops the processes that they started."""

    def __init__(self, options: argparse.Namespace, stack: ExitStack, interrupts: Interrupts) -> None:
        self._options = options
        self._stack = stack
        self._interrupts = interrupts
        self._feeds = collect(options.logs, options.lines)
        self._topics = [feed.topic for feed in self._feeds]
        with interrupts.deferred():
            self._directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bruce-demo-")))

    def _start(self, service: Service) -> None:
        with self._interrupts.deferred():
            self._stack.enter_context(service)

    def run(self) -> str:
        self._start_broker()
        self._start_daemon()
        self._send_all()
        self._read_back()
        balance = self._check()
        if self._options.stay:
            balance = self._stay()
        self._stop()
        return balance

    def _start_broker(self) -> None:
        kind = "a real Kafka broker" if self._options.kafka else "an embedded Kafka broker, `bruce dev-broker`"
        with step(2, f"Start {kind}"):
            service = broker_service(self._directory, self._topics, real=self._options.kafka)
            self._start(service)
            self._bootstrap = bootstrap_of(service)
        report(f"it listens at {self._bootstrap}")

    def _start_daemon(self) -> None:
        with step(3, "Start the daemon, `bruce run`"):
            self._daemon = Daemon(self._directory, self._bootstrap)
            self._start(self._daemon)
            names = self._daemon.wait_started()
        report(f"its processes: {', '.join(names)}")
        report(f"its status page: {self._page}")

    @property
    def _page(self) -> str:
        return f"http://{self._daemon.address}/"

    def _send_all(self) -> None:
        total = sum(len(feed.lines) for feed in self._feeds)
        with step(4, f"Send {total:,} real lines with `bruce send --lines`, until Kafka has acknowledged them all"):
            for feed in self._feeds:
                self._send_lines(feed)
            self._daemon.wait_delivered(total)
        for feed in self._feeds:
            more = f" and {len(feed.origins) - 1} more" if len(feed.origins) > 1 else ""
            report(f"{len(feed.lines):,} lines of {feed.origins[0]}{more} to the topic {feed.topic}")

    def _send_lines(self, feed: Feed) -> None:
        """Send the lines of a topic from a copy, because log files may grow during the demo."""
        copy = self._directory / f"{feed.topic}.txt"
        copy.write_bytes(b"".join(line + b"\n" for line in feed.lines))
        run_bruce("send", "--socket-path", self._daemon.socket, "--topic", feed.topic, "--lines", copy)

    def _read_back(self) -> None:
        with step(5, "Read the topics back with kafka-python's KafkaConsumer, and compare"):
            values = read_back(self._bootstrap, self._topics)
            faults = {feed.topic: faults_of(feed.lines, values[feed.topic]) for feed in self._feeds}
        for feed in self._feeds:
            report_arrival(feed, values[feed.topic], faults[feed.topic])
        if any(faults.values()):
            raise DemoError("The messages in Kafka differ from the sent lines.")

    def _check(self) -> str:
        with step(6, "Ask the daemon whether its books balance, `bruce check`"):
            balance = self._daemon.balance()
        report(balance)
        return balance

    def _stay(self) -> str:
        socket, topic = self._daemon.socket, self._topics[0]
        print(f"\nThe demo keeps running until Ctrl-C. Open {self._page} and send messages to {socket}:")
        report(f"{BRUCE} send --socket-path {socket} --topic {topic} --value hello")
        report(f"{BRUCE} status --url {self._page}")
        report(f"or in Python, {sys.executable}, after `from bruce_mp.client import DatagramClient`:")
        report(f'DatagramClient("{socket}").send("{topic}", b"hello")')
        sys.stdout.flush()
        try:
            self._daemon.wait()
        except KeyboardInterrupt:
            print()
        return self._daemon.balance()

    def _stop(self) -> None:
        with step(7, "Stop the daemon (SIGTERM), then the broker; remove the temporary files"):
            status = self._daemon.stop()
            self._stack.close()
        if status:
            raise DemoError(f"The daemon ended with status {status}.")


def report_arrival(feed: Feed, found: dict[int, list[bytes]], faults: str) -> None:
    """Print how many lines of a topic arrived, and if they arrived once and in order: if `faults` is empty."""
    total = sum(len(values) for values in found.values())
    partitions = sorted(found)
    counts = ", ".join(f"{len(found[partition]):,} in partition {partition}" for partition in partitions)
    report(f"{feed.topic}: {len(feed.lines):,} sent, {total:,} arrived ({counts}): {faults or 'each once, in order'}")
    if partitions:
        report(f"  partition {partitions[0]} begins: {printable(found[partitions[0]][0], 80)}")


def printable(value: bytes, width: int) -> str:
    """Return the value as text of at most `width` characters, without characters that change the terminal."""
    text = "".join(character if character.isprintable() else "?" for character in value.decode("utf-8", "replace"))
    return text if len(text) <= width else f"{text[: width - 3]}..."


# --- the command -----------------------------------------------------------------------------------------------------


def parse_options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/demo", add_help=False)
    parser.add_argument("--stay", action="store_true")
    parser.add_argument("--kafka", action="store_true")
    parser.add_argument("--logs", type=Path, default=Path("/var/log"), metavar="DIR")
    parser.add_argument("--lines", type=parse_positive, default=50_000, metavar="N")
    parser.add_argument("--began-us", type=int, default=time.time_ns() // 1000)
    return parser.parse_args(arguments)


def parse_positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 up")
    return int(text)


def main(arguments: Sequence[str]) -> int:
    options, interrupts = parse_options(arguments), Interrupts()
    try:
        with ExitStack() as stack:
            balance = Demo(options, stack, interrupts).run()
    except DemoError as error:
        print(f"scripts/demo: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("scripts/demo: interrupted; everything is stopped and removed.", file=sys.stderr)
        return 130
    print(f"Done in {time.time() - options.began_us / 1e6:.0f} s. Nothing is left running.")
    print(balance)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
