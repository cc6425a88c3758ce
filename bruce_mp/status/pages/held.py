"""The page `/held`: the number of held messages of each topic, the age of the oldest one, and how full the slab is.

`/metrics` and `bruce monitor` show the same numbers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from bruce_mp.status.pages.header import Page, read_header
from bruce_mp.status.pages.slab_use import read_slab_use
from bruce_mp.status.pages.text import topic_text
from bruce_mp.telemetry.books import spilled_total
from bruce_mp.telemetry.held import read_held_groups, sum_held

if TYPE_CHECKING:
    from bruce_mp.slab.file import Slab

__all__ = ["HeldPage", "HeldTopic", "read_held"]


class HeldTopic(msgspec.Struct, frozen=True):
    """Number of held messages of a topic, and the age of the oldest one."""

    topic: str
    messages: int
    oldest_ms: int


class HeldPage(Page, frozen=True, kw_only=True):
    """JSON of `/held`.

    `topics` begins with the topic with the most held messages. `messages` is the number of all held messages, and
    `oldest_ms` is the age of the oldest one in the slab, or 0 if there is none. `spill` is the number of messages in
    spill files; `messages` includes them, but `topics` does not, because the slab does not record their topics.
    `slab_in_use` is a ratio from 0 to 1.
    """

    topics: list[HeldTopic]
    messages: int
    oldest_ms: int
    slab_in_use: float
    spill: int = 0


def read_held(slab: Slab, now_ms: int, steady_now_ms: int) -> HeldPage:
    """Count the held messages. `now_ms` is the time of the wall clock, `steady_now_ms` that of the steady clock."""
    spill = spilled_total(slab)
    topics = [
        HeldTopic(topic_text(topic), sums.in_flight + sums.waiting, sums.oldest_ms(steady_now_ms) or 0)
        for topic, sums in sum_held(read_held_groups(slab), lambda group: group.topic).items()
    ]
    return HeldPage(
        **read_header(slab, now_ms),
        topics=sorted(topics, key=lambda held: (-held.messages, held.topic)),
        messages=sum(held.messages for held in topics) + spill,
        spill=spill,
        oldest_ms=max((held.oldest_ms for held in topics), default=0),
        slab_in_use=read_slab_use(slab).in_use_ratio,
    )
