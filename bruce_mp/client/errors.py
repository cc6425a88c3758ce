"""The errors of sending to the daemon. Clients count failed messages by the `reason` of their error."""

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
    "error_for",
]


class SendError(BruceError):
    """A message or attempt was not sent. Unless a subclass says otherwise, the daemon has not received it."""

    reason: ClassVar[str] = "error"
    """The name under which `Stats.dropped` counts the message."""


class DaemonUnreachableError(SendError):
    """No process receives at the address, or the client lacks permission. A later send may succeed."""

    reason = "unreachable"


class MessageTooLargeError(SendError):
    """The message is larger than the daemon or the kernel allows. A later send fails as well."""

    reason = "too_large"


class MessageRefusedError(SendError):
    """The daemon closes the connection each time it receives this message."""

    reason = "refused"


class AttemptLostError(SendError):
    """The connection broke within an attempt.

    The daemon delivers the attempt if its end frame arrived, and discards it otherwise; the client cannot know if it
    arrived. Only an `attempt(name, unique=True)` can be repeated without a risk of delivering its messages twice.
    """

    reason = "attempt"


class SendTimeoutError(SendError):
    """The daemon did not read in time, or other threads used the client for too long. A later send may succeed."""

    reason = "timeout"


class ClientClosedError(SendError):
    """The client was closed before the message was sent."""

    reason = "closed"


_NO_PERMISSION: Final = (
    "no permission to send. Senders need write permission on the socket (input.unix_stream.mode or "
    'input.unix_datagram.mode in the daemon\'s configuration, such as "0222") and access to its directory.'
)
_UNREACHABLE_TEXTS: Final = {
    errno.ENOENT: "there is no such socket. Start the daemon, or give the path that its configuration names.",
    errno.ECONNREFUSED: "no process receives there. Start the daemon, or give the address in its configuration.",
    errno.ECONNRESET: "the daemon closed the connection.",
    errno.EPIPE: "the daemon is shutting down and accepts no more messages. Send again when it is back.",
    errno.EACCES: _NO_PERMISSION,
    errno.EPERM: _NO_PERMISSION,
}


def error_for(destination: str, error: OSError) -> SendError:
    """Return the SendError for a kernel error of a send or connect call to `destination`."""
    if error.errno == errno.EBADF:
        return ClientClosedError(f"{destination}: the client is closed. Create a new one.")
    if error.errno in _UNREACHABLE_TEXTS:
        return DaemonUnreachableError(f"{destination}: {_UNREACHABLE_TEXTS[error.errno]}")
    return SendError(f"{destination}: cannot send: {os.strerror(error.errno or 0)}.")
