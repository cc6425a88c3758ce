"""State that the supervisor passes to new code by `execve`, for an upgrade.

The process keeps its pid, its child processes and the descriptors listed here, and loses all other state. The old
processes work until the new ones are ready to replace them. The descriptors of the locks stay open, so no other daemon
can take the run directory or the slab. If the old processes have ended before the `execve`, only sockets are passed,
and the new code takes the locks as at an ordinary start.

The old code blocks signals before the `execve`, and raises again the signals that it has not handled. These stay
pending until the new supervisor listens for signals (`signal_pipe.py`).
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from bruce_mp.supervisor.signal_pipe import WATCHED_SIGNALS
from bruce_mp.supervisor.sockets.inherited_sockets import InheritedSocket, InheritedSockets

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from signal import Signals
    from typing import NoReturn

__all__ = ["Handover", "PassedProcess", "PassedSocket", "command_line", "execute", "read_handover"]

_HANDOVER_VARIABLE: Final = "BRUCE_HANDOVER"


class PassedSocket(msgspec.Struct, frozen=True):
    """A bound socket, and the configuration setting that it serves, such as `http.listen`.

    `is_ours` is False if a service manager created the socket, and keeps it open after the daemon has ended.
    `queue_length` is the maximum number of datagrams that the kernel queues on the socket, 0 if unknown.
    """

    setting: str
    descriptor: int
    is_ours: bool
    queue_length: int = msgspec.field(default=0, name="queue")


class PassedProcess(msgspec.Struct, frozen=True):
    """A process of the old code.

    `control` is the descriptor of the supervisor's end of the process's control pipe, or None if that end is closed.
    When the supervisor closes it, the process exits.
    """

    name: str
    pid: int
    control: int | None


class Handover(msgspec.Struct, frozen=True):
    """Data for the new code; `version` is the version of the old code.

    `checked_at` is the time when the preflight check of the new code ended, in seconds of the monotonic clock. If the
    old processes have ended since, the new code reports how long nothing was received after it. `locks` are the
    descriptors that hold the locks of run directory and slab. If all processes have ended, `locks` and `processes` are
    empty. The JSON keeps the keys of earlier versions, which differ from some names here.
    """

    version: str
    checked_at: float = msgspec.field(name="since")
    sockets: tuple[PassedSocket, ...]
    locks: tuple[int, ...] = ()
    processes: tuple[PassedProcess, ...] = msgspec.field(default=(), name="crew")

    @property
    def inherited_sockets(self) -> InheritedSockets:
        return InheritedSockets(
            InheritedSocket(
                socket.socket(fileno=each.descriptor),
                each.setting,
                is_ours=each.is_ours,
                queue_length=each.queue_length,
            )
            for each in self.sockets
        )

    @property
    def has_datagram_input(self) -> bool:
        """Return True if the old processes include a datagram input.

        When that input ends, it may leave datagrams in the landing zone, and the new code needs a datagram input to
        handle them.
        """
        return any(process.name == "input" for process in self.processes)

    def descriptors(self) -> Iterator[int]:
        """Yield all descriptors that must stay open."""
        yield from (each.descriptor for each in self.sockets)
        yield from self.locks
        yield from (process.control for process in self.processes if process.control is not None)


def execute(
    handover: Handover, variables: Mapping[str, str], read_signals: Callable[[], Iterable[Signals]]
) -> NoReturn:
    """Replace this process by the installed code (`command_line`), with `variables` added to the environment.

    `read_signals` returns the signals that this code has not handled; the new code receives them. Raise OSError if the
    `execve` fails, after restoring the signal mask and the flags of the descriptors.
    """
    environment = {**os.environ, **variables, _HANDOVER_VARIABLE: msgspec.json.encode(handover).decode()}
    mask_before = signal.pthread_sigmask(signal.SIG_BLOCK, WATCHED_SIGNALS)
    try:
        for number in read_signals():
            signal.raise_signal(number)  # stays pending for this thread; `os.kill` could reach another thread
        _set_inheritable(handover, inheritable=True)
        command = command_line()
        os.execve(command[0], command, environment)  # noqa: S606 - starts the installed code of the running program
    finally:
        _set_inheritable(handover, inheritable=False)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask_before)


def command_line() -> list[str]:
    """Return the command line that starts the installed code with the arguments of this daemon.

    A script, such as the `bruce` of a virtual environment, names its Python in its first line. If a symbolic link in
    the script's path now leads to another environment, `sys.executable` is still the Python of the old environment. So
    the command line begins with the script instead, and the kernel reads the name of the Python from it again. The
    first word is a path with a directory, because `execve` does not search PATH.
    """
    program, *arguments = sys.orig_argv[1:]  # `program` is an option if Python was started with `-m` or `-c`
    if _is_script(Path(program)):
        return [os.path.abspath(program), *arguments]  # noqa: PTH100 - `resolve` would follow the link
    return [sys.executable, program, *arguments]


def _is_script(path: Path) -> bool:
    """Return True if the kernel can start the file with the interpreter that its first line names."""
    try:
        with path.open("rb") as file:
            return file.read(2) == b"#!" and os.access(path, os.X_OK)
    except OSError:
        return False


def read_handover() -> Handover | None:
    """Return the state that the old code passed, or None at a start without an upgrade."""
    text = os.environ.pop(_HANDOVER_VARIABLE, None)
    if text is None:
        return None
    handover = msgspec.json.decode(text, type=Handover)
    _set_inheritable(handover, inheritable=False)
    return handover


def _set_inheritable(handover: Handover, *, inheritable: bool) -> None:
    for descriptor in handover.descriptors():
        os.set_inheritable(descriptor, inheritable)
