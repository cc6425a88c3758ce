"""A daemon with processes that only obey the supervisor, for the supervisor's tests.

The processes are real; only their mains are fake. `FakeDaemon` starts a daemon. A main records the control messages
that it receives, and sends the supervisor the messages that the test chooses.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

import msgspec
import psutil

from support.processes import spawn, time_limit, wait_until

if TYPE_CHECKING:
    import subprocess

    from bruce_mp.ipc.control_messages import ControlMessage

RUNNER: Final = Path(__file__).with_name("run.py")
OBEDIENT: Final = "support.fake_daemon.obedient"
ROLES: Final = ("input", "router", "dispatcher", "status", "stream")


class FakeDaemon:
    """A daemon in `directory`; `settings` are lines of its configuration, `mains` the modules of single roles.

    The context manager kills all that remains of the daemon at its end. A second start runs a new daemon with the same
    configuration.
    """

    def __init__(self, directory: Path, settings: str = "", **mains: str) -> None:
        self.directory = directory
        self.run_dir = directory / "run"
        self.slab_path = directory / "slab"
        self.socket_path = directory / "dgram"
        self.log = directory / "log"
        self.is_privileged = True
        self._mains = [mains.get(role, OBEDIENT) for role in ROLES]
        self.config = directory / "bruce.toml"
        self.config.write_text(
            f"""
            kafka.bootstrap_servers = ["127.0.0.1:1"]
            daemon.run_dir = "{self.run_dir}"
            slab.path = "{self.slab_path}"
            slab.size = "8m"
            http.listen = "127.0.0.1:0"
            logging.level = "INFO"
            input.unix_datagram.path = "{self.socket_path}"
            {settings}
            """
        )
        self._config = self.config.read_text()
        self.process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait(10)

    def start(self) -> None:
        """Start the daemon without waiting."""
        with self.log.open("ab") as log:
            command: list[str | Path] = [sys.executable, RUNNER, self.config, *self._mains]
            self.process = spawn(command, output=log, is_privileged=self.is_privileged)

    def start_ready(self) -> None:
        """Start the daemon and wait until its processes are ready."""
        before = self.text().count("is ready")
        self.start()
        wait_until(lambda: self.text().count("is ready") >= before + 3, f"ready; {self.log} says why")

    def text(self) -> str:
        """Return the output so far."""
        return self.log.read_text() if self.log.exists() else ""

    def wait_for(self, text: str, times: int = 1) -> None:
        wait_until(lambda: self.text().count(text) >= times, f"{text!r} in the log")

    def _all(self) -> list[psutil.Process]:
        assert self.process is not None
        try:
            return psutil.Process(self.process.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []

    def pid_of(self, name: str) -> int:
        """Wait for the process of this title and return its pid."""
        title = f"bruce: {name}"
        found: list[psutil.Process] = []

        def is_there() -> bool:
            found[:] = [child for child in self._all() if title in _title(child)]
            return bool(found)

        wait_until(is_there, f"a process {title!r}")
        return found[0].pid

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        os.kill(self.process.pid, number)

    def wait(self, timeout: float = 20) -> int:
        """Wait for the end and return the exit code."""
        assert self.process is not None
        return self.process.wait(time_limit(timeout))

    def end(self) -> int:
        """Send SIGTERM and return the exit code."""
        self.signal(signal.SIGTERM)
        return self.wait()

    def received_by(self, name: str) -> list[str]:
        """Return the control messages that a process received in all its lives, without those about the active
        configuration.
        """
        return [line for line in self._received_by(name) if not line.startswith("ActiveConfig")]

    def active_config_messages(self) -> list[str]:
        """Return the messages to the status process about the active configuration."""
        return [line for line in self._received_by("status") if line.startswith("ActiveConfig")]

    def _received_by(self, name: str) -> list[str]:
        path = self.run_dir / f"{name}.heard"
        return path.read_text().splitlines() if path.exists() else []

    def configure(self, settings: str) -> None:
        """Replace the lines behind the initial configuration."""
        self.config.write_text(f"{self._config}{settings}\n")

    def send_as(self, name: str, message: ControlMessage) -> None:
        """Make a process send a control message to the supervisor."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.sendto(msgspec.msgpack.encode(message), str(self.run_dir / f"{name}.say"))


def _title(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""
