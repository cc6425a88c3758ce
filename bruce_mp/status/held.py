"""The page `/held`: what the daemon holds by topic, since when, and how full that makes the slab.

One look at the slab's runs serves all that watch a daemon from outside: `/metrics` and `bruce monitor`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from bruce_mp.status.header import Page, read_header
from bruce_mp.status.slab_use import read_slab_use
from bruce_mp.status.survey import survey
from bruce_mp.status.text import topic_text

if TYPE_CHECKING:
    from bruce_mp.slab.file import Slab

__all__ = ["HeldPage", "HeldTopic", "read_held"]


class HeldTopic(msgspec.Struct, frozen=True):
    """Messages of a topic that are neither delivered nor discarded; the oldest of them came `oldest_ms` ago."""

    topic: str
    messages: int
    oldest_ms: int


class HeldPage(Page, frozen=True, kw_only=True):
    """The JSON of `/held`.

    `topics` begins with the one that holds most.  `oldest_ms` is the greatest age in ms, 0 if nothing is held.
    `slab_in_use` is a share from 0 to 1.
    """

    topics: list[HeldTopic]
    messages: int
    oldest_ms: int
    slab_in_use: float


def read_held(slab: Slab, now_ms: int, steady_now_ms: int) -> HeldPage:
    """The page as of now: by the wall clock, and by the steady one, which ages are told by."""
    found: dict[bytes, tuple[int, int]] = {}
    for pile in survey(slab):
        before, oldest_ms = found.get(pile.topic, (0, pile.arrived_ms))
        found[pile.topic] = (before + pile.messages, min(oldest_ms, pile.arrived_ms))
    topics = [
        HeldTopic(topic_text(topic), messages, max(0, steady_now_ms - arrived_ms))
        for topic, (messages, arrived_ms) in found.items()
    ]
    return HeldPage(
        **read_header(slab, now_ms),
        topics=sorted(topics, key=lambda held: (-held.messages, held.topic)),
        messages=sum(held.messages for held in topics),
        oldest_ms=max((held.oldest_ms for held in topics), default=0),
        slab_in_use=read_slab_use(slab).share,
    )
