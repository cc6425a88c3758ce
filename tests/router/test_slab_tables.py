"""Entries of the slab's tables are freed only where nothing can need them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from bruce_mp.router.slab_tables import SWEEP_INTERVAL_MS, SlabTables
from bruce_mp.slab import layout as lay
from bruce_mp.slab.layout import RunState
from bruce_mp.slab.tables import TopicTable
from support.crash_images import crash_images
from support.put_records import put_records
from support.record_batches import KafkaRecord
from support.slabs import SMALL, new_slab, set_state

if TYPE_CHECKING:
    from collections.abc import Callable

TABLES = [range(lay.PAGE), range(SMALL.topics_at, SMALL.rows_at)]
NAMES = [b"t%d" % number for number in range(1, SMALL.topics)]


def test_a_topic_with_messages_in_the_slab_keeps_its_entry() -> None:
    with new_slab() as slab:
        tables = SlabTables(slab)
        numbers = [tables.topics.add(name, 1) for name in NAMES]
        segments = put_records(slab, [[KafkaRecord(0, b"", b"x")]], topic=numbers[2])
        freed = tables.reclaim_entries({b"t1"}, lambda: {numbers[1]}, 0)
        assert freed == numbers[3:]
        assert set(tables.topics.partition_counts()) == {b"t1", b"t2", b"t3"}
        assert tables.name_of(numbers[4]) == NAMES[4], "the router still knows whose it was"
        set_state(slab, segments, RunState.DELIVERED)
        assert tables.reclaim_entries({b"t1"}, set, SWEEP_INTERVAL_MS) == [], "there is room"
        for name in NAMES[3:]:
            tables.topics.add(name, 1)
        assert set(tables.reclaim_entries(set(NAMES) - {b"t3"}, set, SWEEP_INTERVAL_MS)) == {numbers[2]}


def test_the_slab_is_searched_only_at_intervals() -> None:
    with new_slab() as slab:
        tables = SlabTables(slab)
        numbers = [tables.topics.add(name, 1) for name in NAMES]
        segments = put_records(slab, [[KafkaRecord(0, b"", b"x")]], topic=numbers[0])
        existing = set(NAMES[1:])
        assert tables.reclaim_entries(existing, set, 0) == []
        set_state(slab, segments, RunState.DELIVERED)
        assert tables.reclaim_entries(existing, set, SWEEP_INTERVAL_MS - 1) == []
        assert tables.reclaim_entries(existing, set, SWEEP_INTERVAL_MS) == [numbers[0]]


@pytest.mark.parametrize("change", [lambda topics: topics.add(b"t1", 7), lambda topics: topics.remove([1])])
def test_readers_see_each_change_of_a_router_that_died(change: Callable[[TopicTable], object]) -> None:
    with new_slab() as slab:
        SlabTables(slab).topics.add(b"t1", 4)
        version = TopicTable(slab).version
        for _ in crash_images(slab, TABLES, lambda: change(TopicTable(slab))):
            assert SlabTables(slab).topics.version != version


def test_a_router_frees_the_partitions_of_topics_that_a_dead_router_freed() -> None:
    with new_slab() as slab:
        tables = SlabTables(slab)
        gone = tables.topics.add(b"gone", SMALL.partitions)
        assert all(tables.partitions.ensure_entry(gone, partition) for partition in range(SMALL.partitions))
        for _ in crash_images(slab, TABLES, lambda: SlabTables(slab).reclaim_entries(set(), set, 0)):
            successor = SlabTables(slab)
            successor.reclaim_entries(set(), set, 0)
            assert successor.partitions.ensure_entry(successor.topics.add(b"new", 1), 0)
