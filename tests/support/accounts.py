"""Compare received with sent messages of endless senders, one by one.

Unlike `traffic.assert_all_there`, this comparison allows missing and repeated messages and names them. It asserts that
no message is changed, invented or out of order.

Order holds per sender and partition, separately for AnyPartition and PartitionKey messages. While a partition has no
leader, another may replace it, and messages of the two may pass each other. In a topic where this may have happened,
order holds only among messages whose keys map to the same partition for each partition count that the topic has had.
Only each message's first record counts, because at-least-once delivery may repeat a batch later.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from support.traffic import Name, Seen, digest_of, homes_of, messages_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping

    from support.traffic import Load

__all__ = ["Account", "Name", "compare"]


class _Sent(NamedTuple):
    topic: str
    key: bytes
    digest: bytes
    timestamp_ms: int
    homes: tuple[int, ...] | None
    """The partitions of its key in topics with replaced partitions; None for an AnyPartition message."""


@dataclass(slots=True)
class Account:
    """`read`: different messages; `repeated`: further records of them, by topic; `missing`: topics by name.

    `repeated_names` has the same records by name.
    """

    read: int = 0
    repeated: Counter[str] = field(default_factory=Counter)
    repeated_names: Counter[Name] = field(default_factory=Counter)
    missing: dict[Name, str] = field(default_factory=dict)

    def add(self, other: Account) -> None:
        """Add the account of another load."""
        self.read += other.read
        self.repeated += other.repeated
        self.repeated_names += other.repeated_names
        self.missing |= other.missing

    @property
    def missing_by_topic(self) -> Counter[str]:
        return Counter(self.missing.values())

    def first_missing(self, sender: int, sent: int) -> int:
        """Return the number of a sender's messages before the first missing one."""
        return min((name.number for name in self.missing if name.sender == sender), default=sent)


def compare(
    load: Load,
    sent: Mapping[int, int],
    records: Mapping[str, list[Seen]],
    standing_in: Mapping[str, Collection[int]],
    *,
    in_order: bool = True,
    unordered: Callable[[Name], bool] = lambda _: False,
) -> Account:
    """Compare; `sent` has each sender's number of messages, `records` each partition's records in order of offset.

    `standing_in` names topics with perhaps replaced partitions, and the partition counts that they have had. Without
    `in_order`, messages may pass each other; `unordered` ones may in any case.
    """
    messages = dict(_messages(load, sent, standing_in))
    read: set[Name] = set()
    account = Account()
    last: dict[tuple[str, int, int, tuple[int, ...] | None], int] = {}
    for topic, of_topic in records.items():
        for seen in of_topic:
            name = Name.of(seen.value)
            message = messages[name]
            assert _as_sent(seen, topic, message.homes) == message, f"{name} is not what was sent: {seen}"
            if name in read:
                account.repeated[topic] += 1
                account.repeated_names[name] += 1
                continue
            read.add(name)
            if unordered(name):
                continue
            stream = (topic, seen.partition, name.sender, message.homes)  # messages that keep their order
            before = last.get(stream, -1)
            assert before < name.number or not in_order, (
                f"{topic}-{seen.partition}: {name} came after {before}; {message}"
            )
            last[stream] = max(before, name.number)
    account.read = len(read)
    account.missing = {name: message.topic for name, message in messages.items() if name not in read}
    return account


def _messages(
    load: Load, sent: Mapping[int, int], standing_in: Mapping[str, Collection[int]]
) -> Iterator[tuple[Name, _Sent]]:
    for sender, count in sent.items():
        for number, message in enumerate(islice(messages_of(load, sender), count)):
            homes = homes_of(message, standing_in.get(message.topic, ()))
            digest = digest_of(message.value)
            yield Name(sender, number), _Sent(message.topic, message.key, digest, message.timestamp_ms, homes)


def _as_sent(seen: Seen, topic: str, homes: tuple[int, ...] | None) -> _Sent:
    return _Sent(topic, seen.key or b"", digest_of(seen.value or b""), seen.timestamp_ms, homes)
