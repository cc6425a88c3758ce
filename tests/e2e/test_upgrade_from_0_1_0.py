"""pip upgrades an installation of version 0.1.0 whose daemon holds messages; each is delivered once."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from bruce_mp import __version__
from bruce_mp.client import DatagramClient, StreamClient
from support.old_slab import remove_newer_settings
from support.processes import run_program
from support.read_back import broker_fixture
from support.stream_inputs import daemon_in

if TYPE_CHECKING:
    from collections.abc import Callable

    from bruce_mp.devbroker.control import DevBroker
    from support.daemon import Daemon

pytestmark = [pytest.mark.process, pytest.mark.soak]

ROOT: Final = Path(__file__).parents[2]
COMMIT: Final = "8bc2c39392478cedb7448bf517def07107da06bb"
"""The commit of version 0.1.0."""
TOPICS: Final = ("datagrams", "stream")
COUNT: Final = 200
"""Messages of each topic in each of three periods: Kafka answers, Kafka is away, the new version receives."""
BUILD_S: Final = 400
UPGRADE_S: Final = 90


def build_wheel(sources: Path) -> Path:
    """Build the wheel of a source tree, as pip does for a user."""
    options = ["--quiet", "--no-deps", "--wheel-dir", str(sources / "wheel")]
    run_program(sys.executable, "-m", "pip", "wheel", *options, sources, time_limit_s=BUILD_S)
    [wheel] = (sources / "wheel").glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def old_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    sources = tmp_path_factory.mktemp("0.1.0")
    packed = subprocess.run(["git", "archive", COMMIT], cwd=ROOT, capture_output=True, check=False, timeout=60)
    if packed.returncode:
        pytest.fail(f"this clone lacks commit {COMMIT[:7]} of version 0.1.0; run: git fetch --unshallow")
    with tarfile.open(fileobj=BytesIO(packed.stdout)) as archive:
        archive.extractall(sources, filter="data")
    return build_wheel(sources)


@pytest.fixture(scope="module")
def new_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    sources = tmp_path_factory.mktemp("new")
    for name in ("bruce_mp", "pyspark_bruce"):
        shutil.copytree(ROOT / name, sources / name, ignore=shutil.ignore_patterns("*.so", "*.c", "__pycache__"))
    for name in ("LICENSE", "README.md", "pyproject.toml", "setup.cfg", "setup.py"):
        shutil.copy(ROOT / name, sources / name)
    return build_wheel(sources)


def install(wheel: Path, directory: Path) -> None:
    """Install a wheel over any other version."""
    options = ("--quiet", "--no-deps", "--upgrade", "--target", directory)
    run_program(sys.executable, "-m", "pip", "install", *options, wheel, time_limit_s=BUILD_S)


def version_of(directory: Path) -> str:
    said = run_program(sys.executable, "-P", "-m", "bruce_mp", "--version", time_limit_s=30, PYTHONPATH=str(directory))
    return said.split()[1].rstrip(",")


broker = broker_fixture(topics=dict.fromkeys(TOPICS, 1), strict=True)


def values(first: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, first + COUNT)]


def send(daemon: Daemon, first: int) -> None:
    with DatagramClient(daemon.socket_path) as datagrams, StreamClient(daemon.directory / "in.stream") as stream:
        for value in values(first):
            datagrams.send("datagrams", value)
            stream.send("stream", value)
        stream.flush(60, "received")


def restart_after_sigterm(daemon: Daemon, directory: Path) -> None:
    assert daemon.terminate() == 0
    daemon.start(directory)


def restart_after_a_kill(daemon: Daemon, directory: Path) -> None:
    daemon.kill_all()
    daemon.start(directory)


def run_bruce_upgrade(daemon: Daemon, directory: Path) -> None:
    command = (sys.executable, "-P", "-m", "bruce_mp", "upgrade", "--config", daemon.config_path)
    run_program(*command, time_limit_s=UPGRADE_S, PYTHONPATH=str(directory))


@pytest.mark.parametrize("start_new", [restart_after_sigterm, restart_after_a_kill, run_bruce_upgrade])
def test_each_held_message_is_delivered_once_when_pip_upgrades_0_1_0(
    tmp_path: Path, broker: DevBroker, old_wheel: Path, new_wheel: Path, start_new: Callable[[Daemon, Path], None]
) -> None:
    directory = tmp_path / "installed"
    install(old_wheel, directory)
    assert version_of(directory) == "0.1.0"
    daemon = daemon_in(tmp_path, broker, **{"delivery.shutdown_max_delay_ms": 500})
    remove_newer_settings(daemon.config_path)
    daemon.start(directory)
    with daemon.checked_at_end():
        send(daemon, 0)
        daemon.wait_settled(len(TOPICS) * COUNT)
        broker.broker_down(1)
        send(daemon, COUNT)
        daemon.wait_received(2 * len(TOPICS) * COUNT)
        install(new_wheel, directory)
        start_new(daemon, directory)
        assert daemon.get("/server_info/json")["version"] == __version__
        held = daemon.wait_consistent().held
        assert sum(held.values()) == len(TOPICS) * COUNT
        send(daemon, 2 * COUNT)
        broker.broker_up(1)
        books = daemon.wait_settled(3 * len(TOPICS) * COUNT)
        assert (books.received, books.delivered) == (3 * len(TOPICS) * COUNT, 3 * len(TOPICS) * COUNT)
        for topic in TOPICS:
            [records] = broker.fetch(topic)
            assert [each.value for each in records] == values(0) + values(COUNT) + values(2 * COUNT), topic
