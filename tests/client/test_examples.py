"""The examples in docs/clients are compiled and run, over each transport that they support.

A language without tools on this machine is skipped, and the summary reports it.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from bruce_mp.devbroker.control import DevBroker
from bruce_mp.protocol.client.messages import Message, parse_message
from bruce_mp.supervisor.run_dir import TCP_ADDRESS
from support.daemon import Daemon
from support.stream_daemon import StreamDaemon

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from bruce_mp.protocol.client.messages import Rejection

EXAMPLES: Final = Path(__file__).parents[2] / "docs" / "clients"
BUILD_S: Final = 300


@dataclass(frozen=True)
class Language:
    """Needs of a language, the build of its example (in a directory), and the arguments that select the transport."""

    tools: tuple[str, ...]
    build: Callable[[Path], list[str] | None]
    run: Callable[[Path], list[str]]
    ways: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Arguments before the topic, by transport; `{}` is the path or the port."""
    keyed: bool = True


LANGUAGES: Final = {
    "c": Language(
        ("gcc",),
        lambda made: ["gcc", "-Wall", "-Wextra", "-Werror", "-o", f"{made}/send", f"{EXAMPLES}/send.c"],
        lambda made: [f"{made}/send"],
        {"datagram": ("{}",)},
    ),
    "go": Language(
        ("go",),
        lambda made: ["go", "build", "-o", f"{made}/send", f"{EXAMPLES}/send.go"],
        lambda made: [f"{made}/send"],
        {"datagram": ("unixgram", "{}"), "stream": ("unix", "{}"), "tcp": ("tcp", "127.0.0.1:{}")},
    ),
    "java": Language(
        ("java", "javac"),
        lambda made: ["javac", "-Xlint:all", "-Werror", "-d", str(made), f"{EXAMPLES}/Send.java"],
        lambda made: [
            "java",
            "-XX:TieredStopAtLevel=1",
            "-Djava.net.preferIPv6Addresses=true",
            "-cp",
            str(made),
            "Send",
        ],
        {"stream": ("{}",), "tcp": ("{}",)},
    ),
    "node": Language(
        ("node",),
        lambda _: None,
        lambda _: ["node", f"{EXAMPLES}/send.js"],
        {"stream": ("{}",), "tcp": ("{}",)},
    ),
    "shell": Language(
        ("bash", "sed", "date"), lambda _: None, lambda _: [f"{EXAMPLES}/send.sh"], {"tcp": ("{}",)}, keyed=False
    ),
}
WAYS: Final = [(name, way) for name, language in LANGUAGES.items() for way in language.ways]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], list[str]]:
    """Return the command that runs a language's example, which is built once."""
    made: dict[str, list[str]] = {}

    def build(name: str) -> list[str]:
        language = LANGUAGES[name]
        missing = [tool for tool in language.tools if shutil.which(tool) is None]
        if missing:
            pytest.skip(f"NOT TESTED: the {name} example, because this machine has no {' and no '.join(missing)}")
        if name not in made:
            directory = tmp_path_factory.mktemp(name)
            if (command := language.build(directory)) is not None:
                finish(command)
            made[name] = language.run(directory)
        return made[name]

    return build


def finish(command: Sequence[str], *, expect: int = 0) -> str:
    """Run a command to its end, and return its output."""
    offline = {**os.environ, "GOTOOLCHAIN": "local", "GOPROXY": "off", "GO111MODULE": "off"}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=BUILD_S, env=offline, cwd=EXAMPLES, check=False
    )
    assert done.returncode == expect, f"{command}: {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stderr


class Receiver:
    """A stand-in for one of the daemon's inputs."""

    def __init__(self, way: str, directory: Path) -> None:
        self._stream = None
        if way == "datagram":
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            self._socket.bind(str(directory / "in"))
            self._socket.settimeout(20)
        else:
            self._stream = StreamDaemon(directory / "in" if way == "stream" else None)
        self.address = str(self._stream.port if way == "tcp" and self._stream else directory / "in")

    def receive(self, count: int) -> list[Message | Rejection]:
        if self._stream is not None:
            return self._stream.wait(count)
        return [parse_message(self._socket.recv(1 << 17)) for _ in range(count)]

    def close(self) -> None:
        if self._stream is not None:
            self._stream.stop()
        else:
            self._socket.close()


@pytest.fixture
def receiver(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Receiver]:
    receiver = Receiver(request.param, tmp_path)
    yield receiver
    receiver.close()


def arguments(name: str, way: str, address: str) -> list[str]:
    return [argument.format(address) for argument in LANGUAGES[name].ways[way]]


@pytest.mark.process
@pytest.mark.parametrize(("name", "receiver", "way"), [(name, way, way) for name, way in WAYS], indirect=["receiver"])
def test_an_example_sends_valid_messages(
    built: Callable[[str], list[str]], name: str, receiver: Receiver, way: str
) -> None:
    command = [*built(name), *arguments(name, way, receiver.address)]
    before = time.time_ns() // 1_000_000
    finish([*command, "größe", "schlüssel", "wert €"])
    finish([*command, "t", "", ""])
    messages = receiver.receive(2)
    if LANGUAGES[name].keyed:
        finish([*command, "t", "", "v", "4294967295"])
        messages = [*messages[:2], receiver.receive(3 if way != "datagram" else 1)[-1]]
    after = time.time_ns() // 1_000_000
    good = [message for message in messages if isinstance(message, Message)]
    assert [(message.topic, message.key, message.value, message.partition_key) for message in good] == [
        ("größe".encode(), "schlüssel".encode(), "wert €".encode(), None),
        (b"t", b"", b"", None),
        (b"t", b"", b"v", 4294967295),
    ][: len(messages)]
    assert all(before <= message.timestamp_ms <= after for message in good)


@pytest.mark.process
@pytest.mark.parametrize(("name", "way"), WAYS)
def test_an_example_reports_a_missing_daemon(
    built: Callable[[str], list[str]], tmp_path: Path, name: str, way: str
) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # the socket does not listen
        address = str(nobody.getsockname()[1]) if way == "tcp" else str(tmp_path / "nobody")
        assert finish([*built(name), *arguments(name, way, address), "t", "", "v"], expect=1)


@pytest.mark.process
def test_messages_of_all_examples_reach_kafka(built: Callable[[str], list[str]], tmp_path: Path) -> None:
    settings = {
        "input.unix_stream.enable": "true",
        "input.unix_stream.path": tmp_path / "in.stream",
        "input.tcp.enable": "true",
        "input.tcp.port": 0,
        "input.streams.workers": 1,
    }
    with (
        DevBroker(brokers=1, topics={"clicks": 2}) as broker,
        Daemon(tmp_path, broker.bootstrap, settings) as daemon,
    ):
        port = (daemon.run_dir / TCP_ADDRESS).read_text().rpartition(":")[2]
        addresses = {"datagram": daemon.socket_path, "stream": tmp_path / "in.stream", "tcp": port}
        for name, way in WAYS:
            where = arguments(name, way, str(addresses[way]))
            finish([*built(name), *where, "clicks", "key", f"from {name} by {way}"])
        daemon.wait_settled(len(WAYS))
        records = [record for partition in broker.fetch("clicks") for record in partition]
    assert sorted(record.value or b"" for record in records) == sorted(f"from {n} by {w}".encode() for n, w in WAYS)
    assert {record.key for record in records} == {b"key"}
