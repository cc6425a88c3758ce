"""The front page: what a person wants to know first, read once for one view."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgspec

from bruce_mp.slab.tables import TopicTable
from bruce_mp.status.brokers import BrokersPage, read_brokers
from bruce_mp.status.health import HealthPage, judge
from bruce_mp.status.queues import QueuesPage, TopicQueues, read_queues
from bruce_mp.status.text import stamp, topic_text

if TYPE_CHECKING:
    from bruce_mp.slab.file import Slab
    from bruce_mp.status.discards import Report
    from bruce_mp.status.health import Evidence
    from bruce_mp.status.reports import Reports
    from bruce_mp.status.rows import ProcessLine
    from bruce_mp.telemetry.books import Books

__all__ = ["Overview", "TopicLine", "read_overview"]

TOPICS_SHOWN: Final = 100


class TopicLine(msgspec.Struct, frozen=True):
    """A topic; `partitions` is 0 while the router does not know it."""

    name: str
    partitions: int
    queues: TopicQueues


@dataclass(frozen=True, slots=True)
class Overview:
    """What the template is given.  `topics` are the fullest; `more_topics` says how many are left out."""

    health: HealthPage
    since: str
    books: Books
    processes: list[ProcessLine]
    brokers: BrokersPage
    topics: list[TopicLine]
    more_topics: int
    report: Report


def read_overview(slab: Slab, reports: Reports, evidence: Evidence, now_ms: int) -> Overview:
    """The view as of now."""
    processes = evidence.processes
    topics = _topics(slab, read_queues(slab, now_ms))
    return Overview(
        health=judge(evidence),
        brokers=read_brokers(slab, evidence.heard, now_ms),
        since=stamp(processes.since).partition(" ")[2],
        books=evidence.books,
        processes=processes.processes,
        topics=topics[:TOPICS_SHOWN],
        more_topics=max(0, len(topics) - TOPICS_SHOWN),
        report=reports.peek(now_ms),
    )


def _topics(slab: Slab, page: QueuesPage) -> list[TopicLine]:
    queues = {item.topic: item for item in page.sending}
    table = TopicTable(slab)
    partitions = {topic_text(name): count for name, count in table.known().items()}
    lines = [
        TopicLine(name, partitions.get(name, 0), queues.get(name) or TopicQueues(name)) for name in partitions | queues
    ]
    return sorted(lines, key=lambda line: (-line.queues.total, line.name))
