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
"""Version of the JSON, raised when a field changes its meaning."""
TARGET: Final = 0.9
"""Share of its throughput that the group `OTHERS` must keep in each phase."""
PACE: Final = 0.9
"""Share of the pace that the sender must reach in each phase, or the load is another one."""


class Group(StrEnum):
    """A group of messages, as the module's text defines it."""

    OTHERS = "others"
    DEAD = "dead one's"
    DIRECT_OTHERS = "others, without the daemon"
    DIRECT_DEAD = "dead one's, without the daemon"

    @property
    def is_killed(self) -> bool:
        """True if the broker that dies leads the group's homes."""
        return self in {Group.DEAD, Group.DIRECT_DEAD}


class Flow(msgspec.Struct, frozen=True):
    """A group in a phase.

    `sent` and `arrived` are in messages a second, `arrived` by the time of receipt at a consumer.  Latencies are in ms,
    for messages sent in the phase: until a consumer received them and, where known, until the leader's log had them.
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
        """Arrived messages for each sent one; backlog of the phase before counts too."""
        return self.arrived / self.sent


class Span(msgspec.Struct, frozen=True):
    """A phase; `cores` counts the busy cores, for all programs."""

    name: str
    seconds: float
    cores: float
    flows: dict[Group, Flow]


class Silence(msgspec.Struct, frozen=True):
    """Times in s without messages of a group's partitions, until the end of the phase in which all can receive again.

    `longest` is the longest time without a message in any partition.  `flowing` ends when the last partition receives
    a message again, `caught_up` when all messages sent until then have arrived.  Both count from the broker's return
    or, if other brokers take over its partitions, from its death.  A silence that outlasts the phase ends with it.
    """

    longest: float
    flowing: float
    caught_up: float


class Report(msgspec.Struct, frozen=True):
    """The report on an outage.

    `rate` is the requested pace in messages a second; `per_second` has arrivals by group, from `before` on;
    `since` is the event from which `Silence` counts.
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
        """Return the ratio of a field or property of `Flow` to its value in the phase `before`."""
        return float(getattr(span.flows[group], what) / getattr(self.spans[0].flows[group], what))

    @property
    def kept(self) -> float:
        """The smallest share of its throughput that the group `OTHERS` kept in a phase."""
        return min(self.ratio(Group.OTHERS, span, "through") for span in self.spans)

    @property
    def refusals(self) -> list[str]:
        """Return the reasons to refuse the figures; none for a sound report."""
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
