"""What a command does when nobody reads its output any more, as in `bruce status | head -1`: it ends quietly.

Its exit status is that of a program that SIGPIPE ended.  The signal itself stays ignored, as the interpreter has it: a
connection that breaks must not end a daemon, or a client that would connect again.
"""

from __future__ import annotations

import os
import select
import sys
from signal import SIGPIPE
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TextIO

__all__ = ["UNREAD", "while_read"]

UNREAD: Final = 128 + SIGPIPE
"""What a shell makes of SIGPIPE."""


def while_read(command: Callable[[], int]) -> int:
    """The exit status of a command whose output has been written to the last byte; UNREAD if its reader has gone.

    Any other connection that breaks is none of our business: its BrokenPipeError goes on.
    """
    try:
        try:
            return command()
        finally:
            if sys.stdout is not None:  # as it is if the descriptor was closed
                sys.stdout.flush()
    except BrokenPipeError:
        unread = [stream for stream in (sys.stdout, sys.stderr) if stream is not None and _has_lost_reader(stream)]
        if not unread:
            raise
        _forget(unread)
        return UNREAD


def _has_lost_reader(stream: TextIO) -> bool:
    poll = select.poll()
    poll.register(stream.fileno(), 0)
    return any(state & (select.POLLERR | select.POLLHUP) for _, state in poll.poll(0))


def _forget(streams: list[TextIO]) -> None:
    """The interpreter writes what is left when it ends: nowhere, lest it meets the same error."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in streams:
        os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
