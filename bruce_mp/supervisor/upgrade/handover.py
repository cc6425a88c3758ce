"""State that the supervisor passes to new code by `execve`, for an upgrade.

The process keeps its pid, its children and the descriptors listed here, and loses all other state. So no other daemon
can take the locks, the sockets stay open, and the old processes work until the new ones are ready to replace them.

Signals are blocked from before the `execve` until the new supervisor listens for them (`signal_pipe.py`). Signals that
the old code has not handled are raised again.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from bruce_mp.supervisor.signal_pipe import WATCHED
from bruce_mp.supervisor.sockets.inherited_sockets import InheritedSocket, InheritedSockets

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from signal import Signals
    from typing import NoReturn

__all__ = ["Handover", "PassedProcess", "PassedSocket", "command_line", "execute", "read_handover"]

_VARIABLE: Final = "BRUCE_HANDOVER"


class PassedSocket(msgspec.Struct, frozen=True):
    """A socket with its setting; `queue` is the maximum number of queued datagrams, 0 if unknown."""

    setting: str
    descriptor: int
    is_ours: bool
    queue: int = 0


class PassedProcess(msgspec.Struct, frozen=True):
    """A process of the old code. Closing `control`, the descriptor of its control pipe (None: closed), ends it."""

    name: str
    pid: int
    control: int | None


class Handover(msgspec.Struct, frozen=True):
    """Data for the new code. `locks` (run directory and slab) and `processes` are empty if all processes have ended.

    `since` is the end of the check of the new code, in seconds of the monotonic clock.
    """

    version: str
    since: float
    sockets: tuple[PassedSocket, ...]
    locks: tuple[int, ...] = ()
    processes: tuple[PassedProcess, ...] = msgspec.field(default=(), name="crew")
    """The JSON key keeps the name that earlier versions use."""

    @property
    def inherited_sockets(self) -> InheritedSockets:
        return InheritedSockets(
            InheritedSocket(
                socket.socket(fileno=each.descriptor), each.setting, is_ours=each.is_ours, queue_length=each.queue
            )
            for each in self.sockets
        )

    @property
    def had_datagrams(self) -> bool:
        """Return True if the old code runs a datagram input: its end may leave datagrams in the landing zone."""
        return any(member.name == "input" for member in self.processes)

    def descriptors(self) -> Iterator[int]:
        """Yield all descriptors that must stay open."""
        yield from (each.descriptor for each in self.sockets)
        yield from self.locks
        yield from (member.control for member in self.processes if member.control is not None)


def execute(
    handover: Handover, variables: Mapping[str, str], read_signals: Callable[[], Iterable[Signals]]
) -> NoReturn:
    """Execute the installed code (`command_line`), with `variables` added to the environment.

    `read_signals` returns the signals that are not handled yet; the new code receives them. Raise OSError if the
    `execve` fails; signal mask and descriptors are then as before.
    """
    environment = {**os.environ, **variables, _VARIABLE: msgspec.json.encode(handover).decode()}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, WATCHED)
    try:
        for number in read_signals():
            signal.raise_signal(number)  # stays pending for this thread; `os.kill` could reach another thread
        _set_inheritable(handover, inheritable=True)
        command = command_line()
        os.execve(command[0], command, environment)  # noqa: S606 - starts the installed code of the running program
    finally:
        _set_inheritable(handover, inheritable=False)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def command_line() -> list[str]:
    """Return the command line that starts the installed code as this daemon was started.

    A script, such as the `bruce` of a virtual environment, names its Python in its first line. If a symbolic link in
    its path now leads to the script of another environment, `sys.executable` is still the Python of the old
    environment. So the command line begins with the script, and the kernel reads the first line again. The first word
    is a path with a directory, because `execve` searches no PATH.
    """
    program, *arguments = sys.orig_argv[1:]
    if _is_script(Path(program)):
        return [os.path.abspath(program), *arguments]  # noqa: PTH100 - keeps the link
    return [sys.executable, program, *arguments]


def _is_script(path: Path) -> bool:
    """Return True if the kernel can execute this file by its first line."""
    try:
        with path.open("rb") as file:
            return file.read(2) == b"#!" and os.access(path, os.X_OK)
    except OSError:
        return False


def read_handover() -> Handover | None:
    """Return the state that old code passed, or None at an ordinary start."""
    text = os.environ.pop(_VARIABLE, None)
    if text is None:
        return None
    handover = msgspec.json.decode(text, type=Handover)
    _set_inheritable(handover, inheritable=False)
    return handover


def _set_inheritable(handover: Handover, *, inheritable: bool) -> None:
    for descriptor in handover.descriptors():
        os.set_inheritable(descriptor, inheritable)
