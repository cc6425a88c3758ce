"""What can go wrong between a client and the daemon.  Each error has a word, under which a client counts it."""

from __future__ import annotations

import errno
import os
from typing import ClassVar, Final

from bruce_mp.errors import BruceError

__all__ = [
    "AttemptLostError",
    "ClientClosedError",
    "DaemonUnreachableError",
    "MessageRefusedError",
    "MessageTooLargeError",
    "SendError",
    "SendTimeoutError",
    "explain",
]


class SendError(BruceError):
    """A message was not taken; the daemon gets nothing of it."""

    reason: ClassVar[str] = "error"


class DaemonUnreachableError(SendError):
    """Nobody receives there, or we may not send there.  Sending again later may work."""

    reason = "unreachable"


class MessageTooLargeError(SendError):
    """The message is larger than the daemon or the kernel allows.  It will not work later."""

    reason = "too_large"


class MessageRefusedError(SendError):
    """The daemon closes the connection whenever it gets this message."""

    reason = "refused"


class AttemptLostError(SendError):
    """The connection broke within an attempt: the daemon discards it, unless it had the end already.  Begin anew."""

    reason = "attempt"


class SendTimeoutError(SendError):
    """The daemon did not read for the whole time limit.  Sending again may work."""

    reason = "timeout"


class ClientClosedError(SendError):
    """The client was closed before the message was on its way."""

    reason = "closed"


_NO_PERMISSION: Final = (
    "no permission to send. Senders need write permission on the socket (its mode in the daemon's configuration) and "
    "access to its directory."
)
_UNREACHABLE: Final = {
    errno.ENOENT: "there is no such socket. Start the daemon, or give the path that its configuration names.",
    errno.ECONNREFUSED: "nobody receives there. Start the daemon, or give the place that its configuration names.",
    errno.ECONNRESET: "the daemon closed the connection.",
    errno.EPIPE: "the daemon is shutting down and takes nothing more. Send again when it is back.",
    errno.EACCES: _NO_PERMISSION,
    errno.EPERM: _NO_PERMISSION,
}


def explain(place: str, error: OSError) -> SendError:
    """The error that says for a person what the kernel's error means at `place`."""
    if error.errno == errno.EBADF:
        return ClientClosedError(f"{place}: the client is closed. Make a new one.")
    if error.errno in _UNREACHABLE:
        return DaemonUnreachableError(f"{place}: {_UNREACHABLE[error.errno]}")
    return SendError(f"{place}: cannot send: {os.strerror(error.errno or 0)}.")
