"""Handling of a closed standard output, as in `bruce status | head -1`: the command ends quietly.

The exit status is that of a program ended by SIGPIPE. The signal itself stays ignored, as the interpreter sets it: a
broken connection must not end a daemon, or a client that would reconnect.
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
"""Exit status that a shell reports for SIGPIPE."""


def while_read(command: Callable[[], int]) -> int:
    """Run a command, flush its output, and return its exit status, or UNREAD if the reader of the output is gone.

    A BrokenPipeError of another connection propagates.
    """
    try:
        try:
            return command()
        finally:
            if sys.stdout is not None:  # None if the descriptor is closed
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
    """Redirect the streams to /dev/null, because the interpreter flushes them at exit and would fail again."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in streams:
        os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
