"""What the code of a daemon leaves to the code that takes its place in the same process.

The supervisor executes itself anew: its process stays, with its number, its children and the descriptors that are
named here, and all that it knew is gone.  So nobody else can take the locks meanwhile, the sockets stay open, and the
processes of the old code go on until those of the new one are there to follow them.

Signals are held back from before the `execve` until the new supervisor listens for them (`signals.py`); those that
came before and were not read yet come again.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from typing import TYPE_CHECKING, Final

import msgspec

from bruce_mp.supervisor.handed import Handed, HandedSocket
from bruce_mp.supervisor.signals import WATCHED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from signal import Signals
    from typing import NoReturn

__all__ = ["Handover", "Member", "PassedSocket", "execute", "take_handover"]

_VARIABLE: Final = "BRUCE_HANDOVER"


class PassedSocket(msgspec.Struct, frozen=True):
    """A socket by the setting that it was opened for; `queue` datagrams may wait at it, 0: not known."""

    setting: str
    descriptor: int
    is_ours: bool
    queue: int = 0


class Member(msgspec.Struct, frozen=True):
    """A process of the old code, and our end of its control pipe: it ends when that is closed, if it is not yet."""

    name: str
    pid: int
    control: int | None


class Handover(msgspec.Struct, frozen=True):
    """Everything.  `locks`, of the run directory and the slab, and `crew` are empty when the old daemon has ended.

    `since` is when the old code set about it, by the monotonic clock in seconds.
    """

    version: str
    since: float
    sockets: tuple[PassedSocket, ...]
    locks: tuple[int, ...] = ()
    crew: tuple[Member, ...] = ()

    @property
    def handed(self) -> Handed:
        """The sockets, to be taken by those who want them."""
        return Handed(
            HandedSocket(socket.socket(fileno=each.descriptor), each.setting, is_ours=each.is_ours, queue=each.queue)
            for each in self.sockets
        )

    @property
    def had_datagrams(self) -> bool:
        """Whether there is an input for datagrams: some may lie in the landing zone when it has ended."""
        return any(member.name == "input" for member in self.crew)

    def descriptors(self) -> Iterator[int]:
        """All that must stay open."""
        yield from (each.descriptor for each in self.sockets)
        yield from self.locks
        yield from (member.control for member in self.crew if member.control is not None)


def execute(handover: Handover, variables: Mapping[str, str], unread: Callable[[], Iterable[Signals]]) -> NoReturn:
    """Become the new code, started as we were; `variables` are added to its environment.

    `unread` are signals that came and that nobody has obeyed: they come again, to the new code.

    Raises OSError, with everything as before, when it cannot be executed.
    """
    environment = {**os.environ, **variables, _VARIABLE: msgspec.json.encode(handover).decode()}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, WATCHED)
    try:
        for number in unread():
            signal.raise_signal(number)  # for this thread, which holds it back; another one would hear it at once
        _set_inheritable(handover, inheritable=True)
        os.execve(sys.executable, sys.orig_argv, environment)  # noqa: S606 - what runs now is executed again
    finally:
        _set_inheritable(handover, inheritable=False)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def take_handover() -> Handover | None:
    """What the old code left to us; None when this is an ordinary start."""
    text = os.environ.pop(_VARIABLE, None)
    if text is None:
        return None
    handover = msgspec.json.decode(text, type=Handover)
    _set_inheritable(handover, inheritable=False)
    return handover


def _set_inheritable(handover: Handover, *, inheritable: bool) -> None:
    for descriptor in handover.descriptors():
        os.set_inheritable(descriptor, inheritable)
