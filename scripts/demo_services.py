"""The processes of scripts/demo: a Kafka broker and the daemon, each stopped at the end of its `with` block.

Each runs in its own session, so Ctrl-C in the terminal signals only the demo. The demo then stops the daemon, and
after it the broker, to which the daemon delivers its last messages.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from bruce_mp.cli.status_client import StatusClient, UnreadableError
from bruce_mp.config.addresses import parse_listen
from bruce_mp.status.pages.processes import ProcessesPage
from bruce_mp.supervisor.run_dir import HTTP_ADDRESS
from bruce_mp.telemetry.books import Books
from scripts.demo_input import ROOT, DemoError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from typing import Self

__all__ = ["BRUCE", "PARTITIONS", "Daemon", "Interrupts", "Service", "bootstrap_of", "broker_service", "run_bruce"]

BRUCE: Final = Path(sys.executable).with_name("bruce")
PARTITIONS: Final = 3  # of each topic
EMBEDDED_BROKERS: Final = 3  # in the process of the embedded broker

CONFIG: Final = """\
[kafka]
bootstrap_servers = [{servers}]
[input.unix_datagram]
path = "{directory}/bruce.dgram"
[daemon]
run_dir = "{directory}/run"
[slab]
path = "{directory}/slab"
size = "64m"
[http]
listen = "127.0.0.1:0"
[delivery]
shutdown_max_delay_ms = 10000
"""


class Interrupts:
    """Handler of SIGINT, SIGTERM and SIGHUP, which raises KeyboardInterrupt for the first signal only.

    Later signals have no effect, so that they cannot interrupt the clean-up.
    """

    def __init__(self) -> None:
        self._is_deferred = self._has_received = self._has_raised = False
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._on_signal)

    def _on_signal(self, _number: int, _frame: object) -> None:
        self._has_received = True
        if not self._is_deferred:
            self._raise_once()

    def _raise_once(self) -> None:
        if self._has_received and not self._has_raised:
            self._has_raised = True
            raise KeyboardInterrupt

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """Defer signals to the end of the block.

        A block that starts a process also registers it for the clean-up, so no signal can come between the two.
        """
        self._is_deferred = True
        try:
            yield
        finally:
            self._is_deferred = False
        self._raise_once()


class Service:
    """A process with its output in a file.

    Its standard input is a pipe, which closes if the demo dies: some programs then end by themselves.
    """

    def __init__(self, name: str, command: Sequence[str | Path], log: Path) -> None:
        self.name = name
        self._command = command
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env={**os.environ, "PYTHONPATH": str(ROOT / "tests")},
                start_new_session=True,
            )
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self, timeout_s: float = 20.0) -> int:
        """Send SIGTERM, and SIGKILL if the process still runs after `timeout_s`. Return the exit status.

        A second call is harmless.
        """
        assert self._process is not None
        self._process.terminate()
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        if self._process.stdin is not None:
            self._process.stdin.close()
        return self._process.returncode

    def wait(self) -> None:
        """Wait until the process ends by itself, then raise DemoError."""
        assert self._process is not None
        self._process.wait()
        self._raise_if_ended()

    def output(self) -> str:
        return self._log.read_text("utf-8", "replace")

    def _end_of_output(self) -> str:
        return self.output()[-3000:].strip()

    def _raise_if_ended(self) -> None:
        assert self._process is not None
        if self._process.poll() is not None:
            raise DemoError(f"{self.name} has ended with status {self._process.returncode}:\n{self._end_of_output()}")

    def wait_for(self, condition: Callable[[], bool], expected: str, timeout_s: float) -> None:
        """Wait until `condition` returns True; `expected` describes it in the error text.

        Raise DemoError with the end of the output if the process ends, or `timeout_s` have passed.
        """
        deadline = time.monotonic() + timeout_s
        while not condition():
            self._raise_if_ended()
            if time.monotonic() > deadline:
                raise DemoError(f"Waited {timeout_s:g} s for {expected}. {self.name} said:\n{self._end_of_output()}")
            time.sleep(0.02)


def run_bruce(*words: str | Path) -> str:
    """Run `bruce` with these words to its end, and return its output. Raise DemoError with that output if it fails."""
    done = subprocess.run([BRUCE, *words], capture_output=True, text=True, check=False, start_new_session=True)
    if done.returncode:
        raise DemoError(f"bruce {words[0]} failed with status {done.returncode}: {done.stderr or done.stdout}")
    return done.stdout


class Daemon(Service):
    """The process `bruce run`, with all its files in `directory`."""

    def __init__(self, directory: Path, bootstrap: str) -> None:
        self.config = directory / "bruce.toml"
        self.socket = directory / "bruce.dgram"
        self._address_file = directory / "run" / HTTP_ADDRESS
        self._brokers = bootstrap.split(",")
        servers = ", ".join(f'"{server}"' for server in self._brokers)
        self.config.write_text(CONFIG.format(servers=servers, directory=directory), "utf-8")
        super().__init__("The daemon", [BRUCE, "run", "--config", self.config], directory / "daemon.log")

    @property
    def address(self) -> str:
        """Return the address of the status pages, host:port."""
        return self._address_file.read_text("utf-8").strip()

    def processes(self) -> list[str]:
        """Return the names of the running processes; none if the status pages do not answer."""
        if not self._address_file.exists():
            return []
        try:
            page = StatusClient(parse_listen(self.address)).get("processes", ProcessesPage)
        except UnreadableError:
            return []
        return [line.name for line in page.processes if line.state == "running"]

    def wait_started(self) -> list[str]:
        """Wait until the daemon runs a dispatcher process for each broker. Return the names of all its processes."""

        def has_all_dispatchers() -> bool:
            return sum("dispatcher" in name for name in self.processes()) == len(self._brokers)

        self.wait_for(has_all_dispatchers, "the daemon to find Kafka", 60)
        return self.processes()

    def wait_delivered(self, message_count: int) -> None:
        """Wait until the daemon has received this number of messages, and Kafka has acknowledged all of them."""

        def is_delivered() -> bool:
            books = StatusClient(parse_listen(self.address)).get("books", Books)
            return books.received >= message_count and books.consistent and not sum(books.held.values())

        self.wait_for(is_delivered, f"{message_count} messages to be delivered", 120)

    def balance(self) -> str:
        """Return the output of `bruce check`. Raise DemoError if the books do not balance."""
        return run_bruce("check", "--config", self.config).strip()


def broker_service(directory: Path, topics: Iterable[str], *, real: bool) -> Service:
    """Return a Kafka broker with these topics, real or embedded. It is not started yet."""
    topics_with_partitions = [f"{topic}:{PARTITIONS}" for topic in topics]
    command: list[str | Path]
    if real:
        command = [sys.executable, ROOT / "scripts" / "demo_kafka.py", directory / "kafka", *topics_with_partitions]
        return Service("The Kafka broker", command, directory / "kafka.log")
    command = [BRUCE, "dev-broker", "--until-eof", f"--brokers={EMBEDDED_BROKERS}"]
    command += [f"--topic={topic}" for topic in topics_with_partitions]
    return Service("The embedded broker", command, directory / "broker.log")


def bootstrap_of(service: Service) -> str:
    """Wait until a broker is ready, and return its addresses, separated by commas.

    This may take minutes if Kafka has to be fetched.
    """
    found: list[str] = []

    def is_ready() -> bool:
        found[:] = re.findall(r"^BOOTSTRAP (\S+)\n", service.output(), re.MULTILINE)
        return bool(found)

    service.wait_for(is_ready, "the broker to be ready", 900)
    return found[0]
