"""The daemon as an unprivileged user: pages on a UNIX socket, changes with a token, and the modes of its files."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from bruce_mp.devbroker.control import DevBroker
from support.as_user import ONESELF, STRANGERS
from support.daemon import Daemon
from support.processes import run_bruce

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.process

USER: Final = STRANGERS[0] if STRANGERS else ONESELF
PREFIX: Final = (
    # The user may read the interpreter; all its other rights are those of every user.
    *("/usr/bin/setpriv", f"--reuid={USER.uid}", f"--regid={USER.gid}", "--clear-groups"),
    *("--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search", "--bounding-set=-all,+dac_read_search"),
)
TOKEN: Final = "sésame"
SECRET: Final = b"a value that is nobody's business"
OTHERS: Final = 0o007
TOLD_TO_COMMANDS: Final = ("http.listen", "http.token_file")
"""Settings that the file contains as well: with them `bruce` finds the pages."""


@pytest.fixture
def directory() -> Iterator[Path]:
    """Yield a directory of the user."""
    with tempfile.TemporaryDirectory(prefix="bruce-user-") as name:
        os.chown(name, USER.uid, USER.gid)
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.fixture
def no_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def files_of(directory: Path) -> dict[str, int]:
    """Return the modes of all files in a directory."""
    return {str(each.relative_to(directory)): each.lstat().st_mode for each in directory.rglob("*")}


@pytest.mark.usefixtures("no_umask")
def test_an_unprivileged_daemon_serves_its_pages_on_a_unix_socket(directory: Path) -> None:
    """With umask 0, only the daemon's explicit modes protect its files."""
    token = directory / "token"
    token.write_text(TOKEN, "utf-8")
    token.chmod(0o600)
    os.chown(token, USER.uid, USER.gid)
    settings = {
        "http.listen": f"unix:{directory / 'status.sock'}",
        "http.mode": "0600",
        "http.token_file": token,
        "input.unix_stream.enable": "true",
        "input.unix_stream.path": directory / "in.stream",
        "input.unix_stream.mode": "0660",
        "discard_log.enable": "true",
        "discard_log.path": directory / "discards" / "file",
        "input.max_datagram_size": "4k",
        "input.max_stream_size": "4k",
        "discard_log.max_file_size": "8k",
        "msg_debug.enable": "true",
        "msg_debug.path": directory / "debug",
    }
    with DevBroker(topics={"good": 1}) as broker:
        daemon = Daemon(directory, broker.bootstrap, settings)
        daemon.prefix = PREFIX if STRANGERS else ()
        daemon.configure({name: str(settings[name]) for name in TOLD_TO_COMMANDS})
        with daemon:
            assert_unprivileged(daemon)
            assert_asked_by_commands(daemon)
            daemon.send("nobody's", *[SECRET] * 300)
            daemon.send("good", SECRET)
            assert daemon.wait_settled(301).delivered == 1
            daemon.wait_for(lambda: any((directory / "discards").glob("file.*")), "a rolled file", 20)
            modes = files_of(directory)
            daemon.kill_all()
        assert {name: oct(mode) for name, mode in modes.items() if is_open_to_others(directory, name, mode)} == {}
        assert stat.S_IMODE(modes["run"]) == 0o700
        assert [stat.S_IMODE(modes[name]) for name in ("slab", "status.sock", "in.stream")] == [0o600, 0o600, 0o660]
        exported = directory / "exported"
        assert run_bruce("slab", "export", daemon.slab_path, "--output", exported).returncode == 0
        assert stat.S_IMODE(exported.stat().st_mode) == 0o600


def is_open_to_others(directory: Path, name: str, mode: int) -> bool:
    """Return True if every user can read messages or the daemon's internal frames."""
    if name in {"bruce.toml", "log", "in.dgram"}:  # the test's files, and the public socket
        return False
    is_behind = not (directory / name).parent.lstat().st_mode & OTHERS
    return bool(mode & OTHERS) and not is_behind


def assert_unprivileged(daemon: Daemon) -> None:
    for pid in (daemon.pid, *daemon.pids().values()):
        status = Path(f"/proc/{pid}/status").read_text()
        assert f"Uid:\t{USER.uid}\t{USER.uid}" in status
        if STRANGERS:
            assert "CapEff:\t0000000000000004\n" in status


def assert_asked_by_commands(daemon: Daemon) -> None:
    """Check that all commands find the pages on the socket, and that changes need the token."""
    address = daemon.get("/server_info/json")
    assert address["pid"] == daemon.pid
    for words in (("status",), ("check",), ("monitor", "--state", daemon.directory / "state")):
        for where in (("--config", daemon.config_path), ("--url", f"unix:{daemon.directory / 'status.sock'}")):
            answer = run_bruce(*words, *where)
            assert answer.returncode in {0, 1}, answer  # 1 is a warning of monitor
    url = ("--url", f"unix:{daemon.directory / 'status.sock'}")
    refused = run_bruce("reload", *url)
    assert (refused.returncode, "401" in refused.stderr, "--token-file" in refused.stderr) == (4, True, True)
    for accepted in (("--config", daemon.config_path), (*url, "--token-file", daemon.directory / "token")):
        done = run_bruce("reload", "--check", *accepted)
        assert done.returncode == 0, done
    assert TOKEN not in daemon.log()
