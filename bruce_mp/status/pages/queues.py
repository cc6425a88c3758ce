"""The page `/queues`: the number of held messages by topic and queue; the queues have Dory's names."""

from __future__ import annotations

from collections import Counter as Tally
from typing import TYPE_CHECKING, Final

import msgspec

from bruce_mp.slab.layout import RunState
from bruce_mp.status.pages.header import Page, header_lines, read_header
from bruce_mp.status.pages.text import topic_text
from bruce_mp.telemetry.books import spilled_total
from bruce_mp.telemetry.held import read_held_groups

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from bruce_mp.slab.file import Slab

__all__ = ["QUEUE_OF", "QueuesPage", "TopicQueues", "queues_text", "read_queues"]

QUEUE_OF: Final[Mapping[int, str]] = {
    RunState.OPEN: "new",
    RunState.FILLED: "new",
    RunState.ROUTED: "batch",
    RunState.ROUTED_SENT: "send_wait",
    RunState.ASSIGNED: "send_wait",
    RunState.ASSIGNED_SENT: "send_wait",
    RunState.QUEUED: "send_wait",
    RunState.RETURNED: "send_wait",
    RunState.RETURNED_SENT: "send_wait",
    RunState.IN_FLIGHT: "ack_wait",
}
"""Queue of a held message by the state of its record."""


class TopicQueues(msgspec.Struct, frozen=True):
    """Messages of a topic that the router has taken over from the inputs.

    `batch` counts the messages in the router that were never sent. `ack_wait` counts the messages that were sent and
    await a response. `send_wait` counts the messages that wait in a dispatcher, or that must be sent again.
    """

    topic: str
    batch: int = 0
    send_wait: int = 0
    ack_wait: int = 0


class QueuesPage(Page, frozen=True, kw_only=True):
    """JSON of `/queues`. `sending` has the queues of each topic, also of messages that were never sent.

    `new` counts the messages in the slab that the router has not taken over yet, `spill` the messages in spill files.
    """

    sending: list[TopicQueues]
    new: int
    spill: int = 0


def read_queues(slab: Slab, now_ms: int) -> QueuesPage:
    new_count, by_topic = 0, dict[bytes, Tally[str]]()
    for group in read_held_groups(slab):
        queue = QUEUE_OF[group.state]
        if queue == "new":
            new_count += group.message_count
        else:
            by_topic.setdefault(group.topic, Tally())[queue] += group.message_count
    sending = [TopicQueues(topic_text(topic), **queues) for topic, queues in sorted(by_topic.items())]
    return QueuesPage(**read_header(slab, now_ms), sending=sending, new=new_count, spill=spilled_total(slab))


def queues_text(page: QueuesPage) -> str:
    """Render one line for each topic, then the sums, in Dory's format. If spill files have messages, add a line."""
    lines = [
        f"batch: {item.batch:10}  send_wait: {item.send_wait:10}  ack_wait: {item.ack_wait:10}  topic: [{item.topic}]"
        for item in page.sending
    ]
    return "\n".join([*header_lines(page), *lines, *([""] if lines else []), *_sum_lines(page), ""])


def _sum_lines(page: QueuesPage) -> Iterator[str]:
    sums = {
        "new": page.new,
        "batch": sum(item.batch for item in page.sending),
        "send_wait": sum(item.send_wait for item in page.sending),
        "ack_wait": sum(item.ack_wait for item in page.sending),
    }
    yield from (f"{count:10} total {name}" for name, count in sums.items())
    yield f"{sum(sums.values()):10} total (all states: {' + '.join(sums)})"
    if page.spill:
        yield f"{page.spill:10} in spill files, not in the total"
