"""`bruce top` in a pseudo-terminal, before a real daemon."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
from typing import TYPE_CHECKING, Final, Self

import pytest

from bruce_mp.devbroker.control import DevBroker
from support.daemon import Daemon
from support.processes import BRUCE, run_bruce, wait_until

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.process
TOPICS: Final = ("crimson", "green", "blue")
CONTROL: Final = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b[()][A-Z0-9]")
HIDE_CURSOR, SHOW_CURSOR = "\x1b[?25l", "\x1b[?25h"
OTHER_SCREEN, FIRST_SCREEN = "\x1b[?1049h", "\x1b[?1049l"
WAIT_S: Final = 20


class Terminal:
    """A program in a terminal of its own."""

    def __init__(self, *arguments: str, width: int = 120, height: int = 30) -> None:
        self._master, self._slave = pty.openpty()
        self.resize(width, height)
        self.before = termios.tcgetattr(self._slave)
        self.text = ""
        command = [*BRUCE, *arguments]
        ends = {"stdin": self._slave, "stdout": self._slave, "stderr": self._slave}
        environment = {**os.environ, "TERM": "xterm-256color"}
        self.process = subprocess.Popen(command, **ends, env=environment, start_new_session=True)  # type: ignore[call-overload]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._master)
        os.close(self._slave)

    def resize(self, width: int, height: int) -> None:
        fcntl.ioctl(self._slave, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))

    def press(self, keys: str) -> None:
        self.text = ""
        os.write(self._master, keys.encode())

    def read(self) -> str:
        """Return all text since the last key."""
        while select.select([self._master], [], [], 0)[0]:
            self.text += os.read(self._master, 65536).decode("utf-8", "replace")
        return self.text

    def wait(self, *parts: str) -> str:
        """Wait until a screen has these parts in this order."""
        pattern = re.compile(".*?".join(map(re.escape, parts)), re.DOTALL)
        wait_until(lambda: bool(pattern.search(CONTROL.sub("", self.read()))), f"{parts} on the screen", WAIT_S)
        return self.text

    def _has_ended(self) -> bool:
        self.read()  # a program with a full terminal cannot end
        return self.process.poll() is not None

    def wait_end(self) -> int:
        wait_until(self._has_ended, "the end of the program", WAIT_S)
        return int(self.process.wait())

    @property
    def is_restored(self) -> bool:
        return termios.tcgetattr(self._slave) == self.before and self.read().rfind(FIRST_SCREEN) >= 0


def send(daemon: Daemon) -> None:
    for index, topic in enumerate(TOPICS):
        daemon.send(topic, *(b"%d" % number for number in range(index + 1)))


def test_top_shows_a_daemon_through_an_outage_and_obeys_keys(tmp_path: Path) -> None:
    with DevBroker(topics=dict.fromkeys(TOPICS, 2)) as broker, Daemon(tmp_path, broker.bootstrap) as daemon:
        send(daemon)
        daemon.wait_settled(6)
        with Terminal("top", "--config", str(daemon.config_path), "--interval", "0.5") as terminal:
            shown = terminal.wait("received 6 = delivered 6", "connected", "DELIVERED/S▼", "blue", "green", "crimson")
            assert OTHER_SCREEN in shown
            assert HIDE_CURSOR in shown
            terminal.press("<<")  # from delivered to the last column, by way of the name
            terminal.wait("DISCARDED▼")
            terminal.press(">")
            terminal.wait("TOPIC▲", "blue", "green", "crimson")
            terminal.press("r")
            terminal.wait("TOPIC▼", "crimson", "green", "blue")
            terminal.press("/gre")
            terminal.wait("Name contains: gre_")
            terminal.press("\r")
            assert "crimson" not in CONTROL.sub("", terminal.wait("TOPIC▼", "green", "q quit")).split("q quit")[-2]
            terminal.press("\x1b")
            terminal.wait("crimson", "green", "blue")
            broker.broker_down(1)
            send(daemon)
            terminal.press("r")
            terminal.wait("problem", "held 6", "Problem: No broker can be reached", "failed")
            broker.broker_up(1)
            daemon.wait_settled(12)
            terminal.press("r")
            terminal.wait("received 12 = delivered 12")
            terminal.press("")
            terminal.resize(70, 12)
            os.kill(terminal.process.pid, signal.SIGWINCH)
            terminal.wait("received 12 = delivered 12")
            terminal.press("q")
            assert terminal.wait_end() == 0
            assert terminal.is_restored
            assert "Traceback" not in terminal.text


def test_top_survives_the_daemon_and_ends_with_a_signal(tmp_path: Path) -> None:
    with DevBroker(topics=dict.fromkeys(TOPICS, 2)) as broker, Daemon(tmp_path, broker.bootstrap) as daemon:
        words = ("top", "--url", daemon.url(""), "--interval", "0.5")
        with Terminal(*words) as interrupted, Terminal(*words) as terminated:
            for terminal in (interrupted, terminated):
                terminal.wait("received 0 = delivered 0", "No topic")
            assert daemon.terminate() == 0
            for terminal, number in ((interrupted, signal.SIGINT), (terminated, signal.SIGTERM)):
                terminal.wait("No daemon answers at")
                os.kill(terminal.process.pid, number)
                assert terminal.wait_end() == 128 + number
                assert terminal.is_restored
                assert "Traceback" not in terminal.text
        daemon.start()


def test_top_without_a_terminal_names_the_command_for_scripts() -> None:
    ended = run_bruce("top", "--url", "http://127.0.0.1:1")
    assert (ended.returncode, ended.stderr) == (
        1, "bruce: `bruce top` needs a terminal. For a script, use `bruce status --json`.\n",
    )  # fmt: skip


def test_top_without_rich_names_the_extra(tmp_path: Path) -> None:
    (tmp_path / "rich.py").write_text("raise ImportError")
    ended = run_bruce("top", PYTHONPATH=str(tmp_path))
    assert (ended.returncode, ended.stderr) == (
        1, "bruce: `bruce top` needs the package rich: pip install 'bruce-mp[top]'.\n",
    )  # fmt: skip
