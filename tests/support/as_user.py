"""Senders that run as another user, if the tests run as root; otherwise the only user is the tests'.

The sending process changes its user after its start, because the other user may not be allowed to read the interpreter.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from typing import Self

__all__ = [
    "ONESELF",
    "STRANGERS",
    "Account",
    "UserProcess",
    "denied_connections",
    "send_as",
    "unprivileged_directory",
    "without_privilege",
]

TIMEOUT_S: Final = 60
WITHOUT_PRIVILEGE: Final = """
import ctypes, os, sys
for capability in (1, 2):  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH; the call fails harmlessly without them
    ctypes.CDLL(None).prctl(24, capability, 0, 0, 0)  # PR_CAPBSET_DROP
os.execvp(sys.argv[1], sys.argv[1:])
"""


class Account(NamedTuple):
    """A uid and its gids, which need no names."""

    uid: int
    gid: int
    groups: tuple[int, ...] = ()


ONESELF: Final = Account(os.getuid(), os.getgid(), tuple(os.getgroups()))
STRANGERS: Final = (Account(40001, 40001), Account(40002, 40002)) if os.getuid() == 0 else ()
"""Two users that the tests may become; none without root."""


class UserProcess:
    """A process of a user that sends messages at once; the end of a `with` block kills it if it still runs.

    `kind` is `datagram` or `stream`; messages begin with their sizes, as on the wire.
    """

    def __init__(self, account: Account, kind: str, path: Path, messages: Iterable[bytes]) -> None:
        arguments = [str(account.uid), str(account.gid), ",".join(map(str, account.groups)), kind, str(path)]
        command = [sys.executable, "-I", "-S", str(Path(__file__).resolve()), *arguments]
        with TemporaryFile() as data:
            data.write(b"".join(messages))
            data.seek(0)
            self._process = subprocess.Popen(command, stdin=data, stdout=subprocess.PIPE)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def answer(self) -> bytes:
        """Wait for its end, and return the answer: a stream's frame, or nothing if the connection ended first."""
        answer, _ = self._process.communicate(timeout=TIMEOUT_S)
        assert self._process.returncode == 0
        return answer


def send_as(account: Account, kind: str, path: Path, messages: Iterable[bytes]) -> bytes:
    """Send messages as a user and return the answer."""
    with UserProcess(account, kind, path, messages) as process:
        return process.answer()


@contextmanager
def denied_connections(directory: Path) -> Iterator[None]:
    """Run the block without access to the directory: for root, as another user."""
    directory.chmod(0)
    own = os.geteuid()
    if STRANGERS:
        os.seteuid(STRANGERS[0].uid)
    try:
        yield
    finally:
        os.seteuid(own)
        directory.chmod(0o700)


@contextmanager
def unprivileged_directory() -> Iterator[Path]:
    """Yield a directory of a user without privileges, and run the block as that user."""
    own = os.geteuid()
    with TemporaryDirectory() as name:
        if STRANGERS:
            os.chown(name, STRANGERS[0].uid, STRANGERS[0].gid)
            os.seteuid(STRANGERS[0].uid)
        try:
            yield Path(name)
        finally:
            os.seteuid(own)


def without_privilege(command: Sequence[str]) -> list[str]:
    """Return a command that runs another one subject to file permissions, even as root."""
    return [sys.executable, "-c", WITHOUT_PRIVILEGE, *command]


def _become(uid: str, gid: str, groups: str) -> None:
    if int(uid) == os.getuid():
        return
    os.setgroups([int(each) for each in groups.split(",") if each])
    os.setgid(int(gid))
    os.setuid(int(uid))


def _frames(data: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(data):
        size = int.from_bytes(data[at : at + 4], "big")
        yield data[at : at + size]
        at += size


def _send_datagrams(path: str, data: bytes) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.settimeout(TIMEOUT_S)
        sender.connect(path)
        for frame in _frames(data):
            sender.send(frame)


def _send_stream(path: str, data: bytes) -> bytes:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(TIMEOUT_S)
        connection.connect(path)
        try:
            connection.sendall(data)
            return _read_frame(connection)
        except (BrokenPipeError, ConnectionResetError):
            return b""


def _read_frame(connection: socket.socket) -> bytes:
    found = b""
    while len(found) < 4 or len(found) < int.from_bytes(found[:4], "big"):
        more = connection.recv(4096)
        if not more:
            return b""
        found += more
    return found


def _main(uid: str, gid: str, groups: str, kind: str, path: str) -> None:
    _become(uid, gid, groups)
    data = sys.stdin.buffer.read()
    if kind == "datagram":
        _send_datagrams(path, data)
    else:
        sys.stdout.buffer.write(_send_stream(path, data))


if __name__ == "__main__":
    _main(*sys.argv[1:])
