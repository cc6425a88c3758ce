"""The sender, the plain receiver and the sink: compiled if there is a C compiler, as the report states.

Otherwise the first two are in Python, and the embedded brokers stand in for the sink.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from support import processes

if TYPE_CHECKING:
    from bench.cases import Case

__all__ = ["SendError", "Sent", "Tools", "make_tools", "run_sender"]

PROGRAMS: Final = Path(__file__).with_name("programs")
COMPILERS: Final = ("cc", "gcc", "clang")
SEND_TIMEOUT_S: Final = 90.0


class SendError(Exception):
    """The sender could not send all its messages."""


@dataclass(frozen=True, slots=True)
class Tools:
    """The commands of the programs, and their language."""

    send: tuple[str, ...]
    receive: tuple[str, ...]
    sink: tuple[str, ...]
    language: str


@dataclass(frozen=True, slots=True)
class Sent:
    """The report of a sender at its end."""

    messages: int
    seconds: float


def make_tools(directory: Path) -> Tools:
    """Compile the programs into `directory`."""
    compiler = next(filter(None, map(shutil.which, (os.environ.get("CC") or COMPILERS[0], *COMPILERS))), None)
    if compiler and all(_compiles(compiler, name, directory) for name in ("send", "receive", "sink")):
        send, receive, sink = ((str(directory / name),) for name in ("send", "receive", "sink"))
        return Tools(send, receive, sink, "C")
    interpreted = [(sys.executable, "-I", "-S", str(PROGRAMS / f"{name}.py")) for name in ("send", "receive")]
    return Tools(interpreted[0], interpreted[1], (), "Python")


def _compiles(compiler: str, name: str, directory: Path) -> bool:
    command = [compiler, "-O2", "-o", str(directory / name), str(PROGRAMS / f"{name}.c")]
    return subprocess.run(command, check=False).returncode == 0


def run_sender(tools: Tools, case: Case, address: str, messages: Path, *, bare: bool = False) -> Sent:
    """Send the load of a case to `datagram:PATH`, `unix:PATH` or `tcp:PORT`; `bare`: without the sizes in front.

    Raises SendError when the receiver went away or does not read.
    """
    numbers = (case.messages, case.senders, case.rate, case.per_write, int(case.stamped), int(bare))
    sender = processes.spawn([*tools.send, address, str(messages), *map(str, numbers)], output=subprocess.PIPE)
    words = finish(sender, SEND_TIMEOUT_S).split()
    if sender.returncode or words[:1] != ["SENT"]:
        raise SendError(f"The sender ended with {sender.returncode}: {' '.join(words)}")
    return Sent(int(words[1]), float(words[2]))


def finish(process: subprocess.Popen[bytes], timeout: float) -> str:
    """Return a program's output; kill the program if it does not end in time."""
    try:
        return process.communicate(timeout=timeout)[0].decode()
    except subprocess.TimeoutExpired:
        process.kill()
        return process.communicate()[0].decode() + f"not done after {timeout:g} s"
