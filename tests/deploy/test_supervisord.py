"""The daemon under a real supervisord, with the configuration that we ship: only paths, the user and times differ."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast
from xmlrpc.client import ServerProxy

import psutil
import pytest
from supervisor.xmlrpc import SupervisorTransport

from bruce_mp.devbroker.control import DevBroker
from support import processes
from support.daemon import Daemon
from support.traffic import Load, deliver

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.process

CONF: Final = Path(__file__).parents[2] / "deploy" / "supervisord" / "bruce.conf"
PATIENCE_S: Final = 60.0
SUPERVISORD: Final = """
[supervisord]
nodaemon = true
logfile = {place}/supervisord.log
pidfile = {place}/supervisord.pid
childlogdir = {place}
[unix_http_server]
file = {place}/s.sock
chmod = 0700
[rpcinterface:supervisor]
supervisor.rpcinterface_factory = supervisor.rpcinterface:make_main_rpcinterface
[supervisorctl]
serverurl = unix://{place}/s.sock
"""


def adapted(place: Path, command: str, startsecs: int) -> str:
    """Return our file for a test's directory.  For supervisord a start fails if the program ends within `startsecs`."""
    text = CONF.read_text()
    for pattern, ours in (
        (r"command = \S+ (run|hold) .*", lambda found: f"command = {command.replace(' run ', f' {found[1]} ')}"),
        (r"user = .*\n", ""),
        (r"/var/log/bruce", str(place)),
        (r"startsecs = 10", f"startsecs = {startsecs}"),
        (r"startretries = 10", "startretries = 1"),
        (r"50MB", "1KB"),
    ):
        text, found = re.subn(pattern, ours, text)
        assert found, pattern
    return text


class Supervised:
    """supervisord with a daemon."""

    def __init__(self, place: Path, command: str, startsecs: int = 1) -> None:
        self.place = place
        self.conf = place / "supervisord.conf"
        self.conf.write_text(SUPERVISORD.format(place=place) + adapted(place, command, startsecs))
        with (place / "supervisord.out").open("wb") as output:
            self.process = processes.spawn(
                [sys.executable, "-m", "supervisor.supervisord", "-n", "-c", str(self.conf)], output=output
            )
        self.wait_for((place / "s.sock").exists, "supervisord")
        transport = SupervisorTransport(serverurl=f"unix://{place}/s.sock")
        self._server = ServerProxy("http://127.0.0.1", transport)

    def ctl(self, *words: str) -> str:
        command = [sys.executable, "-m", "supervisor.supervisorctl", "-c", str(self.conf), *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False).stdout

    def info(self) -> dict[str, object]:
        """Return what supervisord knows about the daemon, without a process of `supervisorctl` for each question."""
        return cast("dict[str, object]", self._server.supervisor.getProcessInfo("bruce"))

    def wait_for_status(self, status: str) -> None:
        self.wait_for(lambda: self.info()["statename"] == status, f"bruce to be {status}")

    def wait_for(self, condition: Callable[[], bool], what: str) -> None:
        processes.wait_until(condition, what, PATIENCE_S)

    def pid(self) -> int:
        return int(str(self.info()["pid"]))

    def end(self) -> None:
        all_processes = psutil.Process(self.process.pid).children(recursive=True)
        self._server("close")()
        self.process.terminate()
        self.process.wait(PATIENCE_S)
        self.wait_for(lambda: not processes.still_alive(all_processes), "all_processes to end with supervisord")


@pytest.fixture
def supervised(tmp_path: Path) -> Iterator[tuple[Supervised, Daemon]]:
    with DevBroker(brokers=1, topics={"clicks": 2}) as broker:
        daemon = Daemon(tmp_path, broker.bootstrap)
        log = f"--set=logging.file.enable=true --set=logging.file.path={tmp_path}/bruce.log"
        command = f"{sys.executable} -m bruce_mp run --config {daemon.config_path} {log}"
        running = Supervised(tmp_path, command)
        try:
            yield running, daemon
        finally:
            running.end()


def answers(daemon: Daemon) -> bool:
    try:
        return {"input", "router", "status"} <= {
            line["name"] for line in daemon.get("/processes/json")["processes"] if line["state"] == "running"
        }
    except OSError:
        return False


def test_supervisord_starts_restarts_upgrades_and_stops_the_daemon(supervised: tuple[Supervised, Daemon]) -> None:
    running, daemon = supervised
    load = Load(("clicks",), senders=1, messages=300, largest=200)
    running.wait_for_status("RUNNING")
    running.wait_for(lambda: answers(daemon), "the daemon")
    deliver(load, daemon)

    first = running.pid()
    children = psutil.Process(first).children(recursive=True)
    os.kill(first, signal.SIGKILL)
    running.wait_for(lambda: not processes.still_alive(children), "the processes of the killed daemon to go")
    running.wait_for(lambda: running.pid() not in {0, first}, "another daemon")
    running.wait_for_status("RUNNING")
    running.wait_for(lambda: answers(daemon), "the daemon")
    deliver(load, daemon)

    before = running.pid()
    daemon.upgrade()
    assert running.pid() == before
    assert "RUNNING" in running.ctl("status", "bruce")
    deliver(load, daemon)

    log = running.place / "bruce.log"
    log.rename(running.place / "bruce.log.old")
    running.ctl("signal", "USR1", "bruce")
    running.wait_for(lambda: daemon.counters()["GotLogfileReopenRequest"] == 1, "the signal")

    all_processes = psutil.Process(running.pid()).children(recursive=True)
    running.wait_for(lambda: "bruce hold keeps" in (running.place / "hold.log").read_text(), "bruce hold")
    assert "bruce-hold: stopped" in running.ctl("stop", "bruce-hold")
    assert "stopped" in running.ctl("stop", "bruce")
    assert "STOPPED" in running.ctl("status", "bruce")
    assert not processes.still_alive(all_processes)
    assert not daemon.slab_path.exists()
    assert not daemon.socket_path.exists()
    total = 3 * load.total
    assert f"bruce has ended: received {total} = delivered {total} + discarded 0 + held 0." in log.read_text()
    assert list(running.place.glob("std*.log.1")), "supervisord rotates what goes to standard output"


def test_a_refused_start_is_fatal_and_names_the_reason(tmp_path: Path) -> None:
    config = tmp_path / "bruce.toml"
    config.write_text("[kafka]\nbootstrap_servers = []\n")
    # Long enough to load the code: supervisord restarts a program that ends later without limit.
    running = Supervised(tmp_path, f"{sys.executable} -m bruce_mp run --config {config}", startsecs=int(PATIENCE_S))
    try:
        running.wait_for_status("FATAL")
    finally:
        running.end()
    assert "bootstrap_servers" in (tmp_path / "stderr.log").read_text()
