"""Rules of `bruce replay` and `bruce-spark replay`, which send messages again from the lines of discard files.

Both commands identify a line by its hash and by its number among the equal lines of its log. So they send no line
twice, even if a file is renamed or copied. A log is a file together with the files that the daemon rotated from it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum, unique
from typing import TYPE_CHECKING, Final

from bruce_mp.errors import RemoteProtocolError
from bruce_mp.protocol.client.discard_line import DiscardLine, LineEvent, parse_line
from bruce_mp.protocol.client.messages import EmptyFields, Message

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

__all__ = [
    "ABANDONED",
    "IN_KAFKA",
    "DoubtfulPolicy",
    "LineFate",
    "LineSelection",
    "ReplayCounts",
    "in_replay_order",
    "line_of",
    "log_name",
    "message_of",
]

_ROTATED: Final = re.compile(r"\.\d{13}\Z")
"""End of the name of a rotated file: the time in ms since the epoch."""

# The *info* of a line is the value of its field `info`: the reason of the discard.
NO_MESSAGE_INFOS: Final = ("MALFORMED", "UNCLEAN_U", "UNCLEAN_T")
"""Infos of lines without a valid message. Such lines also have `API_KEY(n)` or `VERSION(n)`, the only infos with a
parenthesis."""
IN_KAFKA: Final = ("SLAB_DELIVERED", "SLAB_SENT", "POSSIBLY_DELIVERED")
"""Infos of messages that Kafka has or may have; such a message is sent only if the selection names its info."""

ABANDONED: Final = "ABANDONED_ATTEMPT"
"""The info of messages in an attempt that the client did not complete; usually the client sends them again."""


@unique
class LineFate(StrEnum):
    """The treatment of a line that was not replayed before."""

    SEND = "send"
    FILTERED = "filtered"
    """The line is not sent, because its topic, time or info is not selected."""
    IN_KAFKA = "in_kafka"
    """The line is selected, but not sent: its info is one of `IN_KAFKA`, and the selection names no infos."""
    ABANDONED = "abandoned"
    """The line is selected, but not sent: its info is `ABANDONED`, and the selection does not include this info."""
    NO_MESSAGE = "no_message"
    """The line has no message to send: the line cannot be parsed or reports a possible duplicate (`DUP`), or the daemon
    could not parse the received bytes."""


@unique
class DoubtfulPolicy(StrEnum):
    """The treatment of messages that a killed replay may have sent."""

    REFUSE = "refuse"
    """End the replay, and let the user decide."""
    SEND = "send"
    SKIP = "skip"


@dataclass(frozen=True, slots=True)
class LineSelection:
    """The selection of lines to send.

    * `topics`: only lines of these topics; all topics if empty
    * `infos`: only lines with these infos; if empty, all infos except `IN_KAFKA` and `ABANDONED`
    * `since_ms`, `until_ms`: only messages with `since_ms` <= timestamp < `until_ms` (ms since the epoch); None for
      no limit
    * `includes_abandoned`: also lines with the info `ABANDONED`; usually the client has sent their messages again
    """

    topics: Collection[str] = ()
    infos: Collection[str] = ()
    since_ms: int | None = None
    until_ms: int | None = None
    includes_abandoned: bool = False

    def fate_of(self, line: DiscardLine | None) -> LineFate:
        """Return the fate of a line; `line` is None if the line cannot be parsed."""
        if line is None or line.event is LineEvent.DUPLICATE or not line.topic:
            return LineFate.NO_MESSAGE
        if line.info in NO_MESSAGE_INFOS or "(" in line.info:
            return LineFate.NO_MESSAGE
        if not self._selects(line):
            return LineFate.FILTERED
        if self.infos:  # `_selects` has found the line's info in them
            return LineFate.SEND
        if line.info == ABANDONED and not self.includes_abandoned:
            return LineFate.ABANDONED
        return LineFate.IN_KAFKA if line.info in IN_KAFKA else LineFate.SEND

    def _selects(self, line: DiscardLine) -> bool:
        return (
            (not self.infos or line.info in self.infos)
            and (not self.topics or line.topic.decode("utf-8", "backslashreplace") in self.topics)
            and (self.since_ms is None or line.timestamp_ms >= self.since_ms)
            and (self.until_ms is None or line.timestamp_ms < self.until_ms)
        )


@dataclass(frozen=True, slots=True)
class ReplayCounts:
    """The numbers of lines in all files, by their treatment."""

    sent: int = 0
    already: int = 0
    """Lines that an earlier replay has sent."""
    filtered: int = 0
    no_message: int = 0
    in_kafka: int = 0
    """Lines that are not sent, because Kafka has or may have their messages."""
    abandoned: int = 0
    """Lines that are not sent, because the client has probably sent their messages again."""

    def __add__(self, other: ReplayCounts) -> ReplayCounts:
        return ReplayCounts(
            self.sent + other.sent, self.already + other.already, self.filtered + other.filtered,
            self.no_message + other.no_message, self.in_kafka + other.in_kafka, self.abandoned + other.abandoned,
        )  # fmt: skip


def log_name(file_name: str) -> str:
    """Return the name, or path, of the log that a file belongs to: `PATH` for `PATH` and for a rotated `PATH.MS`."""
    return _ROTATED.sub("", file_name)


def in_replay_order(paths: Iterable[str]) -> list[str]:
    """Return the files of each log together, from the oldest rotated file to the log itself."""
    by_log: dict[str, list[str]] = {}
    for path in paths:
        by_log.setdefault(log_name(path), []).append(path)
    return [path for log, files in by_log.items() for path in sorted(files, key=lambda path: (path == log, path))]


def line_of(data: bytes) -> DiscardLine | None:
    """Parse a line; return None if it cannot be parsed."""
    try:
        return parse_line(data)
    except RemoteProtocolError:
        return None


def message_of(line: DiscardLine) -> Message:
    """Return the message of a line with the fate SEND."""
    return Message(
        line.topic,
        line.value,
        line.key,
        line.timestamp_ms,
        line.partition_key,
        line.headers,
        EmptyFields(line.empty),
    )
