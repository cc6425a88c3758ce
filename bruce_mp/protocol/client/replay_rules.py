"""Rules for sending the lines of discard files again: the same for `bruce replay` and for `bruce-spark replay`.

A line is identified by its hash and its number among the equal lines of its log. So no line of a renamed or copied file
is sent twice. A log is one file; for `bruce replay`, a file and those that the daemon rotated from it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum, unique
from typing import TYPE_CHECKING, Final

from bruce_mp.errors import RemoteProtocolError
from bruce_mp.protocol.client.discard_line import DiscardLine, LineEvent, parse_line
from bruce_mp.protocol.client.messages import EmptyFields, Message

if TYPE_CHECKING:
    from collections.abc import Collection

__all__ = ["ABANDONED", "IN_KAFKA", "DoubtfulPolicy", "LineFate", "LineSelection", "Replayed", "line_of", "message_of"]

NO_MESSAGES: Final = ("MALFORMED", "UNCLEAN_U", "UNCLEAN_T")
"""Infos of lines without a valid message; also `API_KEY(n)` and `VERSION(n)`, the only infos with a parenthesis."""
IN_KAFKA: Final = ("SLAB_DELIVERED", "SLAB_SENT", "POSSIBLY_DELIVERED")
"""Infos of messages that Kafka has or may have; they are sent only if the selection names their info."""

ABANDONED: Final = "ABANDONED_ATTEMPT"
"""Info of messages of a fenced attempt that ended early; its client sends them again in its next try."""


@unique
class LineFate(StrEnum):
    """The treatment of a line that was not replayed before."""

    SEND = "send"
    FILTERED = "filtered"
    IN_KAFKA = "in_kafka"
    """Selected by topic and time, but its info is one of `IN_KAFKA`, and the selection does not name it."""
    ABANDONED = "abandoned"
    """Selected by topic and time, with the info `ABANDONED`, which neither `infos` nor `includes_abandoned` covers."""
    NO_MESSAGE = "no_message"
    """Unparsable lines, duplicates (`DUP`), and bytes that the daemon could not read as a message."""


@unique
class DoubtfulPolicy(StrEnum):
    """The treatment of messages that a killed replay may have sent."""

    REFUSE = "refuse"
    """End the replay, and let the user decide."""
    SEND = "send"
    SKIP = "skip"


@dataclass(frozen=True, slots=True)
class LineSelection:
    """The selection of lines; an empty collection selects all, except lines of the fates IN_KAFKA and ABANDONED.

    The daemon discards the messages of a fenced attempt that ended early, and the client's next try delivers them. So
    only `infos` or `includes_abandoned` selects their lines.

    Times are the messages' timestamps in ms; `until_ms` is exclusive.
    """

    topics: Collection[str] = ()
    infos: Collection[str] = ()
    since_ms: int | None = None
    until_ms: int | None = None
    includes_abandoned: bool = False

    def fate_of(self, line: DiscardLine | None) -> LineFate:
        """Return the fate of a line; None stands for an unparsable one."""
        if line is None or line.event is LineEvent.DUPLICATE or not line.topic:
            return LineFate.NO_MESSAGE
        if line.info in NO_MESSAGES or "(" in line.info:
            return LineFate.NO_MESSAGE
        if not self._selects(line):
            return LineFate.FILTERED
        if self.infos:
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
class Replayed:
    """Numbers of lines of all files, by their treatment."""

    sent: int = 0
    already: int = 0
    """Replayed before."""
    filtered: int = 0
    no_message: int = 0
    in_kafka: int = 0
    """Left out because Kafka has or may have them."""
    abandoned: int = 0
    """Left out because their client sent them again."""

    def __add__(self, other: Replayed) -> Replayed:
        return Replayed(
            self.sent + other.sent, self.already + other.already, self.filtered + other.filtered,
            self.no_message + other.no_message, self.in_kafka + other.in_kafka, self.abandoned + other.abandoned,
        )  # fmt: skip


def line_of(data: bytes) -> DiscardLine | None:
    """Return the parsed line, or None if it cannot be parsed."""
    try:
        return parse_line(data)
    except RemoteProtocolError:
        return None


def message_of(line: DiscardLine) -> Message:
    """Return the message of a line whose fate is SEND."""
    return Message(
        line.topic,
        line.value,
        line.key,
        line.timestamp_ms,
        line.partition_key,
        line.headers,
        EmptyFields(line.empty),
    )
