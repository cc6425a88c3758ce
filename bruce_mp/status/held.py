"""The page `/held`: what the daemon holds by topic, since when, and how full that makes the slab.

One look at the slab's runs serves all that watch a daemon from outside: `/metrics` and `bruce monitor`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from bruce_mp.slab.chunks import read_each
from bruce_mp.slab.layout import State
from bruce_mp.slab.runs import name_of, records_of, runs_of
from bruce_mp.slab.tables import TopicTable
from bruce_mp.status.fullness import share_in_use
from bruce_mp.status.header import Page, read_header
from bruce_mp.status.text import topic_text
from bruce_mp.telemetry.books import STAGES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bruce_mp.slab.file import Slab
    from bruce_mp.slab.runs import Run

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
    topics = sorted(_by_topic(slab, steady_now_ms), key=lambda held: (-held.messages, held.topic))
    return HeldPage(
        **read_header(slab, now_ms),
        topics=topics,
        messages=sum(held.messages for held in topics),
        oldest_ms=max((held.oldest_ms for held in topics), default=0),
        slab_in_use=round(share_in_use(slab), 4),
    )


def _by_topic(slab: Slab, now_ms: int) -> Iterator[HeldTopic]:
    found: dict[bytes, tuple[int, int]] = {}
    table = TopicTable(slab)
    for topic, messages, arrived_ms in read_each(slab, lambda chunk: _in_chunk(slab, chunk)):
        name = _name(table, topic)
        before, oldest_ms = found.get(name, (0, arrived_ms))
        found[name] = (before + messages, min(oldest_ms, arrived_ms))
    for name, (messages, oldest_ms) in found.items():
        yield HeldTopic(topic_text(name), messages, max(0, now_ms - oldest_ms))


def _name(table: TopicTable, topic: bytes | int) -> bytes:
    if isinstance(topic, bytes):
        return topic
    try:
        return table.name_of(topic)
    except KeyError:  # gone; the router is about to discard the messages
        return b"(gone)"


def _in_chunk(slab: Slab, chunk: int) -> Iterator[tuple[bytes | int, int, int]]:
    """Topic, held messages and time of arrival of each run that holds any."""
    for offset, run in runs_of(slab, chunk):
        messages = _messages(slab, chunk, offset, run)
        if messages:
            yield run.topic or name_of(slab, chunk, offset, run), messages, run.arrived_ms


def _messages(slab: Slab, chunk: int, offset: int, run: Run) -> int:
    if run.state is not State.SPLIT:
        return run.records if run.state in STAGES else 0
    return sum(1 for _, record in records_of(slab, chunk, offset, run) if record.word & 0xFF in STAGES)
