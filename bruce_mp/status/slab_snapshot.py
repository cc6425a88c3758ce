"""Snapshot of the slab for all pages about held messages: counts by topic, state and holder.

Processes change the slab during the reading, so the counts are approximate on a busy daemon. Only `/books` detects an
inconsistent reading.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from bruce_mp.slab.chunk_readers import read_each
from bruce_mp.slab.chunks import is_settled
from bruce_mp.slab.layout import RunState
from bruce_mp.slab.runs import name_of, records_of, runs_of
from bruce_mp.slab.tables import TopicTable
from bruce_mp.telemetry.stages import STAGES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bruce_mp.slab.file import Slab

__all__ = ["HeldGroup", "read_held_groups"]


class HeldGroup(NamedTuple):
    """Messages of a topic in one state with one holder; `arrived_ms` is the earliest arrival on the steady clock."""

    topic: bytes
    state: RunState
    holder: int
    messages: int
    arrived_ms: int


def read_held_groups(slab: Slab) -> list[HeldGroup]:
    """Count all held messages by topic, state and holder."""
    groups: dict[tuple[bytes | int, int], tuple[int, int]] = {}
    for topic, word, messages, arrived_ms in read_each(slab, lambda chunk: _held_in(slab, chunk)):
        before, first_ms = groups.get((topic, word), (0, arrived_ms))
        groups[topic, word] = (before + messages, min(first_ms, arrived_ms))
    table = TopicTable(slab)
    # The lowest byte of a state word is the state, the rest is the holder.
    return [
        HeldGroup(_topic_name(table, topic), RunState(word & 0xFF), word >> 8, messages, first_ms)
        for (topic, word), (messages, first_ms) in groups.items()
    ]


def _topic_name(table: TopicTable, topic: bytes | int) -> bytes:
    """Return the name of a topic, which a run gives as a name or as a number in the table."""
    if isinstance(topic, bytes):
        return topic
    try:
        return table.name_of(topic)
    except KeyError:  # the topic was removed, and the router is about to discard the messages
        return b"(gone)"


def _held_in(slab: Slab, chunk: int) -> Iterator[tuple[bytes | int, int, int, int]]:
    """Yield topic, state word, count and the run's arrival time for each run, or for each message of a split run."""
    if is_settled(slab, chunk):
        return
    for offset, run in runs_of(slab, chunk):
        topic = run.topic or name_of(slab, chunk, offset, run)
        if run.state in STAGES and run.records:
            yield topic, run.word, run.records, run.arrived_ms
        elif run.state is RunState.SPLIT:
            for _, record in records_of(slab, chunk, offset, run):
                if record.word & 0xFF in STAGES:
                    yield topic, record.word, 1, run.arrived_ms
