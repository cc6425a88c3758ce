"""Errors, exit codes and discard reasons: the words that every part of the daemon shares.

Three promises hold for everything that is raised on purpose:

* it is a `BruceError`, so that a process can tell a failure that we foresaw from a bug;
* its text is a sentence for a person: what is wrong, where, and what to do about it;
* it has an exit code, so that a service manager can tell a typo in the config from a crash.
"""

from __future__ import annotations

import errno
from enum import IntEnum, unique

__all__ = [
    "BruceError",
    "ConfigError",
    "DiscardReason",
    "ExitCode",
    "LocalProtocolError",
    "ProtocolError",
    "RemoteProtocolError",
    "SlabError",
    "StartError",
    "place_above",
]


@unique
class ExitCode(IntEnum):
    """What `bruce` says with its exit status.  1 is kept from the ancestors: a mistake in the set-up."""

    OK = 0
    SETUP = 1
    USAGE = 2
    UNBALANCED = 3
    """`bruce check`: the books do not balance."""
    UNREADABLE = 4
    """`bruce check` and `bruce status`: the daemon did not answer, or not consistently."""
    BOOT_LOOP = 70
    """A process of the daemon failed at boot again and again."""


@unique
class DiscardReason(IntEnum):
    """Why a message left the daemon without an ack from Kafka.  The number is what a record keeps in the slab."""

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


class BruceError(Exception):
    """Base of all errors that we raise on purpose."""

    exit_code: ExitCode = ExitCode.SETUP


class ConfigError(BruceError):
    """The configuration is wrong; the text names file, key, value and what is allowed."""


class StartError(BruceError):
    """The daemon cannot start: a socket, a directory or a lock is not to be had."""


class SlabError(BruceError):
    """A slab file is damaged, of another layout, locked by a living daemon, or a place in it is not what it claims."""


class ProtocolError(BruceError):
    """Base of the two below; never raised itself."""

    def __init__(self, text: str) -> None:
        if type(self) is ProtocolError:
            raise TypeError("raise LocalProtocolError or RemoteProtocolError")
        super().__init__(text)


class LocalProtocolError(ProtocolError):
    """We asked a protocol module for something that the protocol does not allow."""


class RemoteProtocolError(ProtocolError):
    """The other side sent something that the protocol does not allow; the connection cannot go on."""


class AttemptEndedError(RemoteProtocolError):
    """The daemon ended the fenced attempt that was open; the text says why."""


def place_above(error: OSError, directory: object) -> str:
    """What to do about a `directory` in which something cannot be made; the beginning of a sentence."""
    if error.errno == errno.ENOENT:
        return f"Make the directory {directory}, with write permission for the daemon's user"
    return f"Give the daemon's user write permission in {directory}"
