"""Programs of `bruce` that start as forks of a process with their modules, in a fraction of the CPU time of a new one.

    FORK_SERVER.enable()                                           for the rest of the session, by `conftest.py`
    FORK_SERVER.start("bruce_mp", ["run", ...], stdin=..., ...)    by `processes.spawn`, `DevBroker`, senders
    python -P fork_server.py DESCRIPTOR                            the server, which the first start begins

A forked program is a child of the session, as if `subprocess` had started it: its own parent ends at once, and the
session adopts orphans (`processes.become_subreaper`).  The kernel kills it when the session ends.  A program is not
forked if it has another environment than the session had at first, or a wrapper.
"""

from __future__ import annotations

import ctypes
import fcntl
import gc
import importlib
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final, NoReturn, cast

import msgspec
from setproctitle import setproctitle

from bruce_mp.devbroker import control
from bruce_mp.supervisor.processes.programs import PROGRAMS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["FORK_SERVER", "ForkedProcess", "start_broker"]

PRELOADED: Final = ("bruce_mp.cli.run", "bruce_mp.client", "bruce_mp.devbroker.process", *PROGRAMS)
TESTS: Final = Path(__file__).parents[1]
PR_SET_PDEATHSIG: Final = 1
MESSAGE_MAX: Final = 1 << 20
DESCRIPTORS_MAX: Final = 16
FIRST_SOCKET: Final = 3
"""The descriptor of the first socket of a service manager, see sd_listen_fds(3)."""
ABOVE_ALL: Final = 500
"""More than any descriptor in use, so that no copy replaces another."""
CAPABILITIES_3: Final = 0x20080522
BEYOND_PERMISSIONS: Final = 0b110
"""The bits of CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH."""
OF_TEST: Final = "PYTEST_CURRENT_TEST"
"""A variable that pytest changes for each test, and that no program reads."""


class Request(msgspec.Struct, frozen=True):
    """A program to start: `python -m MODULE ARGUMENTS`, as a child of the process `parent`.

    `sockets` are the names of its sockets from a service manager.
    """

    module: str
    arguments: list[str]
    directory: str
    parent: int
    sockets: list[str]
    is_privileged: bool


class ForkedProcess:
    """A started program, with the methods of `subprocess.Popen` that tests use."""

    def __init__(self, pid: int, arguments: Sequence[str], stdin: IO[bytes] | None, stdout: IO[bytes] | None) -> None:
        self.pid = pid
        self.args = arguments
        self.stdin = stdin
        self.stdout = stdout
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Return the exit code, minus the number of the signal that ended the program, or None while it runs."""
        return self._reap(os.WNOHANG)

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end and return the exit code. Raise `TimeoutExpired` after `timeout` seconds."""
        if timeout is not None and not self._ends_within(timeout):
            raise subprocess.TimeoutExpired(list(self.args), timeout)
        code = self._reap(0)
        assert code is not None
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _ends_within(self, timeout: float) -> bool:
        if self.poll() is not None:
            return True
        watched = os.pidfd_open(self.pid)
        try:
            return bool(select.select([watched], [], [], timeout)[0])
        finally:
            os.close(watched)

    def _reap(self, options: int) -> int | None:
        if self.returncode is None:
            try:
                pid, status = os.waitpid(self.pid, options)
            except ChildProcessError:  # `processes.reap_orphans` was first
                self.returncode = 0
            else:
                self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode


class ForkServer:
    """The server of a session, which ends with it."""

    def __init__(self) -> None:
        self.is_enabled = False
        self._server: subprocess.Popen[bytes] | None = None
        self._connection, self._server_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._environment: dict[str, str] = {}

    def enable(self) -> None:
        self.is_enabled = True
        self._environment = _environment()

    def stop(self) -> None:
        """End the server, but not the programs that it has forked."""
        self.is_enabled = False
        if self._server is not None:
            self._connection.close()
            self._server.wait()

    def can_start(self, env: Mapping[str, str] | None = None) -> bool:
        """Return True if a program with this environment (None: the session's) may be forked."""
        return self.is_enabled and env is None and _environment() == self._environment

    def start(
        self,
        module: str,
        arguments: Sequence[str],
        *,
        stdin: int,
        stdout: int,
        stderr: int,
        sockets: Mapping[str, socket.socket] | None = None,
        is_privileged: bool = True,
    ) -> ForkedProcess:
        """Start a program. `stdin` and `stdout` are descriptors, DEVNULL or PIPE; `stderr` a descriptor or STDOUT.

        It gets `sockets` as from systemd. One that is not `is_privileged` is subject to file permissions, even as root.
        """
        sys.audit("support.fork_server.start", module, tuple(arguments))  # see `ProcessGuard`
        passed = sockets or {}
        with ExitStack() as stack:
            read, our_stdin = _stream(stack, stdin, is_input=True)
            write, our_stdout = _stream(stack, stdout, is_input=False)
            streams = [read, write, write if stderr == subprocess.STDOUT else stderr]
            request = Request(module, list(arguments), os.getcwd(), os.getpid(), list(passed), is_privileged)  # noqa: PTH109
            descriptors = [*streams, *(each.fileno() for each in passed.values())]
            return ForkedProcess(self._fork(request, descriptors), arguments, our_stdin, our_stdout)

    def _fork(self, request: Request, descriptors: Sequence[int]) -> int:
        if self._server is None:
            end = self._server_end.fileno()
            self._server = subprocess.Popen([sys.executable, "-P", __file__, str(end)], pass_fds=[end])
            self._server_end.close()  # so the server's end is the end of the connection
        socket.send_fds(self._connection, [msgspec.json.encode(request)], descriptors)
        answer = self._connection.recv(MESSAGE_MAX)
        assert answer, "The fork server has ended."
        return int(answer)


FORK_SERVER: Final = ForkServer()
_start_new_broker: Final = control.start_process


def start_broker(arguments: Sequence[str]) -> subprocess.Popen[bytes]:
    """Start an embedded broker as `control.start_process` does."""
    if not FORK_SERVER.can_start():
        return _start_new_broker(arguments)
    forked = FORK_SERVER.start("bruce_mp.devbroker", arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=2)
    return cast("subprocess.Popen[bytes]", forked)


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != OF_TEST}


def _stream(stack: ExitStack, wanted: int, *, is_input: bool) -> tuple[int, IO[bytes] | None]:
    """Return the program's descriptor of a stream, closed with the stack, and the session's end of a pipe."""
    if wanted == subprocess.PIPE:
        read, write = os.pipe()
        theirs, ours = (read, write) if is_input else (write, read)
        stack.callback(os.close, theirs)
        return theirs, open(ours, "wb" if is_input else "rb", 0)  # noqa: PTH123
    if wanted == subprocess.DEVNULL:
        null = os.open(os.devnull, os.O_RDWR)
        stack.callback(os.close, null)
        return null, None
    return wanted, None


# --- the server ------------------------------------------------------------------------------------------------------
def serve(connection: socket.socket) -> tuple[Request, list[int]] | None:
    """Fork for each request. Return the request and its descriptors in the fork, and None when the session ends."""
    while True:
        data, descriptors, _, _ = socket.recv_fds(connection, MESSAGE_MAX, DESCRIPTORS_MAX)
        if not data:
            return None
        read, write = os.pipe()
        if (between := os.fork()) == 0:
            if (pid := os.fork()) == 0:
                return msgspec.json.decode(data, type=Request), descriptors
            os.write(write, str(pid).encode())
            os._exit(0)
        os.waitpid(between, 0)
        connection.send(os.read(read, 20))
        for descriptor in (read, write, *descriptors):
            os.close(descriptor)


def run(request: Request, descriptors: Sequence[int]) -> NoReturn:
    """Become the program, with its standard streams and sockets as the only descriptors."""
    while (parent := os.getppid()) != request.parent:
        if parent == 1:
            os._exit(1)  # the session has ended
        time.sleep(0.0005)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    _keep_only(descriptors)
    if request.sockets:
        names = ":".join(request.sockets)
        os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS=str(len(request.sockets)), LISTEN_FDNAMES=names)
    if not request.is_privileged:
        _drop_privilege()
    if request.module.startswith("support."):
        sys.path.insert(0, str(TESTS))
    os.chdir(request.directory)
    sys.orig_argv = [sys.executable, "-m", request.module, *request.arguments]
    setproctitle(" ".join(sys.orig_argv))
    sys.argv[1:] = request.arguments
    runpy.run_module(request.module, run_name="__main__", alter_sys=True)
    sys.exit()


def _keep_only(descriptors: Sequence[int]) -> None:
    """Give the descriptors the numbers from 0, and close all others."""
    copies = [fcntl.fcntl(each, fcntl.F_DUPFD, ABOVE_ALL) for each in descriptors]
    for number, descriptor in enumerate(copies):
        os.dup2(descriptor, number)
    os.closerange(len(copies), os.sysconf("SC_OPEN_MAX"))


def _drop_privilege() -> None:
    """Become subject to file permissions, even as root."""
    libc = ctypes.CDLL(None)
    header, data = (ctypes.c_uint32 * 2)(CAPABILITIES_3, 0), (ctypes.c_uint32 * 6)()
    libc.capget(header, data)
    data[0] &= ~BEYOND_PERMISSIONS  # effective
    libc.capset(header, data)


def main() -> None:
    for module in PRELOADED:
        importlib.import_module(module)
    gc.freeze()  # collections in the programs would copy the pages of all these objects
    forked = serve(socket.socket(fileno=int(sys.argv[1])))
    if forked is not None:
        run(*forked)


if __name__ == "__main__":
    main()
