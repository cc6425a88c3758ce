"""The first steps of a newcomer: scripts/demo, and the Python in the README."""

from __future__ import annotations

import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from bruce_mp.protocol.client.messages import Message, parse_message
from support.doc_pages import blocks_of
from support.processes import run_program, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"


# --- scripts/demo ----------------------------------------------------------------------------------------------------
class Checkout:
    """A copy of what scripts/demo needs, with a virtual environment that is this one: nothing is installed."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.temporary = Path(tempfile.mkdtemp(prefix="demo-"))  # a short path: sockets will be below it
        self.output = directory / "output"
        shutil.copytree(ROOT / "scripts", directory / "scripts")
        for name in ("setup.cfg", "setup.py", "pyproject.toml", "bruce_mp"):
            (directory / name).symlink_to(ROOT / name)
        self._processes: list[subprocess.Popen[bytes]] = []

    def make_environment(self) -> None:
        bin_directory = self.directory / ".venv" / "bin"
        bin_directory.mkdir(parents=True)
        python = bin_directory / "python"
        python.write_text("#!/bin/sh\n")  # so scripts/test notes an installation, and installs nothing
        python.chmod(0o755)
        subprocess.run([self.directory / "scripts" / "test", "--unit"], capture_output=True, check=False)
        python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')

    def write_logs(self, files: dict[str, bytes]) -> Path:
        logs = self.directory / "logs"
        for name, data in files.items():
            path = logs / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        return logs

    def start(self, *arguments: str | Path, python: str = "") -> subprocess.Popen[bytes]:
        environment = {"PATH": "/usr/bin:/bin", "TMPDIR": str(self.temporary), "PYTHON": python, "LC_ALL": "C.UTF-8"}
        with self.output.open("wb") as output:
            process = subprocess.Popen(
                [self.directory / "scripts" / "demo", *arguments], stdout=output, stderr=output, env=environment
            )
        self._processes.append(process)
        return process

    def run(self, *arguments: str | Path, python: str = "") -> int:
        return self.start(*arguments, python=python).wait(120)

    def lines(self) -> list[str]:
        return self.output.read_text().splitlines()

    def wait_for(self, text: str) -> None:
        """Until the text is in the output, or the demo has ended; `AssertionError` if it did not come."""
        demo = self._processes[-1]
        wait_until(lambda: text in self.output.read_text() or demo.poll() is not None, repr(text), timeout=60)
        assert text in self.output.read_text(), self.lines()

    def close(self) -> None:
        for process in self._processes:
            if process.poll() is None:
                process.terminate()
                process.wait(60)
        shutil.rmtree(self.temporary)


@pytest.fixture
def checkout(tmp_path: Path) -> Iterator[Checkout]:
    made = Checkout(tmp_path)
    yield made
    made.close()


def numbered(count: int) -> bytes:
    return b"".join(b"line %d\n" % number for number in range(count))


@pytest.mark.process
def test_the_demo_completes_and_leaves_nothing(checkout: Checkout) -> None:
    checkout.make_environment()
    logs = checkout.write_logs({
        "dpkg.log": numbered(3000),
        "deep/er/web.log": b"same\n" * 200,
        "a.log": "w\xe4hrend\n".encode("latin-1") + b"\x1b[2J no newline at the end",
        "b.log": b"\n\none line among empty ones\n\n",
        "binary.log": b"\0\1\2\nno text\n",
        "private.log": b"secret\n",
        "notes.txt": b"no log\n",
    })  # fmt: skip
    (logs / "private.log").chmod(0o600)
    process = checkout.start("--stay", "--logs", logs)
    checkout.wait_for('b"hello")')
    (show_status,) = [line.strip() for line in checkout.lines() if " status --url " in line]
    assert "received 3203 =" in run_program(*show_status.split(), time_limit_s=60)
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 0, checkout.lines()
    lines = checkout.lines()
    assert lines[0].startswith("1. Python environment in .venv ")
    assert lines[-1] == "received 3203 = delivered 3203 + discarded 0 + held 0"
    assert [line.split(".")[0] for line in lines if re.match(r"\d\. .* \d+\.\d s$", line)] == list("1234567")
    for topic, count in (("log-dpkg", "3,000"), ("log-web", "200"), ("log-others", "3")):
        arrived = [line for line in lines if f"{topic}: {count} sent, {count} arrived" in line]
        assert len(arrived) == 1, lines
        assert arrived[0].endswith("each once, in order")
    assert not any("\x1b" in line or "secret" in line for line in lines)
    assert not list(checkout.temporary.iterdir())


@pytest.mark.process
def test_a_signal_ends_the_demo_at_any_step(checkout: Checkout) -> None:
    checkout.make_environment()
    process = checkout.start("--logs", checkout.write_logs({"some.log": numbered(2000)}))
    checkout.wait_for("3. Start the daemon")
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 130
    assert "everything is stopped and removed" in checkout.lines()[-1]
    assert not list(checkout.temporary.iterdir())


@pytest.mark.process
def test_a_demo_that_cannot_continue_names_the_reason(checkout: Checkout) -> None:
    checkout.make_environment()
    assert checkout.run("--logs", checkout.directory / "nowhere") == 1
    assert "no git history" in checkout.lines()[-1]


@pytest.mark.process
def test_the_demo_requires_a_recent_python(checkout: Checkout) -> None:
    assert checkout.run(python="false") == 1
    assert "no Python 3.11 or later; install one" in checkout.lines()[-1]
    assert not (checkout.directory / ".venv-demo").exists()


@pytest.mark.process
def test_the_help_explains_the_options_of_the_demo(checkout: Checkout) -> None:
    assert checkout.run("--help") == 0
    assert {"--stay", "--kafka", "--logs", "--lines"} <= set(re.findall(r"--\w+", checkout.output.read_text()))


def demo_module(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(ROOT)
    from scripts import demo  # noqa: PLC0415 - only now can it be found

    return demo


@pytest.mark.parametrize(
    ("found", "fault"),
    [
        ({0: [b"a", b"a", b"c"], 1: [b"b"]}, ""),
        ({0: [b"a", b"c"], 1: [b"b"]}, "1 missing"),
        ({0: [b"a", b"a", b"c"], 1: [b"b", b"c"]}, "1 too many"),
        ({0: [b"a", b"c", b"a"], 1: [b"b"]}, "1 partitions out of order"),
        ({}, "4 missing"),
    ],
)
def test_the_demo_detects_missing_doubled_and_reordered_lines(
    found: dict[int, list[bytes]], fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    demo = demo_module(monkeypatch)
    sent = [b"a", b"a", b"b", b"c"]
    assert demo.faults_of(sent, found) == fault


# --- the examples of the README for programmers --------------------------------------------------------------------
def received_from(code: str, directory: Path, count: int) -> Sequence[object]:
    """Return the data that the code sends to the daemon's socket."""
    path = directory / "in.dgram"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(str(path))
        receiver.settimeout(10)
        code = code.replace("/run/bruce/in.dgram", str(path))
        run_program(sys.executable, "-c", code, time_limit_s=60)
        return [parse_message(receiver.recv(65536)) for _ in range(count)]


@pytest.mark.process
def test_the_documented_python_sends(tmp_path: Path) -> None:
    client, raw, _ = [block.text for block in blocks_of(README) if block.language == "python"]  # the third is for Spark
    first, second = received_from(client, tmp_path, 2)
    assert isinstance(first, Message)
    assert isinstance(second, Message)
    assert (first.topic, first.value, first.key) == (b"clicks", b"hello", b"user-7")
    assert (second.topic, second.value, second.partition_key) == (b"clicks", b"hello", 7)
    (tmp_path / "in.dgram").unlink()
    (third,) = received_from(raw, tmp_path, 1)
    assert isinstance(third, Message)
    assert (third.topic, third.value, third.key, third.partition_key) == (b"clicks", b"hello", b"", None)
    assert abs(third.timestamp_ms - first.timestamp_ms) < 60_000
