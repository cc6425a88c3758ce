"""The page `/queues`: messages that the daemon holds, by topic and by how far they have come.

They are counted from the states in the slab.  The daemon goes on while they are counted, so that the sums of a busy
daemon are as good as a look through a window; `/books` says of itself whether it is consistent.
"""

from __future__ import annotations

from collections import Counter as Tally
from typing import TYPE_CHECKING, Final

import msgspec

from bruce_mp.slab.chunks import read_each
from bruce_mp.slab.layout import State
from bruce_mp.slab.runs import name_of, records_of, runs_of
from bruce_mp.slab.tables import TopicTable
from bruce_mp.status.header import Page, header_lines, read_header
from bruce_mp.status.text import topic_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from bruce_mp.slab.file import Slab
    from bruce_mp.slab.runs import Run

__all__ = ["QUEUE_OF", "QueuesPage", "TopicQueues", "queues_plain", "read_queues"]

QUEUE_OF: Final[Mapping[int, str]] = {
    State.OPEN: "new",
    State.FILLED: "new",
    State.ROUTED: "batch",
    State.ROUTED_SENT: "send_wait",
    State.ASSIGNED: "send_wait",
    State.ASSIGNED_SENT: "send_wait",
    State.QUEUED: "send_wait",
    State.RETURNED: "send_wait",
    State.RETURNED_SENT: "send_wait",
    State.IN_FLIGHT: "ack_wait",
}
"""In which queue a record in a state is; settled ones are in none."""


class TopicQueues(msgspec.Struct, frozen=True):
    """Messages of a topic that the router has seen: in the router, waiting to be sent, sent and not answered."""

    topic: str
    batch: int = 0
    send_wait: int = 0
    ack_wait: int = 0

    @property
    def total(self) -> int:
        return self.batch + self.send_wait + self.ack_wait


class QueuesPage(Page, frozen=True, kw_only=True):
    """The JSON of `/queues`.  `new` is the number of messages that the router has not taken yet."""

    sending: list[TopicQueues]
    new: int


def read_queues(slab: Slab, now_ms: int) -> QueuesPage:
    """The page as of now."""
    by_topic = _count(slab)
    new = sum(queues.pop("new", 0) for queues in by_topic.values())
    sending = [TopicQueues(topic_text(topic), **queues) for topic, queues in sorted(by_topic.items()) if queues]
    return QueuesPage(**read_header(slab, now_ms), sending=sending, new=new)


def _count(slab: Slab) -> dict[bytes, Tally[str]]:
    topics = TopicTable(slab)
    by_topic: dict[bytes, Tally[str]] = {}
    for number, name, queues in read_each(slab, lambda chunk: _count_chunk(slab, chunk)):
        topic = _name(topics, number) if number else name
        by_topic.setdefault(topic, Tally()).update(queues)
    return by_topic


def _name(topics: TopicTable, number: int) -> bytes:
    try:
        return topics.name_of(number)
    except KeyError:  # gone; the router is about to discard the messages
        return b"(gone)"


def _count_chunk(slab: Slab, chunk: int) -> Iterator[tuple[int, bytes, Tally[str]]]:
    """(topic id, the name if that is 0, messages by queue) of each run that holds any."""
    for offset, run in runs_of(slab, chunk):
        queues = _count_run(slab, chunk, offset, run)
        if queues:
            yield run.topic, name_of(slab, chunk, offset, run), queues


def _count_run(slab: Slab, chunk: int, offset: int, run: Run) -> Tally[str]:
    if run.state is not State.SPLIT:
        queue = QUEUE_OF.get(run.state)
        return Tally({queue: run.records} if queue else {})
    states = (record.word & 0xFF for _, record in records_of(slab, chunk, offset, run))
    return Tally(QUEUE_OF[state] for state in states if state in QUEUE_OF)


def queues_plain(page: QueuesPage) -> str:
    """The plain page: a line for each topic, then the sums."""
    lines = [f"{_numbers(item)}  topic: [{item.topic}]" for item in page.sending]
    totals = {
        "new": page.new,
        "batch": sum(item.batch for item in page.sending),
        "send_wait": sum(item.send_wait for item in page.sending),
        "ack_wait": sum(item.ack_wait for item in page.sending),
    }
    totals["total"] = sum(totals.values())
    sums = [f"{name}: {number}" for name, number in totals.items()]
    return "\n".join([*header_lines(page), *lines, *([""] if lines else []), *sums, ""])


def _numbers(item: TopicQueues) -> str:
    return f"batch: {item.batch:10}  send_wait: {item.send_wait:10}  ack_wait: {item.ack_wait:10}"
