"""`bruce-spark` and Spark's services as separate processes, which a test may kill."""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import psutil
import pyspark

from bruce_mp.spark.session import prepare_environment
from support import processes
from support.ports import ReservedPort
from support.spark_session import SMALL, python_path

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator, Mapping, Sequence

__all__ = ["Command", "bruce_spark", "standalone_cluster", "start_python"]

WAIT_S: Final = 240
JARS: Final = Path(pyspark.__file__).parent / "jars"


@dataclass
class Command:
    """A running process, and the file with its output."""

    process: subprocess.Popen[bytes]
    log: Path

    def wait(self) -> int:
        """Return the exit status; if it is not 0, copy the command's output to the test's."""
        code = self.process.wait(WAIT_S)
        if code:
            sys.stderr.write(self.output())
        return code

    def output(self) -> str:
        return self.log.read_text(errors="replace")

    def kill(self) -> None:
        """Send SIGKILL to the process and its descendants."""
        family = [*psutil.Process(self.process.pid).children(recursive=True), psutil.Process(self.process.pid)]
        processes.kill(family)
        self.process.wait(WAIT_S)


def bruce_spark(directory: Path, *words: str, master: str = "local[1,4]") -> Command:
    """Start `bruce-spark WORDS...` with a small JVM."""
    settings = [f"--conf={key}={value}" for key, value in SMALL.items()]
    command = [sys.executable, "-m", "bruce_mp.spark.cli", words[0], f"--master={master}", *settings, *words[1:]]
    return _start(command, directory / f"{words[0]}.log", {})


def start_python(log: Path, module: str, *words: str) -> Command:
    """Start a module of the tests, and append its output to `log`."""
    tests = os.pathsep.join([str(Path(__file__).parents[1]), python_path()])
    return _start([sys.executable, "-m", module, *words], log, {"PYTHONPATH": tests})


def _start(command: Sequence[str], log: Path, env: Mapping[str, str]) -> Command:
    prepare_environment()
    everything = {**os.environ, "PYTHONPATH": python_path(), "SPARK_LOCAL_IP": "127.0.0.1", **env}
    with log.open("ab") as out:
        return Command(processes.spawn(command, output=out, env=everything), log)


@contextmanager
def standalone_cluster(directory: Path, workers: Sequence[Mapping[str, str]]) -> Iterator[str]:
    """Run a standalone master, and a worker with each of these environments; yield the URL of the master."""
    with ExitStack() as stack:
        port = ReservedPort()
        stack.callback(port.release)
        url = f"spark://127.0.0.1:{port.number}"
        place = f"--host 127.0.0.1 --port {port.number} --webui-port 0"
        _service(stack, directory / "master", f"master.Master {place}", {})
        for number, env in enumerate(workers):
            words = f"worker.Worker --host 127.0.0.1 --cores 1 --memory 512m --webui-port 0 {url}"
            worker = _service(stack, directory / f"worker-{number}", words, env)
            _wait_for(worker, "Successfully registered with master")
        yield url


def _service(stack: ExitStack, directory: Path, words: str, env: Mapping[str, str]) -> Command:
    directory.mkdir(parents=True)
    prepare_environment()
    java = f"{os.environ['JAVA_HOME']}/bin/java"
    kind, *arguments = words.split()
    head = [java, "-Xmx256m", "-XX:+UseSerialGC", "-cp", f"{JARS}/*", f"org.apache.spark.deploy.{kind}"]
    command = [*head, *arguments]
    if kind.startswith("worker"):
        command[-1:-1] = ["--work-dir", str(directory)]
    started = _start(command, directory / "log", {"SPARK_HOME": str(JARS.parent), "SPARK_SCALA_VERSION": "2.13", **env})
    stack.callback(started.kill)
    if kind.startswith("master"):
        _wait_for(started, "I have been elected leader")
    return started


def _wait_for(service: Command, text: str) -> None:
    processes.wait_until(lambda: text in service.output(), f"{text} in {service.log}", 120)
