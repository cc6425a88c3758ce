"""The topic table and the partition table.

The router is the only writer of both, except for a partition's next sequence number, which belongs to the dispatcher
that owns the partition, and a topic's refusal, which any dispatcher notes.  An entry is complete before the count that
makes it visible is stored.  Entries are never removed: a topic keeps its number as long as the slab lives.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bruce_mp.slab import layout as lay

if TYPE_CHECKING:
    from bruce_mp.slab.file import Slab

__all__ = ["PartitionTable", "TopicTable"]


class TopicTable:
    """Numbers of topics, and how many partitions each has.  Every process reads it, the router adds to it."""

    def __init__(self, slab: Slab) -> None:
        self._slab = slab
        self._ids: dict[bytes, int] = {}
        self._names: list[bytes] = [b""]
        self.refresh()

    def refresh(self) -> None:
        """Take in the entries that came since the last look."""
        for topic in range(len(self._names), self._slab.words[lay.SUPER_TOPIC_COUNT >> 2]):
            at = self._at(topic)
            length = min(self._slab.words[(at + lay.TOPIC_NAME_LENGTH) >> 2], lay.TOPIC_NAME_MAX)
            name = bytes(self._slab.view[at + lay.TOPIC_NAME : at + lay.TOPIC_NAME + length])
            self._names.append(name)
            self._ids[name] = topic

    def _at(self, topic: int) -> int:
        return self._slab.geometry.topics_at + topic * lay.TOPIC_ENTRY

    @property
    def version(self) -> int:
        """Goes up with every change of the table: somebody who saw it unchanged need not look again."""
        return self._slab.words[lay.SUPER_TOPICS_VERSION >> 2]

    def id_of(self, name: bytes) -> int:
        """The topic's number, 0 if it has none."""
        return self._ids.get(name, 0)

    def name_of(self, topic: int) -> bytes:
        """The topic's name.  Raises KeyError for a number that was never given."""
        if not self.has(topic):
            raise KeyError(topic)
        return self._names[topic]

    @property
    def room(self) -> int:
        """How many more topics can be numbered."""
        return self._slab.geometry.topics - len(self._names)

    def has(self, topic: int) -> bool:
        """Whether the number was given to a topic."""
        if topic >= len(self._names):
            self.refresh()
        return 0 < topic < len(self._names)

    def known(self) -> dict[bytes, int]:
        """All topics that were ever numbered, and how many partitions each has."""
        return {name: self.partitions_of(topic) for name, topic in self._ids.items()}

    def partitions_of(self, topic: int) -> int:
        """How many partitions the router has seen of the topic."""
        return self._slab.words[(self._at(topic) + lay.TOPIC_PARTITIONS) >> 2]

    def refusals(self) -> dict[bytes, int]:
        """Topics for which the last answer of a broker was a fatal error, and its code."""
        self.refresh()
        codes = {name: self.refusal_of(topic) for name, topic in self._ids.items()}
        return {name: code for name, code in codes.items() if code}

    def refusal_of(self, topic: int) -> int:
        """The code of the fatal error that was the last answer for a topic, 0 if it was none."""
        return self._slab.words[(self._at(topic) + lay.TOPIC_REFUSAL) >> 2]

    def note_refusal(self, topic: int, code: int) -> None:
        """A broker's answer for a topic was a fatal error; 0: it was not (dispatchers only, the last one counts)."""
        self._slab.words[(self._at(topic) + lay.TOPIC_REFUSAL) >> 2] = code

    def add(self, name: bytes, partitions: int) -> int:
        """Number a topic (router only) or note its new partition count; 0 = table full or name too long."""
        topic = self.id_of(name) or self._append(name)
        if topic and self.partitions_of(topic) != partitions:
            self._slab.words[(self._at(topic) + lay.TOPIC_PARTITIONS) >> 2] = partitions
            self._slab.words[lay.SUPER_TOPICS_VERSION >> 2] += 1
        return topic

    def _append(self, name: bytes) -> int:
        topic = len(self._names)
        if topic >= self._slab.geometry.topics or len(name) > lay.TOPIC_NAME_MAX:
            return 0
        at = self._at(topic)
        self._slab.words[(at + lay.TOPIC_PARTITIONS) >> 2] = 0
        self._slab.words[(at + lay.TOPIC_NAME_LENGTH) >> 2] = len(name)
        self._slab.view[at + lay.TOPIC_NAME : at + lay.TOPIC_NAME + len(name)] = name
        self._slab.words[lay.SUPER_TOPIC_COUNT >> 2] = topic + 1
        self.refresh()
        return topic


class PartitionTable:
    """The next sequence number of each partition, with the producer epoch that it belongs to."""

    def __init__(self, slab: Slab) -> None:
        self._slab = slab
        self._entries: dict[tuple[int, int], int] = {}
        self._seen = 0

    def _refresh(self) -> None:
        count = self._slab.words[lay.SUPER_PARTITION_COUNT >> 2]
        for index in range(self._seen, count):
            topic, partition, _, _ = lay.PARTITION.unpack_from(self._slab.view, self._at(index))
            self._entries[topic, partition] = index
        self._seen = count

    def _at(self, index: int) -> int:
        return self._slab.geometry.partitions_at + index * lay.PARTITION_ENTRY

    def _find(self, topic: int, partition: int) -> int | None:
        if (topic, partition) not in self._entries:
            self._refresh()
        return self._entries.get((topic, partition))

    def ensure(self, topic: int, partition: int) -> bool:
        """Make the entry of a partition if there is none (router only); False when the table is full."""
        if self._find(topic, partition) is not None:
            return True
        if self._seen >= self._slab.geometry.partitions:
            return False
        lay.PARTITION.pack_into(self._slab.view, self._at(self._seen), topic, partition, 0, 0)
        self._slab.words[lay.SUPER_PARTITION_COUNT >> 2] = self._seen + 1
        self._refresh()
        return True

    def current(self, topic: int, partition: int) -> tuple[int, int]:
        """(producer epoch, next sequence number) of a partition.  Raises KeyError when it has no entry."""
        _, _, sequence, epoch = lay.PARTITION.unpack_from(self._slab.view, self._require(topic, partition))
        return epoch, sequence

    def store_next_sequence(self, topic: int, partition: int, sequence: int, epoch: int) -> None:
        """Store it, with its epoch, in one instruction (the partition's dispatcher only)."""
        at = self._require(topic, partition) + lay.PARTITION_NEXT_SEQUENCE
        self._slab.longs[at >> 3] = sequence | (epoch & 0xFFFFFFFF) << 32

    def reset(self) -> None:
        """Begin at 0 everywhere: a new producer id is taken (router only, while nobody numbers)."""
        self._refresh()
        for topic, partition in self._entries:
            self.store_next_sequence(topic, partition, 0, 0)

    def _require(self, topic: int, partition: int) -> int:
        index = self._find(topic, partition)
        if index is None:
            raise KeyError((topic, partition))
        return self._at(index)
