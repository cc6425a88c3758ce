"""The daemon under test: started as a user starts it, watched through its status pages, ended by pid.

    with Daemon(tmp_path, bootstrap="127.0.0.1:9092") as daemon:
        ...
        books = daemon.wait_settled()

The end of the `with` block asserts that the books balance: `received = delivered + discarded + held`.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import tomllib
import urllib.request
from contextlib import ExitStack, closing, contextmanager, suppress
from http.client import HTTPConnection
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.error import HTTPError

import psutil

from bruce_mp.client import DatagramClient
from bruce_mp.config.sections import Delivery
from bruce_mp.pipeline.stage_counts import count_books
from bruce_mp.slab import layout as lay
from bruce_mp.slab.file import Slab
from bruce_mp.supervisor.run_dir import HTTP_ADDRESS, TCP_ADDRESS
from bruce_mp.telemetry.books import counter_total, read_books
from bruce_mp.telemetry.counters import Counter
from support import processes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from typing import Self

    from bruce_mp.telemetry.books import Books

__all__ = ["Daemon"]

START_S: Final = 30.0
CONSISTENT_S: Final = 10.0
"""Longest wait for a moment at which the books are consistent."""
LOG_TAIL: Final = 6000
"""Characters of the log in an error."""
QUICK_PAUSES: Final = {
    "delivery.min_pause_delay_ms": 50,
    "delivery.pause_rate_limit_initial_ms": 100,
    "delivery.pause_rate_limit_max_double": 4,
}
UNHURRIED_PAUSES: Final = {name: getattr(Delivery(), name.removeprefix("delivery.")) for name in QUICK_PAUSES}
"""The settings of an installed daemon."""


class Daemon:
    """One daemon with its files below `directory`; `settings` are `--set` overrides."""

    def __init__(self, directory: Path, bootstrap: str, settings: Mapping[str, object] | None = None) -> None:
        self.directory = directory
        self.run_dir = directory / "run"
        self.socket_path = directory / "in.dgram"
        self.stream_path = directory / "in.stream"
        self.slab_path = Path(str((settings or {}).get("slab.path", directory / "slab")))
        self.config_path = directory / "bruce.toml"
        self.log_path = directory / "log"
        self._settings = dict(settings or {})
        self._fixed_settings: dict[str, object] = {
            "kafka.bootstrap_servers": bootstrap.split(","),
            "daemon.run_dir": str(self.run_dir),
            "slab.path": str(self.slab_path),
            "slab.size": "64m",
            "input.unix_datagram.path": str(self.socket_path),
            "http.listen": "127.0.0.1:0",
            "logging.level": "INFO",
            "timestamps.policy": "client",  # messages of tests have old timestamps and are compared byte by byte
            **QUICK_PAUSES,
        }
        if self.slab_path.is_relative_to("/dev/shm"):
            self._fixed_settings["http.history_dir"] = str(self.slab_path.parent)  # else it would stay in /var/tmp
        self.configure({})
        self._process: subprocess.Popen[bytes] | None = None
        self.prefix: tuple[str, ...] = ()
        """A command that runs the daemon, for example as another user."""
        self.handed_over: dict[str, socket.socket] = {}
        """Sockets of the test, by name, which it passes to each daemon that it starts."""

    def configure(self, settings: Mapping[str, object]) -> None:
        """Write the configuration file with the fixed part and these settings."""
        lines = [f"{key} = {json.dumps(value)}\n" for key, value in {**self._fixed_settings, **settings}.items()]
        self.config_path.write_text("".join(lines))
        tomllib.loads(self.config_path.read_text())

    def reload(self, settings: Mapping[str, object], token: str = "none") -> str:
        """Configure and reload the daemon, and return its answer. Raises HTTPError if the daemon refuses."""
        self.configure(settings)
        headers = {"Authorization": f"Bearer {token}"}
        request = urllib.request.Request(self.url("/reload"), b"", headers)
        with urllib.request.urlopen(request, timeout=40) as answer:
            return str(answer.read().decode())

    # --- life --------------------------------------------------------------------------------------------------------

    def start(self, package: Path | None = None) -> Self:
        """Start the daemon and wait for all its processes; `package` is the directory of another bruce_mp."""
        (self.run_dir / HTTP_ADDRESS).unlink(missing_ok=True)
        overrides = [f"--set={key}={value}" for key, value in self._settings.items()]
        command = [*processes.BRUCE, "run", "--config", str(self.config_path), *overrides]
        env = None if package is None else {**os.environ, "PYTHONPATH": str(package), "PYTHONSAFEPATH": "1"}
        with self.log_path.open("ab") as log:
            self._process = processes.spawn([*self.prefix, *command], output=log, env=env, sockets=self.handed_over)
        processes.long_lived.add(self._process.pid)
        self.wait_for(self._is_up, "the daemon to start", START_S)
        return self

    def _is_up(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            raise AssertionError(f"The daemon ended at once:\n{self.log()}")
        address = self.run_dir / HTTP_ADDRESS
        return address.exists() and {"input", "router", "status"} <= self.pids().keys() and self._has_pages()

    def _has_pages(self) -> bool:
        """Return True if the status pages can be read."""
        try:
            self.get("/server_info/json")
        except OSError:
            return False
        return True

    def terminate(self, timeout: float = 40.0) -> int:
        """Send SIGTERM and return the exit code."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(processes.time_limit(timeout))

    def wait(self, timeout: float = 90.0) -> int:
        """Wait until the daemon ends by itself, and return the exit code."""
        assert self._process is not None
        return self._process.wait(processes.time_limit(timeout))

    def kill_all(self) -> None:
        """Send SIGKILL to all processes at the same time."""
        assert self._process is not None
        killed = [psutil.Process(pid) for pid in (self._process.pid, *self.pids().values())]
        for process in killed:
            process.kill()
        self._process.wait()
        self.wait_for(lambda: not processes.still_alive(killed), "the killed processes to end", 10)

    def kill_all_when_consistent(self) -> Books:
        """Send SIGKILL to all processes at a moment at which the books are consistent, and return these."""
        books = self._read_until_consistent(self._stop_and_read_books)
        self.kill_all()
        return books

    def kill_supervisor(self) -> None:
        """Send SIGKILL to the supervisor alone: the kernel then ends the others."""
        assert self._process is not None
        others = [psutil.Process(pid) for pid in self.pids().values()]
        self._process.kill()
        self._process.wait()
        self.wait_for(lambda: not processes.still_alive(others), "the supervisor's processes to end", 20)

    def __enter__(self) -> Self:
        return self.start()

    @contextmanager
    def checked_at_end(self) -> Iterator[Self]:
        """Check and end a daemon that runs already at the end of the block, as `with Daemon(...)` does."""
        with ExitStack() as stack:
            stack.push(self.__exit__)
            yield self

    def __exit__(self, kind: object, *_: object) -> None:
        assert self._process is not None
        try:
            if kind is None and self._process.poll() is None:
                books = self.wait_consistent()
                assert books.balanced, books
                self.wait_for(self._rows_agree, "the process rows to agree with the state words", 10)
        finally:
            self._end()
            if kind is not None:
                sys.stderr.write(self.log())

    def _end(self) -> None:
        assert self._process is not None
        if self._process.poll() is None:
            for process in psutil.Process(self._process.pid).children(recursive=True):
                processes.long_lived.add(process.pid)
            try:
                self.terminate(timeout=15)
            except subprocess.TimeoutExpired:
                self.kill_all()

    def upgrade(self) -> None:
        """Run `bruce upgrade` of the code that runs."""
        done = processes.run_bruce("upgrade", "--config", self.config_path)
        assert done.returncode == 0, done.stderr

    # --- messages ----------------------------------------------------------------------------------------------------

    def send(self, topic: str, *values: bytes, **fields: Any) -> None:
        """Send datagrams with these values; `fields` are those of `DatagramClient.send`."""
        with DatagramClient(self.socket_path, timeout=60) as client:
            for value in values:
                client.send(topic, value, **fields)

    def send_encoded(self, *datagrams: bytes) -> None:
        with DatagramClient(self.socket_path, timeout=60) as client:
            for data in datagrams:
                client.send_encoded(data)

    # --- reading -----------------------------------------------------------------------------------------------------

    def log(self) -> str:
        """Return the daemon's log."""
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""

    def pids(self) -> dict[str, int]:
        """Return the pids of the daemon's processes by name, from the process table."""
        assert self._process is not None
        try:
            titles = {pid: processes.title_of(pid) for pid in processes.children_of(self._process.pid)}
        except OSError:  # one has just ended
            return {}
        return {title.removeprefix("bruce: "): pid for pid, title in titles.items() if title.startswith("bruce: ")}

    @property
    def has_process(self) -> bool:
        """Return True if the daemon was started."""
        return self._process is not None

    @property
    def pid(self) -> int:
        """Return the supervisor's pid."""
        assert self._process is not None
        return self._process.pid

    def kill(self, name: str) -> None:
        """Send SIGKILL to a process and wait for its successor."""
        self.wait_for(lambda: name in self.pids(), f"{name} to be there", 20)
        old = self.pids()[name]
        os.kill(old, signal.SIGKILL)
        self.wait_for(lambda: self.pids().get(name, old) != old, f"{name} to come back", 20)

    def get(self, path: str) -> Any:
        """Fetch a status page as decoded JSON."""
        return json.loads(self.get_text(path))

    def get_text(self, path: str) -> str:
        """Fetch a status page as text."""
        address = (self.run_dir / HTTP_ADDRESS).read_text().strip()
        if address.startswith("unix:"):
            return _get_over_unix_socket(address.removeprefix("unix:"), path)
        with urllib.request.urlopen(self.url(path), timeout=10) as answer:
            return str(answer.read().decode())

    def url(self, path: str) -> str:
        address = (self.run_dir / HTTP_ADDRESS).read_text().strip()
        url = address if address.startswith("http") else f"http://{address}"
        return url.rstrip("/") + path

    def counters(self) -> dict[str, int]:
        """Return the counters by name."""
        return {line["name"]: line["value"] for line in self.get("/counters/json")["counters"]}

    def health(self) -> dict[str, Any]:
        """Fetch `/healthz`, with any status."""
        try:
            page: dict[str, Any] = self.get("/healthz")
        except HTTPError as error:
            with error:
                page = json.load(error)
        return page

    @property
    def tcp_port(self) -> int:
        return int((self.run_dir / TCP_ADDRESS).read_text().rpartition(":")[2])

    def refresh_metadata(self) -> None:
        """Request a refresh of the metadata."""
        with urllib.request.urlopen(self.url("/metadata_update"), data=b"", timeout=10):
            pass

    def books(self) -> Books:
        """Read the books from the slab itself."""
        with self.open_slab() as slab:
            return count_books(slab)

    def open_slab(self) -> closing[Slab]:
        """Map the slab until the end of a `with` block."""
        return closing(Slab(self.slab_path))

    def counted(self, counter: Counter) -> int:
        """Read a counter from the slab itself."""
        with self.open_slab() as slab:
            return counter_total(slab, counter)

    def _rows_agree(self) -> bool:
        """Return True if rows and state words show the same held messages, or memory of the slab was damaged."""
        with self.open_slab() as slab:
            if counter_total(slab, Counter.RefusedDamagedPlace):
                return True
            return read_books(slab).held == count_books(slab).held

    def wait_consistent(self) -> Books:
        """Wait for a consistent reading of the books."""
        return self._read_until_consistent(self.books)

    def books_while_stopped(self) -> Books:
        """Read the books under any load, by stopping the processes for a moment."""
        return self._read_until_consistent(self._read_while_stopped)

    def _read_while_stopped(self) -> Books:
        pids = self.pids().values()
        _signal(pids, signal.SIGSTOP)
        try:
            return self.books()
        finally:
            _signal(pids, signal.SIGCONT)

    def _stop_and_read_books(self) -> Books:
        """Stop the processes, and let them continue only if the books are inconsistent."""
        pids = (self.pid, *self.pids().values())
        _signal(pids, signal.SIGSTOP)
        books = self.books()
        if not books.consistent:
            _signal(pids, signal.SIGCONT)
        return books

    def _read_until_consistent(self, read: Callable[[], Books]) -> Books:
        began = time.monotonic()
        while not (books := read()).consistent:
            if processes.is_over(began, CONSISTENT_S):
                text = f"The books are inconsistent for {CONSISTENT_S} s: {books}"
                raise processes.NotInTimeError(f"{text}\n{self.log()[-LOG_TAIL:]}")
            time.sleep(0.02)
        return books

    def wait_received(self, messages: int, timeout: float = 60.0) -> None:
        """Wait until the daemon has received this number of messages."""
        self.wait_for(lambda: self.books().received >= messages, f"{messages} messages", timeout)

    def wait_settled(self, received: int, timeout: float = 60.0) -> Books:
        """Wait until the daemon has received this number of messages and holds none."""
        self.wait_for(lambda: self.is_settled(received), f"{received} messages to be settled", timeout)
        books = self.books()
        assert books.balanced, books
        return books

    def is_settled(self, received: int = 0) -> bool:
        """Return True if the daemon has received this number of messages and holds none."""
        books = self.books()
        return books.received >= received and books.consistent and not sum(books.held.values())

    def restarts(self, row: int) -> int:
        """Return the number of starts of a row's process."""
        with self.open_slab() as slab:
            return slab.words[(slab.row_at(row) + lay.ROW_INCARNATION) >> 2]

    def wait_for(self, condition: Callable[[], bool], what: str, timeout: float) -> None:
        """Poll until a condition holds; a timeout raises NotInTimeError with the log and the books."""
        began = time.monotonic()
        while not condition():
            if processes.is_over(began, timeout):
                books = self.books() if self.slab_path.exists() else "no slab"
                raise processes.NotInTimeError(f"Waited {timeout:g} s for {what}.\n{books}\n{self.log()[-LOG_TAIL:]}")
            time.sleep(0.02)


def _get_over_unix_socket(socket_path: str, page: str) -> str:
    """Fetch a page from a UNIX socket."""
    connection = HTTPConnection("localhost", timeout=10)
    with closing(connection), socket.socket(socket.AF_UNIX) as connection.sock:
        connection.sock.connect(socket_path)
        connection.request("GET", page)
        answer = connection.getresponse()
        text = answer.read().decode()
    assert answer.status == 200, text
    return text


def _signal(pids: Iterable[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)
