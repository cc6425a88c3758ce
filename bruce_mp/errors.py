"""Errors, exit codes and discard reasons that all parts of the daemon share.

Every deliberately raised error keeps three promises:

* it is a `BruceError`, so that a process can tell an expected failure from a bug;
* its text is a sentence with the fault, its place and the remedy;
* it has an exit code, so that a service manager can tell a typo in the config from a crash.
"""

from __future__ import annotations

import errno
from enum import IntEnum, unique

__all__ = [
    "AttemptEndedError",
    "BruceError",
    "ConfigError",
    "DiscardReason",
    "ExitCode",
    "LocalProtocolError",
    "ProtocolError",
    "RemoteProtocolError",
    "SlabError",
    "StartError",
    "TlsError",
    "creation_remedy",
]


@unique
class ExitCode(IntEnum):
    """The exit statuses of `bruce` and `bruce-spark`."""

    OK = 0
    SETUP = 1
    """The setup is wrong, such as an invalid configuration. Commands also return it for damage that they find, and for
    each failure without an exit status in this class."""
    USAGE = 2
    PROBLEMS_FOUND = 3
    """`bruce check`: the books do not balance.  `bruce-spark`: messages are lost, doubled or invalid."""
    UNREADABLE = 4
    """A command that asks a running daemon got no response, or an unusable one."""
    BOOT_LOOP = 70
    """A process of the daemon failed repeatedly during its start, or the supervisor failed by a bug."""


@unique
class DiscardReason(IntEnum):
    """Why the daemon discards a message; `discards/reasons.py` explains each reason, and the slab stores its number."""

    MALFORMED = 1
    UNSUPPORTED_API_KEY = 2
    UNSUPPORTED_VERSION = 3
    NO_MEM = 4
    BAD_TOPIC = 5
    LONG_MSG = 6
    RATE_LIMIT = 7
    TOPIC_AUTOCREATE_FAIL = 8
    NO_AVAILABLE_PARTITIONS = 9
    KAFKA_ERROR_ACK = 10
    DELIVERY_ATTEMPT_LIMIT = 11
    SERVER_SHUTDOWN = 12
    UNCLEAN_DISCONNECT = 13
    BUG = 14
    ABANDONED_ATTEMPT = 15
    SENDER_NOT_ALLOWED = 16
    OVER_QUOTA = 17
    TOPIC_OVER_SHARE = 18
    SPILL_LOST = 19
    POSSIBLY_DELIVERED = 20


class BruceError(Exception):
    """Base of all deliberately raised errors."""

    exit_code: ExitCode = ExitCode.SETUP


class ConfigError(BruceError):
    """The configuration is wrong; the text names file, key, value and the allowed values."""


class StartError(BruceError):
    """The daemon cannot start: a socket, a directory or a lock is not available."""


class SlabError(BruceError):
    """A slab file or a record in it is damaged, or the file is locked or has another layout version."""


class ProtocolError(BruceError):
    """Base of `LocalProtocolError` and `RemoteProtocolError`; the code raises only those two."""


class LocalProtocolError(ProtocolError):
    """The caller requested an operation that the protocol does not allow."""


class RemoteProtocolError(ProtocolError):
    """The peer sent data that the protocol does not allow; the connection must end."""


class TlsError(RemoteProtocolError):
    """A TLS handshake or session failed.

    `is_closed` is True if the broker closed the connection without an error; the cause may then be temporary.
    """

    def __init__(self, text: str, *, is_closed: bool = False) -> None:
        super().__init__(text)
        self.is_closed = is_closed


class AttemptEndedError(RemoteProtocolError):
    """The daemon ended the client's open fenced attempt; the text gives the reason."""


def creation_remedy(error: OSError, directory: object) -> str:
    """Return the remedy, a sentence without its period, for the `error` that prevents a new file in `directory`."""
    if error.errno == errno.ENOENT:
        return f"Create the directory {directory}, with write permission for the daemon's user"
    return f"Give the daemon's user write permission in {directory}"
