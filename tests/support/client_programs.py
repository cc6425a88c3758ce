"""The conformance programs of the client libraries: how each is built, and the conversation with one.

`clients/conformance/README.md` describes the commands.  The build tools of the languages decide what is up to date; a
lock keeps two workers from building at the same time.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pytest

from support import processes

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Self

__all__ = ["CLIENTS", "LANGUAGES", "SHORT", "ConformanceProgram", "Flushed", "Language", "build", "param", "run_tool"]

CLIENTS: Final = Path(__file__).parents[2] / "clients"
BUILD_S: Final = 600
ANSWER_S: Final = 60
SHORT: Final = ("c", "go", "java")
"""The languages of each test run; the others have the mark `clients`."""


@dataclass(frozen=True)
class Language:
    """Needed programs, and the commands that build and run the conformance program in the folder of the library."""

    tools: tuple[str, ...]
    build: tuple[str, ...] | None
    run: tuple[str, ...]
    own_tests: tuple[str, ...] | None = None
    product: str | None = None
    """A built file that is current unless another file is newer, for build tools that take seconds to see it."""
    has_datagrams: bool = True
    has_forks: bool = False
    has_linger: bool = True


QUICK_JAVA: Final = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
"""Options for programs that live for seconds."""
WITH_IPV6: Final = ("-Djava.net.preferIPv6Addresses=true",)
"""Java's loopback address is then `::1`, at which no daemon listens."""

LANGUAGES: Final = {
    "c": Language(
        ("make", "gcc", "g++", "pkg-config"),
        ("make", "-s", "all", "conformance"),
        ("build/conformance",),
        has_forks=True,
    ),
    "go": Language(
        ("go",),
        ("go", "build", "-o", "build/conformance", "./internal/conformance"),
        ("build/conformance",),
        ("go", "test", "./..."),
    ),
    "java": Language(
        ("java", "javac", "mvn"),
        ("mvn", "--quiet", "--batch-mode", "package"),
        ("java", *QUICK_JAVA, *WITH_IPV6, "-cp", "target/classes:target/test-classes", "bruce.client.Conformance"),
        product="target/bruce-client-1.0.0.jar",
        has_datagrams=False,
    ),
    "rust": Language(
        ("cargo",),
        ("cargo", "build", "--quiet", "--release", "--example", "conformance"),
        ("target/release/examples/conformance",),
        ("cargo", "test", "--quiet"),
    ),
    "node": Language(
        ("node",), None, ("node", "conformance/conformance.js"), ("node", "--test", "test/"), has_datagrams=False
    ),
    "ruby": Language(("ruby",), None, ("ruby", "conformance/conformance.rb"), has_forks=True, has_linger=False),
    "php": Language(("php",), None, ("php", "conformance/conformance.php"), has_forks=True, has_linger=False),
}


def param(name: str) -> Any:
    """Return a language as parameter; `--clients` runs those beyond the short run."""
    return pytest.param(name, marks=() if name in SHORT else pytest.mark.clients)


def build(name: str) -> list[str]:
    """Build a library with its conformance program, and return the command that runs it."""
    language = LANGUAGES[name]
    if missing := [tool for tool in language.tools if shutil.which(tool) is None]:
        pytest.skip(f"NOT TESTED: the {name} client, because this machine has no {' and no '.join(missing)}")
    if language.build is not None:
        with _locked(name):
            if language.product is None or not _is_current(CLIENTS / name, language.product):
                run_tool(name, language.build)
    return [shutil.which(word) or str(CLIENTS / name / word) if "/" in word else word for word in language.run]


def _is_current(folder: Path, product: str) -> bool:
    built = folder / product
    sources = [path for path in folder.rglob("*") if path.is_file() and "target" not in path.parts]
    return built.exists() and max(path.stat().st_mtime for path in sources) <= built.stat().st_mtime


def run_tool(name: str, command: tuple[str, ...], *, expect: int = 0) -> str:
    """Run a command in the folder of a library, and return its output."""
    environment = {**os.environ, "GOTOOLCHAIN": "local"}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=BUILD_S, cwd=CLIENTS / name, check=False, env=environment
    )
    assert done.returncode == expect, f"{command}: {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout


@contextmanager
def _locked(name: str) -> Iterator[None]:
    with (Path(tempfile.gettempdir()) / f"bruce-clients-{os.getuid()}-{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


class Flushed(NamedTuple):
    """The answer to a flush: an error's name with the uncertain messages, or the outcome."""

    error: str | None
    uncertain: int = 0
    received: int = 0
    delivered: int = 0
    discarded: int = 0
    reasons: str = "-"


class ConformanceProgram:
    """A running conformance program; each method is a command and its answer."""

    def __init__(self, command: list[str], name: str) -> None:
        self.name = name
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the program
        program = command[0] if "/" in command[0] else shutil.which(command[0]) or command[0]
        guard: list[str | Path] = [sys.executable, "-I", "-S", processes.WRAPPER, str(os.getpid())]
        wrapped = [*guard, program, *command[1:]]
        self._process = subprocess.Popen(
            wrapped, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, cwd=CLIENTS / name, text=True
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            code = self._process.wait(ANSWER_S)
        finally:
            self._process.kill()
            self._process.wait()
            self._process.stdout.close()
        errors = self.errors()
        self._errors.close()
        if kind is None:
            assert code == 0, f"{self.name}: exit code {code}\n{errors}"
        elif errors:
            sys.stderr.write(f"{self.name}: {errors}\n")

    def errors(self) -> str:
        """Return the program's standard error."""
        self._errors.seek(0)
        return self._errors.read().decode(errors="replace")

    def ask(self, command: str) -> list[str]:
        """Send a command and return the words of the answer."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(command + "\n")
        self._process.stdin.flush()
        answer = str(self._process.stdout.readline())
        assert answer.endswith("\n"), f"{self.name}: no answer to {command[:200]!r}\n{self.errors()}"
        return answer.split()

    def _ask_ok(self, command: str) -> list[str]:
        """Send a command, and return the words behind the `ok` of the answer."""
        words = self.ask(command)
        assert words[0] == "ok", f"{self.name}: {command}: {words}\n{self.errors()}"
        return words[1:]

    def open_datagrams(self, path: Path) -> None:
        self._ask_ok(f"datagram {path}")

    def send_datagrams(self, topic: str, numbers: range, size: int, pause_us: int = 0) -> int:
        """Return the number of messages that the kernel accepted."""
        return int(self._ask_ok(f"datagram-send {topic} {numbers.start} {len(numbers)} {size} {pause_us}")[0])

    def wait_for_room(self, timeout_ms: int) -> bool:
        """Return False if the daemon's queue stays full for `timeout_ms`."""
        return self._ask_ok(f"datagram-wait {timeout_ms}") == ["1"]

    def datagram_stats(self) -> tuple[int, int, dict[int, int]]:
        """Return the sent and the refused messages, and the latter by errno."""
        sent, _, refused, errors = self._ask_ok("datagram-stats")
        pairs = (pair.split("=") for pair in errors.split(",") if pair != "-")
        return int(sent), int(refused), {int(number): int(count) for number, count in pairs}

    def open_stream(self, address: Path | int, buffer: int = 1 << 20, linger_ms: int = 0) -> None:
        self._ask_ok(f"stream {address} {buffer} {linger_ms}")

    def send_stream(self, topic: str, numbers: range, size: int) -> int:
        """Return the number of messages that the client accepted."""
        return int(self._ask_ok(f"stream-send {topic} {numbers.start} {len(numbers)} {size}")[0])

    def flush(self, timeout_ms: int, level: str = "delivered") -> Flushed:
        words = self.ask(f"stream-flush {level} {timeout_ms}")
        if words[0] == "error":
            return Flushed(words[1], int(words[2]))
        received, delivered, discarded, reasons = words[1:]
        return Flushed(None, 0, int(received), int(delivered), int(discarded), reasons)

    def stream_stats(self) -> dict[str, int]:
        words = self._ask_ok("stream-stats")
        names = ("sent", "bytes", "waiting", "buffer_full", "too_large", "refused", "closed", "connections")
        return dict(zip(names, map(int, words), strict=True))

    def close_stream(self, timeout_ms: int) -> list[str]:
        return self.ask(f"stream-close {timeout_ms}")
