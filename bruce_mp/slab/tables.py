"""The topic table and the partition table.

The router is the only writer of both tables, with two exceptions.  The dispatcher of a partition stores the partition's
next sequence number.  Any dispatcher stores a topic's *refusal*: the error code of a broker's last answer, if the error
was fatal.  (The router clears the refusals of deleted topics.)  An entry is complete before the store that makes it
visible to other processes.

A topic keeps its number while it has an entry.  If Kafka does not have the topic any more, and the slab has no messages
of it, the router may reuse the entry for another topic, under another number: the index of the entry plus a multiple of
the table's capacity.  So a number is used again only after its entry has had half a million other numbers.

A partition that loses its entry and later gets one again begins in a producer epoch that the partition has not had.
Otherwise the broker would take new messages for repetitions of old messages with the same sequence numbers.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING, Final

from bruce_mp.slab import layout as lay

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from bruce_mp.slab.file import Slab

__all__ = ["PartitionTable", "TopicTable", "store_next_sequence"]

_MAX_NUMBER: Final = 0xFFFFFFFF  # the largest topic number that a u32 can store


class TopicTable:
    """The numbers and partition counts of topics; only the router changes them.

    Numbers and names are cached; `refresh` reads the changes.
    """

    def __init__(self, slab: Slab) -> None:
        self._slab = slab
        self._table_at = slab.geometry.topics_at
        self._capacity = slab.geometry.topics
        self._numbers: dict[bytes, int] = {}
        self._names: dict[int, bytes] = {}
        self._cached_numbers: list[int] = [0]
        """The number in each entry at the last refresh."""
        self.refresh()

    def refresh(self) -> None:
        """Read the entries that changed since the last refresh."""
        numbers = self._numbers_in_table()
        if numbers == self._cached_numbers:
            return
        self._cached_numbers += [0] * (len(numbers) - len(self._cached_numbers))
        for index, number in enumerate(numbers):
            if number != self._cached_numbers[index]:
                self._cache_entry(index, number)

    def _cache_entry(self, index: int, number: int) -> None:
        """Replace what is cached of an entry by the topic with this number."""
        self._drop(self._cached_numbers[index])
        self._cached_numbers[index] = self._read_entry(number)

    def _numbers_in_table(self) -> list[int]:
        """Return the number in each entry; entry 0 is never used."""
        first = (self._table_at + lay.TOPIC_NUMBER) >> 2
        step = lay.TOPIC_ENTRY >> 2
        return self._slab.words[first : first + self._slab.words[lay.SUPER_TOPIC_COUNT >> 2] * step : step].tolist()

    def _read_entry(self, topic: int) -> int:
        """Read the entry of a topic and return its number; 0 if the router changed the entry during the read.

        `topic` is 0 for a free entry.
        """
        if not topic:
            return 0
        at = self._at(topic)
        length = min(self._slab.words[(at + lay.TOPIC_NAME_LENGTH) >> 2], lay.TOPIC_NAME_MAX)
        name = bytes(self._slab.view[at + lay.TOPIC_NAME : at + lay.TOPIC_NAME + length])
        if self._slab.words[(at + lay.TOPIC_NUMBER) >> 2] != topic:
            return 0
        self._names[topic], self._numbers[name] = name, topic
        return topic

    def _drop(self, topic: int) -> None:
        """Drop a number from the cache, and its name unless the name has another number already."""
        name = self._names.pop(topic, b"")
        if self._numbers.get(name) == topic:
            del self._numbers[name]

    def _at(self, topic: int) -> int:
        """Return the file offset of the entry with a topic number, which may be just the index of the entry."""
        return self._table_at + topic % self._capacity * lay.TOPIC_ENTRY

    @property
    def version(self) -> int:
        """Return a number that grows with each change of the table, so that readers can skip an unchanged table."""
        return self._slab.words[lay.SUPER_TOPICS_VERSION >> 2]

    def increment_version(self) -> None:
        """Make readers read the table again (router only)."""
        self._slab.words[lay.SUPER_TOPICS_VERSION >> 2] += 1

    def number_of(self, name: bytes) -> int:
        """Return the topic's number, 0 if it has none."""
        return self._numbers.get(name, 0)

    def name_of(self, topic: int) -> bytes:
        """Return the topic's name.  Raises KeyError for a number without a topic."""
        name = self._names.get(topic)
        if name is None:
            self.refresh()
            name = self._names[topic]
        return name

    def names_of(self, topics: Collection[int]) -> list[bytes]:
        """Return the names of topics.  Raises KeyError for a number without a topic."""
        try:
            return [self._names[topic] for topic in topics]
        except KeyError:
            return [self.name_of(topic) for topic in topics]

    def __len__(self) -> int:
        return len(self._names)

    @property
    def free_entry_count(self) -> int:
        """Return the number of topics that can be added."""
        return self._capacity - 1 - len(self._names)  # entry 0 is never used

    def has(self, topic: int) -> bool:
        if topic not in self._names:
            self.refresh()
        return topic in self._names

    def was_freed(self, topic: int) -> bool:
        """Return True if a topic had this number, but has lost its entry; numbers of an entry are ascending."""
        return 0 < topic <= self._slab.words[(self._at(topic) + lay.TOPIC_LAST_NUMBER) >> 2]

    def numbers(self) -> dict[bytes, int]:
        return dict(self._numbers)

    def partition_counts(self) -> dict[bytes, int]:
        return {name: self.partition_count_of(topic) for name, topic in self._numbers.items()}

    def partition_count_of(self, topic: int) -> int:
        """Return the topic's number of partitions by the metadata, 0 if unknown."""
        return self._slab.words[(self._at(topic) + lay.TOPIC_PARTITIONS) >> 2]

    def refusals(self) -> dict[bytes, int]:
        """Return the refusal code of each topic that has one."""
        self.refresh()
        codes = {name: self.refusal_of(topic) for name, topic in self._numbers.items()}
        return {name: code for name, code in codes.items() if code}

    def refusal_of(self, topic: int) -> int:
        """Return the refusal code of a topic, 0 for none."""
        return self._slab.words[(self._at(topic) + lay.TOPIC_REFUSAL) >> 2]

    def store_refusal(self, topic: int, code: int) -> None:
        """Store the refusal code of a topic (dispatchers only)."""
        self._slab.words[(self._at(topic) + lay.TOPIC_REFUSAL) >> 2] = code

    def clear_refusals(self, topics: Iterable[int]) -> None:
        """Clear the refusal codes of topics, because a broker has accepted messages or the topics were deleted.

        A dispatcher calls this after an acceptance, the router after a deletion.
        """
        words, capacity, entry = self._slab.words, self._capacity, lay.TOPIC_ENTRY
        first_at = self._table_at + lay.TOPIC_REFUSAL
        for topic in topics:
            at = (first_at + topic % capacity * entry) >> 2
            if words[at]:
                words[at] = 0

    def store_topic_id(self, name: bytes, topic_id: bytes) -> bool:
        """Store a hash of Kafka's id of a topic (router only); return True if the topic had another id before.

        Brokers without topic ids report zeros, which are not stored.
        """
        topic = self.number_of(name)
        if not topic or not any(topic_id):
            return False
        old_hash = self._topic_id_hash(topic)
        new_hash = blake2b(topic_id, digest_size=_HASH_BYTES).digest()
        self._store_topic_id_hash(topic, new_hash)
        return any(old_hash) and old_hash != new_hash

    def clear_topic_ids(self) -> None:
        """Clear Kafka's ids of all topics (router only)."""
        for topic in self._names:
            self._store_topic_id_hash(topic, bytes(_HASH_BYTES))

    def _topic_id_hash(self, topic: int) -> bytes:
        at = self._at(topic) + lay.TOPIC_ID_HASH
        return bytes(self._slab.view[at : at + _HASH_BYTES])

    def _store_topic_id_hash(self, topic: int, value: bytes) -> None:
        at = self._at(topic) + lay.TOPIC_ID_HASH
        self._slab.view[at : at + _HASH_BYTES] = value

    def add(self, name: bytes, partitions: int) -> int:
        """Store a topic's partition count and return the topic's number (router only).

        A topic without an entry gets one.  The result is 0 if the table is full or the name is too long.
        """
        topic = self.number_of(name) or self._create_entry(name)
        if topic and self.partition_count_of(topic) != partitions:
            self._slab.words[(self._at(topic) + lay.TOPIC_PARTITIONS) >> 2] = partitions
            self.increment_version()
        return topic

    def _create_entry(self, name: bytes) -> int:
        index = self._free_index()
        if not index or len(name) > lay.TOPIC_NAME_MAX:
            return 0
        words, at = self._slab.words, self._at(index)
        topic = self._next_number(index)
        words[(at + lay.TOPIC_PARTITIONS) >> 2] = 0
        words[(at + lay.TOPIC_REFUSAL) >> 2] = 0
        self._store_topic_id_hash(topic, bytes(_HASH_BYTES))
        words[(at + lay.TOPIC_NAME_LENGTH) >> 2] = len(name)
        self._slab.view[at + lay.TOPIC_NAME : at + lay.TOPIC_NAME + len(name)] = name
        words[(at + lay.TOPIC_NUMBER) >> 2] = topic
        words[lay.SUPER_TOPIC_COUNT >> 2] = max(words[lay.SUPER_TOPIC_COUNT >> 2], index + 1)
        if index == len(self._cached_numbers):
            self._cached_numbers.append(0)
        self._cache_entry(index, topic)  # not `refresh`, which reads the numbers of all entries
        return topic

    def _free_index(self) -> int:
        """Return the index of a free entry, 0 if there is none."""
        if len(self._cached_numbers) < self._capacity:
            return len(self._cached_numbers)
        return next((index for index in range(1, self._capacity) if not self._cached_numbers[index]), 0)

    def _next_number(self, index: int) -> int:
        """Return the next number for an entry; after half a million numbers they begin again."""
        last = self._slab.words[(self._at(index) + lay.TOPIC_LAST_NUMBER) >> 2]
        number = last + self._capacity if last else index
        return number if number <= _MAX_NUMBER else index

    def remove(self, topics: Iterable[int]) -> None:
        """Free the entries of topics without messages in the slab (router only)."""
        for topic in topics:
            at = self._at(topic)
            self._slab.words[(at + lay.TOPIC_LAST_NUMBER) >> 2] = topic
            self._slab.words[(at + lay.TOPIC_NUMBER) >> 2] = 0
        self.increment_version()
        self.refresh()


_HASH_BYTES: Final = 3  # of TOPIC_ID_HASH


class PartitionTable:
    """The next sequence number of each partition, with its producer epoch."""

    def __init__(self, slab: Slab) -> None:
        self._slab = slab
        self._entries_at = slab.geometry.partitions_at
        self._entries: dict[tuple[int, int], int] = {}
        """The index of each partition's entry, by (topic number, partition)."""
        self._free: list[int] = []
        """Indexes of free entries below `_count`."""
        self._count = 0
        """SUPER_PARTITION_COUNT at the last read."""
        self._read_entries()

    def _read_entries(self, first: int = 0) -> None:
        """Read the entries, beginning at index `first`."""
        count = self._slab.words[lay.SUPER_PARTITION_COUNT >> 2]
        entries = self._slab.view[self._at(first) : self._at(count)]
        for index, (topic, partition, _, _) in enumerate(lay.PARTITION.iter_unpack(entries), first):
            if topic:
                self._entries[topic, partition] = index
            else:
                self._free.append(index)
        self._count = count

    def _reread_entries(self) -> None:
        self._entries.clear()
        self._free.clear()
        self._read_entries()

    def _at(self, index: int) -> int:
        return self._entries_at + index * lay.PARTITION_ENTRY

    @property
    def is_full(self) -> bool:
        """Return True if the table has no free entry."""
        return not self._free and self._count >= self._slab.geometry.partitions

    def ensure_entry(self, topic: int, partition: int) -> bool:
        """Create a partition's entry if there is none (router only); return False if the table is full."""
        if (topic, partition) in self._entries:
            return True
        if self.is_full:
            return False
        index = self._free.pop() if self._free else self._count
        epoch = self._slab.words[lay.SUPER_FIRST_EPOCH >> 2]
        lay.PARTITION.pack_into(self._slab.view, self._at(index), 0, partition, 0, epoch)
        self._slab.words[self._at(index) >> 2] = topic
        self._entries[topic, partition] = index
        self._count = max(self._count, index + 1)
        self._slab.words[lay.SUPER_PARTITION_COUNT >> 2] = self._count
        return True

    def retain_topics(self, topics: Collection[int]) -> None:
        """Free the entries of the partitions of all topics except `topics` (router only)."""
        removed = [index for (topic, _), index in self._entries.items() if topic not in topics]
        first_epoch_index = lay.SUPER_FIRST_EPOCH >> 2
        first_epoch = self._slab.words[first_epoch_index]
        # A new entry begins in an epoch after the epochs of all removed entries, so that a partition that gets an entry
        # again has a new epoch.  A removed entry in LAST_EPOCH counts as if it were in the first epoch.  Otherwise all
        # later entries would begin in LAST_EPOCH, in which batches have no sequence numbers.
        removed_epochs = [epoch for epoch, _ in map(self._epoch_and_sequence_at, removed)]
        used_epochs = [epoch if epoch < lay.LAST_EPOCH else first_epoch for epoch in removed_epochs]
        next_epoch = max([first_epoch, *(epoch + 1 for epoch in used_epochs)])
        self._slab.words[first_epoch_index] = min(next_epoch, lay.LAST_EPOCH)
        for index in removed:
            self._slab.words[self._at(index) >> 2] = 0
        self._reread_entries()

    def _epoch_and_sequence_at(self, index: int) -> tuple[int, int]:
        _, _, sequence, epoch = lay.PARTITION.unpack_from(self._slab.view, self._at(index))
        return epoch, sequence

    def epoch_and_sequence(self, topic: int, partition: int) -> tuple[int, int]:
        """Return (producer epoch, next sequence number) of a partition.  Raises KeyError if it has no entry."""
        return self._epoch_and_sequence_at(self._index_of(topic, partition))

    def entry_at(self, topic: int, partition: int) -> int:
        """Return the file offset of a partition's entry.  Raises KeyError if there is none."""
        index = self._entries.get((topic, partition))  # not `_index_of`, to save a call: dispatchers ask for each batch
        if index is None:
            index = self._index_of(topic, partition)
        return self._entries_at + index * lay.PARTITION_ENTRY

    def store_next_sequence(self, topic: int, partition: int, sequence: int, epoch: int) -> None:
        """Store the next sequence number with its epoch (the partition's dispatcher only)."""
        store_next_sequence(self._slab, self.entry_at(topic, partition), sequence, epoch)

    def reset(self) -> None:
        """Set all sequence numbers to 0 for a new producer id (router only, while no dispatcher numbers batches)."""
        self._reread_entries()
        self._slab.words[lay.SUPER_FIRST_EPOCH >> 2] = 0
        for topic, partition in self._entries:
            self.store_next_sequence(topic, partition, sequence=0, epoch=0)

    def change_epochs(self) -> None:
        """Begin another epoch with sequence number 0 in each partition, for another cluster.

        Only the router calls this, while no dispatcher has batches.
        """
        self._reread_entries()
        for topic, partition in self._entries:
            epoch, _ = self.epoch_and_sequence(topic, partition)
            # The epoch only has to differ from the last one: the new cluster knows none of this slab's epochs.
            epoch = epoch + 1 if epoch + 1 < lay.LAST_EPOCH else 0
            self.store_next_sequence(topic, partition, sequence=0, epoch=epoch)

    def _index_of(self, topic: int, partition: int) -> int:
        """Return the index of a partition's entry; if necessary, read the entries that the router has added."""
        index = self._entries.get((topic, partition))
        if index is not None:
            return index
        self._read_entries(self._count)
        if (topic, partition) not in self._entries:
            self._reread_entries()
        return self._entries[topic, partition]


def store_next_sequence(slab: Slab, entry_at: int, sequence: int, epoch: int) -> None:
    """Store a partition's next sequence number and epoch in one instruction; `entry_at` is a file offset."""
    slab.longs[(entry_at + lay.PARTITION_NEXT_SEQUENCE) >> 3] = sequence | (epoch & 0xFFFFFFFF) << 32
