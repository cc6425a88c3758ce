"""The topic table and the partition table: numbers never change their meaning, and readers see whole entries."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bruce_mp.slab import layout as lay
from bruce_mp.slab.tables import PartitionTable, TopicTable
from support.crash_images import crash_images
from support.examples import examples
from support.slabs import SMALL, new_slab

if TYPE_CHECKING:
    from bruce_mp.slab.file import Slab

TABLES = [range(lay.PAGE), range(SMALL.topics_at, SMALL.rows_at)]


@examples(50)
@given(steps=st.lists(st.tuples(st.sampled_from([b"a", b"b", b"\xff\0", b"x" * 249]), st.integers(0, 5)), max_size=12))
def test_topics_keep_their_numbers(steps: list[tuple[bytes, int]]) -> None:
    with new_slab() as slab:
        writer, reader = TopicTable(slab), TopicTable(slab)
        numbers: dict[bytes, int] = {}
        partitions: dict[bytes, int] = {}
        for name, count in steps:
            version = reader.version
            number = writer.add(name, count)
            assert numbers.setdefault(name, number) == number > 0
            assert (reader.version != version) == (partitions.get(name, 0) != count)
            partitions[name] = count
        reader.refresh()
        for name, number in numbers.items():
            for table in (writer, reader, TopicTable(slab)):
                assert table.number_of(name) == number
                assert table.name_of(number) == name
                assert table.partition_count_of(number) == partitions[name]


def test_a_reader_reloads_the_table_for_an_unknown_number(slab: Slab) -> None:
    reader = TopicTable(slab)
    number = TopicTable(slab).add(b"t1", 1)
    assert reader.number_of(b"t1") == 0
    assert reader.name_of(number) == b"t1"
    for unknown in (0, 2, -1, 10**6):
        with pytest.raises(KeyError):
            reader.name_of(unknown)


def test_a_full_table_and_an_overlong_name_are_refused(slab: Slab) -> None:
    table = TopicTable(slab)
    assert table.add(b"x" * 250, 1) == 0
    numbers = [table.add(b"%d" % index, 1) for index in range(SMALL.topics)]
    assert numbers == [*range(1, SMALL.topics), 0]
    assert table.add(b"0", 2) == 1


def test_a_partly_added_topic_is_not_visible(slab: Slab) -> None:
    TopicTable(slab).add(b"t1", 3)
    for _ in crash_images(slab, TABLES, lambda: TopicTable(slab).add(b"name", 7)):
        table = TopicTable(slab)
        number = table.number_of(b"name")
        assert number in {0, 2}
        assert not number or table.partition_count_of(number) in {0, 7}
        assert TopicTable(slab).add(b"name", 7) == 2
        assert (TopicTable(slab).partition_count_of(1), TopicTable(slab).partition_count_of(2)) == (3, 7)


def test_next_sequence_numbers_are_stored(slab: Slab) -> None:
    router, dispatcher = PartitionTable(slab), PartitionTable(slab)
    with pytest.raises(KeyError):
        dispatcher.epoch_and_sequence(1, 0)
    assert router.ensure_entry(1, 0)
    assert router.ensure_entry(1, 7)
    assert router.ensure_entry(1, 0)
    assert slab.words[lay.SUPER_PARTITION_COUNT >> 2] == 2
    dispatcher.store_next_sequence(1, 7, 2**31 - 1, 5)
    assert PartitionTable(slab).epoch_and_sequence(1, 7) == (5, 2**31 - 1)
    dispatcher.store_next_sequence(1, 7, 0, -1)
    assert router.epoch_and_sequence(1, 7) == (-1, 0)
    assert router.epoch_and_sequence(1, 0) == (0, 0)


def test_a_full_partition_table_refuses_new_entries(slab: Slab) -> None:
    table = PartitionTable(slab)
    assert [table.ensure_entry(1, index) for index in range(SMALL.partitions + 1)] == [True] * SMALL.partitions + [
        False
    ]
    assert table.ensure_entry(1, 0)


def test_sequence_and_epoch_change_together(slab: Slab) -> None:
    table = PartitionTable(slab)
    table.ensure_entry(1, 0)
    table.store_next_sequence(1, 0, 100, 1)
    seen = set()
    for _ in crash_images(slab, TABLES, lambda: table.store_next_sequence(1, 0, 0, 2)):
        seen.add(PartitionTable(slab).epoch_and_sequence(1, 0))
    assert seen == {(1, 100), (2, 0)}


def test_a_number_that_was_freed_never_means_another_topic(slab: Slab) -> None:
    writer, reader = TopicTable(slab), TopicTable(slab)
    owner: dict[int, bytes] = {}
    for turn in range(5):
        names = [b"%d-%d" % (turn, index) for index in range(SMALL.topics - 1)]
        numbers = [writer.add(name, 1 + turn) for name in names]
        assert writer.free_entry_count == 0
        assert writer.add(b"one more", 1) == 0
        for number, name in zip(numbers, names, strict=True):
            assert owner.setdefault(number, name) == name
        reader.refresh()
        assert [reader.number_of(name) for name in names] == numbers
        assert [TopicTable(slab).name_of(number) for number in numbers] == names
        assert reader.partition_counts() == dict.fromkeys(names, 1 + turn)
        version = writer.version
        writer.remove(numbers)
        assert writer.version != version
        assert writer.partition_counts() == {}
        reader.refresh()
        assert [reader.number_of(name) for name in names] == [0] * len(names)
        with pytest.raises(KeyError):
            TopicTable(slab).name_of(numbers[0])


def test_a_crash_during_removal_or_replacement_keeps_other_topics(slab: Slab) -> None:
    table = TopicTable(slab)
    old = [table.add(b"t%d" % index, 3) for index in range(SMALL.topics - 1)]
    for _ in crash_images(slab, TABLES, lambda: TopicTable(slab).remove(old[:2])):
        known = TopicTable(slab).partition_counts()
        assert set(known) >= {b"t%d" % index for index in range(2, SMALL.topics - 1)}
        assert set(known.values()) == {3}
    table.remove(old[:2])
    for _ in crash_images(slab, TABLES, lambda: TopicTable(slab).add(b"a longer name", 7)):
        found = TopicTable(slab)
        number = found.number_of(b"a longer name")
        assert number not in old
        assert not number or found.partition_count_of(number) in {0, 7}
        assert found.partition_counts().keys() - {b"a longer name"} == {
            b"t%d" % index for index in range(2, SMALL.topics - 1)
        }
        assert TopicTable(slab).add(b"a longer name", 7) not in {0, *old}


def test_partition_entries_are_reused(slab: Slab) -> None:
    router, dispatcher = PartitionTable(slab), PartitionTable(slab)
    for partition in range(SMALL.partitions):
        assert router.ensure_entry(1 + partition % 2, partition)
    assert router.is_full
    dispatcher.store_next_sequence(2, 1, 10, 4)
    dispatcher.store_next_sequence(2, 3, 10, lay.LAST_EPOCH)  # a topic that takes no sequence numbers
    router.retain_topics({1})
    assert not PartitionTable(slab).is_full
    assert router.ensure_entry(9, 5)
    assert dispatcher.epoch_and_sequence(9, 5) == (5, 0), "a broker may remember the partition in epoch 4"
    assert dispatcher.epoch_and_sequence(1, 0) == (0, 0)
    with pytest.raises(KeyError):
        PartitionTable(slab).epoch_and_sequence(2, 1)
    assert [router.ensure_entry(9, 100 + index) for index in range(8)] == [True] * 7 + [False]
    assert dispatcher.epoch_and_sequence(9, 106) == PartitionTable(slab).epoch_and_sequence(9, 106) == (5, 0)


def test_a_crash_while_partitions_are_freed_keeps_other_partitions(slab: Slab) -> None:
    table = PartitionTable(slab)
    for partition in range(SMALL.partitions):
        table.ensure_entry(1 + partition % 2, partition)
    for _ in crash_images(slab, TABLES, lambda: PartitionTable(slab).retain_topics({1})):
        found = PartitionTable(slab)
        assert [found.epoch_and_sequence(1, partition) for partition in range(0, SMALL.partitions, 2)] == [(0, 0)] * 8
        found.retain_topics({1})  # the next router does it again
        assert found.ensure_entry(2, 1)
        assert found.epoch_and_sequence(2, 1)[0] > 0


def test_a_changed_topic_id_is_noticed_once(slab: Slab) -> None:
    table = TopicTable(slab)
    table.add(b"a", 1)
    ids = (bytes(16), b"1" * 16, b"1" * 16, b"2" * 16, b"", b"2" * 16)
    assert [table.store_topic_id(b"a", each) for each in ids] == [False, False, False, True, False, False]
    assert not TopicTable(slab).store_topic_id(b"unnumbered", b"1" * 16)
    assert TopicTable(slab).store_topic_id(b"a", b"3" * 16), "another router knows the id"
    table.clear_topic_ids()
    assert not table.store_topic_id(b"a", b"4" * 16)
    assert table.name_of(1) == b"a"


def test_an_entry_for_another_topic_has_no_topic_id(slab: Slab) -> None:
    table = TopicTable(slab)
    numbers = [table.add(b"%d" % number, 1) for number in range(SMALL.topics - 1)]
    table.store_topic_id(b"0", b"1" * 16)
    table.remove([numbers[0]])
    assert table.add(b"new", 1)
    assert not table.store_topic_id(b"new", b"2" * 16)
