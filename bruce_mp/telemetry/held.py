"""Held messages, counted by the state words of the runs and records in the slab.

Processes change the slab during the reading, so the counts are approximate on a busy daemon.  Unlike `books.py`, this
module does not detect an inconsistent reading.
"""

from __future__ import annotations

from collections import Counter as Tally
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from bruce_mp.slab.chunk_readers import read_each, until_damage
from bruce_mp.slab.chunks import is_settled
from bruce_mp.slab.layout import RunState
from bruce_mp.slab.runs import name_of, records_of, runs_of
from bruce_mp.slab.tables import TopicTable
from bruce_mp.telemetry.stages import STAGE_OF_STATE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from bruce_mp.slab.file import Slab

__all__ = ["HeldGroup", "HeldSums", "held_by_topic", "read_held_groups", "sum_held"]

_Key = TypeVar("_Key")


class HeldGroup(NamedTuple):
    """The number of messages of a topic that have the same state and holder, and their earliest arrival.

    `holder` is the number in their state words, a dispatcher slot in the states of a dispatcher. `arrived_ms` is on the
    steady clock.
    """

    topic: bytes
    state: RunState
    holder: int
    message_count: int
    arrived_ms: int


class HeldSums:
    """Numbers of held messages: `in_flight`, and `waiting` in all other states.

    `arrived_ms` is their earliest arrival on the steady clock, or None without messages.
    """

    __slots__ = ("arrived_ms", "in_flight", "waiting")

    def __init__(self) -> None:
        self.in_flight = self.waiting = 0
        self.arrived_ms: int | None = None

    def add(self, group: HeldGroup) -> None:
        if group.state is RunState.IN_FLIGHT:
            self.in_flight += group.message_count
        else:
            self.waiting += group.message_count
        self.arrived_ms = group.arrived_ms if self.arrived_ms is None else min(self.arrived_ms, group.arrived_ms)

    def oldest_ms(self, now_ms: int) -> int | None:
        """Return the age of the oldest message at `now_ms` of the steady clock, or None if there is no message."""
        return None if self.arrived_ms is None else max(0, now_ms - self.arrived_ms)


def sum_held(groups: Iterable[HeldGroup], key_of: Callable[[HeldGroup], _Key]) -> dict[_Key, HeldSums]:
    """Sum the groups for which `key_of` returns the same key."""
    sums: dict[_Key, HeldSums] = {}
    for group in groups:
        sums.setdefault(key_of(group), HeldSums()).add(group)
    return sums


def read_held_groups(slab: Slab) -> list[HeldGroup]:
    """Count all held messages by topic, state and holder."""
    groups: dict[tuple[bytes | int, int], tuple[int, int]] = {}
    for topic, word, count, arrived_ms in _held(slab):
        sum_so_far, first_ms = groups.get((topic, word), (0, arrived_ms))
        groups[topic, word] = (sum_so_far + count, min(first_ms, arrived_ms))
    table = TopicTable(slab)
    # The lowest byte of a state word is the state, the rest is the holder.
    return [
        HeldGroup(_topic_name(table, topic), RunState(word & 0xFF), word >> 8, count, first_ms)
        for (topic, word), (count, first_ms) in groups.items()
    ]


def _topic_name(table: TopicTable, topic: bytes | int) -> bytes:
    if isinstance(topic, bytes):
        return topic
    try:
        return table.name_of(topic)
    except KeyError:  # the topic was removed, and the router is about to discard the messages
        return b"(gone)"


def held_by_topic(slab: Slab) -> Tally[bytes | int]:
    """Count the held messages by the number of the topic, or by its name if the topic has no number."""
    held: Tally[bytes | int] = Tally()
    for topic, _, count, _ in _held(slab):
        held[topic] += count
    return held


def _held(slab: Slab) -> Iterator[tuple[bytes | int, int, int, int]]:
    """Yield (topic, state word, number of messages, arrival time) for each run with held messages.

    In a split run each record has its own state word, so yield this tuple for each held record. The topic is its
    number, or its name if it has no number.
    """
    return read_each(slab, lambda chunk: _held_in(slab, chunk))


def _held_in(slab: Slab, chunk: int) -> Iterator[tuple[bytes | int, int, int, int]]:
    if is_settled(slab, chunk):
        return
    for offset, run in runs_of(slab, chunk):
        topic = run.topic or name_of(slab, chunk, offset, run)
        if run.state in STAGE_OF_STATE and run.records:  # STAGE_OF_STATE has the states of held messages only
            yield topic, run.word, run.records, run.arrived_ms
        elif run.state is RunState.SPLIT:
            for _, record in until_damage(records_of(slab, chunk, offset, run)):
                if record.word & 0xFF in STAGE_OF_STATE:
                    yield topic, record.word, 1, run.arrived_ms
