"""The results of an outage, in the form of their file.

A *group* is the messages of one sender program, with homes on the broker that dies or on the others.  Ratios are
relative to the phase `before`.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Final

import msgspec

from bench.outage.read_back import ReadBack  # noqa: TC001  msgspec reads the annotations
from bruce_mp.telemetry.books import Books  # noqa: TC001  msgspec reads the annotations

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["FORMAT", "TARGET", "Flow", "Group", "Report", "Silence", "Span"]

FORMAT: Final = 1
"""Of the JSON; goes up when a field changes its meaning."""
TARGET: Final = 0.9
"""Of its throughput the group `OTHERS` has to keep, in each phase."""
PACE: Final = 0.9
"""Of the pace has to be sent in each phase, else it is another load."""


class Group(StrEnum):
    """See the module's text."""

    OTHERS = "others"
    DEAD = "dead one's"
    DIRECT_OTHERS = "others, without the daemon"
    DIRECT_DEAD = "dead one's, without the daemon"

    @property
    def mortal(self) -> bool:
        """Whether the broker that dies leads its homes."""
        return self in {Group.DEAD, Group.DIRECT_DEAD}


class Flow(msgspec.Struct, frozen=True):
    """A group in a phase.

    Messages a second; `arrived` are those that a consumer saw in the phase.  Latencies in ms of those sent in the
    phase: until a consumer saw them, and, where it is known, until they were in the log of the leader.
    """

    sent: float
    arrived: float
    p50: float
    p99: float
    longest: float
    logged_p50: float | None = None
    logged_p99: float | None = None

    @property
    def through(self) -> float:
        """Arrived for each that was sent.  What waited in the phase before comes on top."""
        return self.arrived / self.sent


class Span(msgspec.Struct, frozen=True):
    """A phase; `cores` counts the busy cores, for all programs."""

    name: str
    seconds: float
    cores: float
    flows: dict[Group, Flow]


class Silence(msgspec.Struct, frozen=True):
    """What a group's partitions went through, in seconds, until the end of the phase in which all can flow again.

    `longest` nothing came to one of them.  `flowing` is when something came again to the last of them, `caught_up` when
    everything had arrived that was sent until then, both counted from the event that made it possible: the return of
    the broker, or, where others take over what it led, its death.  A silence that outlasts the phase ends with it here.
    """

    longest: float
    flowing: float
    caught_up: float


class Report(msgspec.Struct, frozen=True):
    """Everything.

    `rate` is the pace that was asked for, in messages a second; `per_second` are arrivals by group, from the beginning
    of `before` on; `since` is the event from which `Silence` counts.
    """

    format: int
    machine: dict[str, str | float]
    site: str
    since: str
    rate: int
    spans: list[Span]
    silences: dict[Group, Silence]
    per_second: dict[Group, list[int]]
    pauses: int
    books: Books
    read_back: ReadBack

    def ratio(self, group: Group, span: Span, what: str) -> float:
        """Of a field or property of `Flow`."""
        return float(getattr(span.flows[group], what) / getattr(self.spans[0].flows[group], what))

    @property
    def kept(self) -> float:
        """The least share of its throughput that the group `OTHERS` kept in a phase."""
        return min(self.ratio(Group.OTHERS, span, "through") for span in self.spans)

    @property
    def refusals(self) -> list[str]:
        """Why the figures may not be believed; nothing, if they may."""
        return [text for holds, text in self._rules() if not holds]

    def _rules(self) -> Iterator[tuple[bool, str]]:
        books, back = self.books, self.read_back
        yield books.received == back.sent, f"{back.sent} were sent, {books.received} received"
        yield books.balanced, "the books do not balance"
        yield not books.discarded, f"messages were discarded: {books.discarded}"
        yield not back.missing, f"{back.missing} messages are missing"
        yield not back.doubled, f"{back.doubled} messages are there twice"
        yield not back.disordered, f"{back.disordered} messages are out of order"
        for span in self.spans:
            pace = (span.flows[Group.OTHERS].sent + span.flows[Group.DEAD].sent) / self.rate
            yield (
                pace >= PACE,
                f"{pace:.0%} of the pace was sent {span.name}: is the machine too busy, or the input slow?",
            )
