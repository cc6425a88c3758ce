"""Batching in a dispatcher while topics come and go."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from bruce_mp.config.sections import BatchLimits
from bruce_mp.config.topics import BatchingKind, TopicBatching
from bruce_mp.dispatcher.gather import Gathering
from bruce_mp.protocol.record_batch import Record
from bruce_mp.slab.tables import TopicTable
from support.put_records import put_records
from support.slabs import SMALL, new_slab

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from bruce_mp.slab.file import Slab
    from bruce_mp.slab.runs import Segment

TWO = TopicBatching(BatchingKind.PER_TOPIC, BatchLimits(messages=2))
THREE = TopicBatching(BatchingKind.PER_TOPIC, BatchLimits(messages=3))


@pytest.fixture
def slab() -> Iterator[Slab]:
    with new_slab() as slab:
        yield slab


def rules(table: TopicTable) -> Callable[[int], TopicBatching]:
    return lambda topic: THREE if table.name_of(topic).startswith(b"three") else TWO


def one(slab: Slab, topic: int) -> list[Segment]:
    return put_records(slab, [[Record(0, b"", b"x")]], topic=topic)


def test_what_is_known_of_topics_is_bounded_by_their_table(slab: Slab) -> None:
    table = TopicTable(slab)
    gathering = Gathering(slab, rules(table))
    for number in range(4 * SMALL.topics):
        topic = table.add(b"t%d" % number, 1)
        assert gathering.kind_of(topic) is BatchingKind.PER_TOPIC
        gathering.add(topic, [], 0)
        table.remove([topic])
    assert len(gathering._rules) <= SMALL.topics
    assert len(gathering._builders) <= SMALL.topics


def test_a_topic_in_the_place_of_one_that_is_gone_is_batched_by_its_own_rule(slab: Slab) -> None:
    table = TopicTable(slab)
    gathering = Gathering(slab, rules(table))
    others = [table.add(b"t%d" % number, 1) for number in range(SMALL.topics - 2)]
    gone = table.add(b"three, gone", 1)
    waiting = [segment for _ in range(2) for segment in one(slab, gone)]
    assert gathering.add(gone, waiting, 0) == []
    assert gathering.flush_of(gone) == waiting
    table.remove([gone])
    new = table.add(b"new", 1)
    assert new % SMALL.topics == gone % SMALL.topics
    [first], [second] = one(slab, new), one(slab, new)
    assert gathering.add(new, [first], 0) == []
    assert gathering.flush_of(gone) == [], "a frame that comes late says nothing of the topic that is there now"
    assert gathering.kind_of(gone) is BatchingKind.NONE
    assert gathering.add(new, [second], 0) == [first, second]
    assert [gathering.kind_of(topic) for topic in others] == [BatchingKind.PER_TOPIC] * len(others)
