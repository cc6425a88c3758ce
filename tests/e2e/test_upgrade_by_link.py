"""`bruce upgrade` with a virtual environment for each version, and a symbolic link to the present one."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from typing import TYPE_CHECKING, Final

import pytest

from bruce_mp.devbroker.control import DevBroker
from support.daemon import Daemon
from support.installation import Installation
from support.processes import run_program

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.process

WITHIN_S: Final = 90
OLD: Final = "9.0.1"
NEW: Final = "9.0.2"
SCRIPT: Final = """#!{python}
import sys
from bruce_mp.cli import main
if __name__ == "__main__":
    sys.exit(main())
"""
"""A script as pip makes it, with the path of its environment, not of a link to that."""


class Environments:
    """A virtual environment for each version, and the link `bruce`."""

    def __init__(self, directory: Path) -> None:
        self.link = directory / "bruce"
        self._directory = directory

    def create(self, version: str) -> None:
        """Create the environment of a version."""
        home = self.path(version)
        run_program(sys.executable, "-m", "venv", "--without-pip", home, time_limit_s=60)
        packages = home / "lib" / f"python{sysconfig.get_python_version()}" / "site-packages"
        Installation(packages).set_version(version)
        (packages / "libraries.pth").write_text(sysconfig.get_path("purelib") + "\n")
        script = home / "bin" / "bruce"
        script.write_text(SCRIPT.format(python=home / "bin" / "python3"))
        script.chmod(0o755)

    def path(self, version: str) -> Path:
        return self._directory / f"bruce-{version}"

    def choose(self, version: str) -> None:
        """Change the link, as `ln -sfn` does."""
        self.link.unlink(missing_ok=True)
        self.link.symlink_to(self.path(version))


@pytest.fixture(scope="module")
def created(tmp_path_factory: pytest.TempPathFactory) -> Environments:
    environments = Environments(tmp_path_factory.mktemp("environments"))
    for version in (OLD, NEW):
        environments.create(version)
    return environments


@pytest.fixture
def environments(created: Environments) -> Environments:
    """Return the environments with the link to the old version."""
    created.choose(OLD)
    return created


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    with DevBroker(topics={"red": 1}) as broker:
        yield Daemon(tmp_path, broker.bootstrap)


def start(daemon: Daemon, home: Path) -> None:
    """Start the daemon by the script of an environment, in place of `python -m bruce_mp`."""
    daemon.prefix = ("/bin/sh", "-c", 'shift 3; exec "$0" "$@"', str(home / "bin" / "bruce"))
    daemon.start()


def upgrade(daemon: Daemon, home: Path) -> subprocess.CompletedProcess[str]:
    command = [str(home / "bin" / "bruce"), "upgrade", "--config", str(daemon.config_path)]
    return subprocess.run(command, capture_output=True, text=True, timeout=WITHIN_S, check=False)


def running_version(daemon: Daemon) -> str:
    return str(daemon.get("/server_info/json")["version"])


def test_upgrade_and_rollback_by_the_link_run_the_version_that_it_names(
    daemon: Daemon, environments: Environments
) -> None:
    start(daemon, environments.link)
    pid = daemon.pid
    with daemon.checked_at_end():
        for count, (old, new) in enumerate(((OLD, NEW), (NEW, OLD)), 1):
            environments.choose(new)
            done = upgrade(daemon, environments.link)
            assert done.stdout.startswith(f"bruce {old} -> {new}: "), done.stderr + daemon.log()
            assert (done.returncode, running_version(daemon), daemon.pid) == (0, new, pid)
            daemon.send("red", b"message")
            daemon.wait_settled(count)


def test_the_command_fails_if_the_daemon_starts_another_installation(
    daemon: Daemon, environments: Environments
) -> None:
    start(daemon, environments.path(OLD))
    with daemon.checked_at_end():
        environments.choose(NEW)
        done = upgrade(daemon, environments.link)
        assert (done.returncode, done.stdout, running_version(daemon)) == (1, "", OLD)
        [package] = environments.path(OLD).glob("lib/*/site-packages/bruce_mp")
        assert done.stderr.startswith(
            f"bruce: The daemon still runs bruce {OLD} from {package}, and this command is {NEW}. Restart the daemon"
        )
