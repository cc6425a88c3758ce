"""The container image, built and run by the commands in its file, on a base of Debian's packages.

No registry of images is needed.  The embedded broker runs in a container of the same image; the daemon shares its
network, and is stopped and replaced as an orchestrator does it.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
import pytest

from bruce_mp.client import DatagramClient
from bruce_mp.devbroker import commands
from bruce_mp.devbroker.control import ControlChannel, decode_batches
from support.processes import run_program, time_limit, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT: Final = Path(__file__).parents[2]
PLACE: Final = ROOT / "deploy" / "container"
MISSING: Final = [name for name in ("mmdebstrap", "podman", "runc") if shutil.which(name) is None]
REMEDY: Final = "apt-get install --no-install-recommends mmdebstrap podman runc"
pytestmark = [
    pytest.mark.soak,
    pytest.mark.process,
    pytest.mark.skipif(os.getuid() != 0, reason="NOT TESTED: the container image, because this user is not root"),
    pytest.mark.skipif(
        bool(MISSING),
        reason=f"NOT TESTED: the container image, because this machine has no {' and no '.join(MISSING)} ({REMEDY})",
    ),
]

SUITE: Final = "bookworm"
PACKAGES: Final = "ca-certificates,python-is-python3,python3-dev,python3-venv"
SEARCH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
CERTIFICATES: Final = "/etc/ssl/certs"
USER: Final = 10001
LIMITS: Final = ("--ulimit=nofile=4096:4096", "--ulimit=nproc=4096:4096")
"""podman's own limits may be above what this machine allows."""
BUILD_S: Final = 540.0
START_S: Final = 60.0


def documented() -> dict[str, list[str]]:
    """Return the words of the commands in the head of the file, by the first two words."""
    head = "\n".join(re.findall(r"^#     (.*)", (PLACE / "Containerfile").read_text(), re.MULTILINE))
    lines = [shlex.split(line) for line in head.replace("\\\n", " ").splitlines()]
    return {" ".join(words[:2]): words for words in lines}


class Host:
    """The directories of a host below `root`, with podman's own storage."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.sockets, self.state, self.config = root / "run/bruce", root / "var/lib/bruce", root / "etc/bruce"
        for directory in (self.sockets, self.state):
            directory.mkdir(parents=True)
            os.chown(directory, USER, USER)
        self.config.mkdir(parents=True)

    def podman(self, *words: str | Path, time_limit_s: float = START_S) -> str:
        storage = [f"--{name}={self.root / 'podman' / name}" for name in ("root", "runroot", "tmpdir")]
        return run_program(
            "podman", *storage, "--runtime=runc", "--cgroup-manager=cgroupfs", "--events-backend=file", *words,
            time_limit_s=time_limit(time_limit_s), directory=ROOT, DISABLE_HC_SYSTEMD="true",
        ).strip()  # fmt: skip

    def build(self) -> None:
        """Build the base as distributions do, without a compiler, and the image on it."""
        base = self.root / "base.tar"
        run_program(
            "mmdebstrap", "--quiet", "--variant=apt", f"--include={PACKAGES}", SUITE, base,
            time_limit_s=time_limit(BUILD_S),
        )  # fmt: skip
        self.podman("import", "--quiet", f"--change=ENV=PATH={SEARCH}", base, "localhost/base", time_limit_s=BUILD_S)
        base.unlink()
        self.podman(
            *("build", "--build-arg=BASE=localhost/base", "--isolation=chroot", "--network=host", "--layers=false"),
            *(f"--volume={CERTIFICATES}:{CERTIFICATES}:ro", *documented()["podman build"][2:]),
            time_limit_s=BUILD_S,
        )

    def run_broker(self) -> ControlChannel:
        """Run the embedded broker in a network of its own."""
        sockets = self.root / "run/broker"
        sockets.mkdir()
        os.chown(sockets, USER, USER)
        command = "bruce dev-broker --port=9092 --topic=clicks:1 --control=/run/bruce/control"
        self.podman(
            *("run", "--detach", "--name=broker", "--network=none", *LIMITS, f"--volume={sockets}:/run/bruce"),
            *("bruce", *command.split()),
        )
        wait_until((sockets / "control").is_socket, "the broker", START_S)
        return ControlChannel(str(sockets / "control"))

    def run_daemon(self) -> None:
        """Run the documented command with the directories of this host and the broker's network."""
        words = [re.sub(r"^/", f"{self.root}/", word) for word in documented()["podman run"][2:]]
        self.podman("run", "--network=container:broker", *LIMITS, *words)
        wait_until(self.is_healthy, "a healthy container", START_S)

    def is_healthy(self) -> bool:
        try:
            self.podman("healthcheck", "run", "bruce")
        except AssertionError:
            return False
        return True

    def wait_balanced(self, received: int) -> None:
        """Wait until the documented `bruce check` reports all messages as delivered."""
        balance = f"received {received} = delivered {received} + discarded 0 + held 0"
        wait_until(lambda: balance in self.podman(*documented()["podman exec"][1:]), balance, START_S)

    def stop(self) -> str:
        """Stop the daemon as an orchestrator does, and return its log."""
        self.podman("stop", "bruce")
        assert self.podman("inspect", "--format={{.State.ExitCode}}", "bruce") == "0"
        return self.podman("logs", "bruce")

    def send(self, values: list[bytes]) -> None:
        with DatagramClient(str(self.sockets / "in.dgram"), timeout=time_limit(START_S)) as client:
            for value in values:
                client.send("clicks", value)


def values_in(broker: ControlChannel) -> list[bytes | None]:
    chunk = broker.request(commands.Batches(topic="clicks", partition=0, offset=0))
    return [record.value for record in decode_batches(msgspec.convert(chunk, commands.LogSlice, strict=False).batches)]


@pytest.fixture
def host() -> Iterator[Host]:
    """Yield a host with the image and a configuration; print the logs and remove everything in the end."""
    root = Path(tempfile.mkdtemp(prefix="c"))  # podman refuses a longer path
    running = Host(root)
    try:
        running.build()
        text = (PLACE / "bruce.toml").read_text() + "\n[delivery]\nshutdown_max_delay_ms = 2000\n"
        (running.config / "bruce.toml").write_text(text)
        yield running
    finally:
        for name in ("bruce", "broker"):
            with suppress(AssertionError):  # it may be gone
                print(running.podman("logs", name))
            running.podman("rm", "--force", "--ignore", "--time=0", name)
        running.podman("rmi", "--all", "--force")
        shutil.rmtree(root)


def assert_lean(host: Host) -> None:
    """Assert that the image runs compiled kernels, as an ordinary user and without what built them."""
    assert host.podman("exec", "bruce", "bruce", "--version").endswith("compiled kernels")
    assert host.podman("exec", "bruce", "id", "--user") == str(USER)
    program = "import shutil; print([name for name in ('gcc', 'cc', 'cython', 'pip') if shutil.which(name)])"
    assert host.podman("exec", "bruce", "python", "-c", program) == "[]"
    assert "bruce[supervisor 1]" in host.podman("logs", "bruce")


def test_the_image_delivers_and_the_next_container_delivers_what_the_last_one_held(host: Host) -> None:
    broker = host.run_broker()
    host.run_daemon()
    assert_lean(host)
    sent = [b"message %d" % number for number in range(500)]
    host.send(sent)
    host.wait_balanced(500)
    assert values_in(broker) == sent

    broker.request(commands.BrokerDown(broker=1))
    rest = [b"held %d" % number for number in range(20)]
    host.send(rest)
    assert "received 520 = delivered 500 + discarded 0 + held 20 (" in host.stop()
    host.podman("rm", "bruce")
    broker.request(commands.BrokerUp(broker=1))
    host.run_daemon()
    host.wait_balanced(520)
    assert "received 520 = delivered 520 + discarded 0 + held 0." in host.stop()
    assert values_in(broker) == sent + rest
    assert not (host.state / "slab").exists()
    broker.close()
