"""Java processes of a Kafka cluster: the long-running ones, and the commands that end by themselves."""

from __future__ import annotations

import secrets
import signal
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from support import kafka_config, processes

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Sequence

    from support.kafka_dist import KafkaDist

COMMAND_TIMEOUT_S: Final = 120.0
CHECKPOINT: Final = "bootstrap.checkpoint"


@dataclass(slots=True)
class JavaProcess:
    """A broker or a ZooKeeper that can be started again on the same data."""

    name: str
    directory: Path
    command: Sequence[str]
    process: subprocess.Popen[bytes] | None = None
    suspended: bool = False

    @property
    def running(self) -> subprocess.Popen[bytes]:
        assert self.process is not None, f"{self.name} is not running"
        return self.process

    @property
    def answers(self) -> bool:
        return self.process is not None and not self.suspended

    def start(self) -> None:
        with self._log.open("ab") as log:
            self.process = processes.spawn(self.command, output=log)
        processes.long_lived.add(self.process.pid)

    def suspend(self) -> None:
        self.running.send_signal(signal.SIGSTOP)
        self.suspended = True

    def resume(self) -> None:
        self.running.send_signal(signal.SIGCONT)
        self.suspended = False

    def terminate(self, timeout: float) -> None:
        self.running.terminate()
        self.running.wait(timeout)
        self.process = None

    def kill(self) -> None:
        """Kill the process, even if it is suspended or has ended."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
        self.process, self.suspended = None, False

    def raise_if_ended(self) -> None:
        """Raise `AssertionError` with the end of the log if the process ended by itself."""
        if self.process is not None and self.process.poll() is not None:
            log = self._log.read_text(errors="replace")[-4000:]
            raise AssertionError(f"{self.name} ended with code {self.process.returncode}; its log:\n{log}")

    @property
    def _log(self) -> Path:
        return self.directory / "log"


def run_java(dist: KafkaDist, directory: Path, main_class: str, arguments: Sequence[str | Path]) -> None:
    """Run a command of Kafka's to its end; `AssertionError` with its output if it fails."""
    command = kafka_config.java_command(dist, directory, main_class, arguments)
    processes.run_program(*command, time_limit_s=COMMAND_TIMEOUT_S)


def formatted_checkpoint(dist: KafkaDist) -> Path:
    """Return the checkpoint of a formatted data directory, created once for each version and kept beside its jars."""
    kept = dist.directory / CHECKPOINT
    if not kept.exists():
        with tempfile.TemporaryDirectory(dir=dist.directory) as scratch:
            _format(dist, Path(scratch)).replace(kept)
    return kept


def _format(dist: KafkaDist, scratch: Path) -> Path:
    plan = kafka_config.NodePlan(1, 1, 2, scratch)
    properties = scratch / "server.properties"
    properties.write_text(kafka_config.broker_properties(dist, plan, [plan], None, {}))
    arguments: list[str | Path] = ["format", "-t", secrets.token_urlsafe(16), "-c", properties]
    run_java(dist, scratch, kafka_config.FORMAT_CLASS, arguments)
    return plan.data / CHECKPOINT
