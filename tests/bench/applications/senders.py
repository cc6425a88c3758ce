"""The applications: how each is built, and the command that starts it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

from bruce_mp.errors import StartError
from bruce_mp.spark.maven import cache_directory, ensure_jars

if TYPE_CHECKING:
    from collections.abc import Callable

    from bench.cases import Transport

__all__ = ["SENDERS", "AbsentError", "Sender"]

PROGRAMS: Final = Path(__file__).with_name("programs")
CLIENTS: Final = Path(__file__).parents[3] / "clients"
BUILD_S: Final = 600
KAFKA_CLIENTS: Final = ("org.apache.kafka:kafka-clients:4.3.1", "org.slf4j:slf4j-nop:1.7.36")


class AbsentError(Exception):
    """The machine lacks something to build or run an application."""


@dataclass(frozen=True, slots=True)
class Sender:
    """An application with one client; `transport` None: a Kafka client in the process, without the daemon.

    `command(directory)` builds the program below the directory. Raises AbsentError.
    """

    name: str
    kind: str
    transport: Transport | None
    command: Callable[[Path], tuple[str, ...]]


def _tool(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        raise AbsentError(f"there is no {name}")
    return found


def _build(*command: str | Path, place: Path = PROGRAMS) -> None:
    done = subprocess.run(command, capture_output=True, text=True, cwd=place, timeout=BUILD_S, check=False)
    if done.returncode:
        raise AbsentError(f"{Path(command[0]).name}: {(done.stderr or done.stdout).strip()[-300:]}")


def _python(_: Path) -> tuple[str, ...]:
    return (sys.executable, str(PROGRAMS / "application.py"))


def _confluent_kafka(directory: Path) -> tuple[str, ...]:
    if find_spec("confluent_kafka") is None:
        raise AbsentError("pip install confluent-kafka")
    return _python(directory)


@cache
def _c(directory: Path, *more: str) -> tuple[str, ...]:
    program = directory / f"application-{len(more)}"
    sources = [PROGRAMS / "application.c", *sorted((CLIENTS / "c" / "src").glob("*.c"))]
    include = f"-I{CLIENTS / 'c' / 'include'}"
    _build(_tool("cc"), "-O2", "-pthread", include, "-o", program, *sources, *more)
    return (str(program),)


def _librdkafka(directory: Path) -> tuple[str, ...]:
    if subprocess.run([_tool("pkg-config"), "--exists", "rdkafka"], check=False).returncode:
        raise AbsentError("on Debian and Ubuntu: apt install librdkafka-dev")
    return _c(directory, "-DWITH_LIBRDKAFKA", "-lrdkafka")


@cache
def _go(directory: Path) -> tuple[str, ...]:
    program = directory / "application-go"
    _build(_tool("go"), "build", "-o", program, ".", place=PROGRAMS / "go")
    return (str(program),)


@cache
def _rust(directory: Path) -> tuple[str, ...]:
    target = directory / "rust"
    _build(_tool("cargo"), "build", "--quiet", "--release", "--locked", "--target-dir", target, place=PROGRAMS / "rust")
    return (str(target / "release" / "application"),)


@cache
def _java(directory: Path) -> tuple[str, ...]:
    try:
        jars = ensure_jars(cache_directory() / "kafka-clients-4.3.1", KAFKA_CLIENTS) / "jars"
    except StartError as error:
        raise AbsentError(str(error)) from error
    classes = directory / "java"
    library = sorted((CLIENTS / "java" / "src" / "main" / "java" / "bruce" / "client").glob("*.java"))
    paths = f"{jars}/*"
    _build(_tool("javac"), "-cp", paths, "-d", classes, PROGRAMS / "Application.java", *library)
    return (_tool("java"), "-XX:+UseSerialGC", "-cp", f"{classes}:{paths}", "Application")


SENDERS: Final = (
    Sender("Python datagrams", "datagram", "datagram", _python),
    Sender("Python stream", "stream", "unix", _python),
    Sender("confluent-kafka", "confluent-kafka", None, _confluent_kafka),
    Sender("C datagrams", "datagram", "datagram", _c),
    Sender("C stream", "stream", "unix", _c),
    Sender("librdkafka", "librdkafka", None, _librdkafka),
    Sender("Go datagrams", "datagram", "datagram", _go),
    Sender("Go stream", "stream", "unix", _go),
    Sender("franz-go", "franz-go", None, _go),
    Sender("Java stream", "stream", "unix", _java),
    Sender("Kafka's Java client", "kafka-clients", None, _java),
    Sender("Rust datagrams", "datagram", "datagram", _rust),
    Sender("Rust stream", "stream", "unix", _rust),
    Sender("Node.js stream", "stream", "unix", lambda _: (_tool("node"), str(PROGRAMS / "application.js"))),
)
