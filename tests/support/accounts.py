"""What was read back against what endless senders sent: message by message.

Unlike `traffic.assert_all_there` this knows of messages that may be missing or be there twice, and says which.  What
may never happen, it asserts: a message that was changed, one that nobody sent, one out of order.

Order is order per sender, partition and kind of message (AnyPartition or PartitionKey), of each message's first record:
at-least-once delivery may repeat a batch later.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from support.traffic import Seen, digest_of, messages_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from support.traffic import Load

__all__ = ["Account", "Name", "compare"]


class Name(NamedTuple):
    """Which message of which sender."""

    sender: int
    number: int


class _Sent(NamedTuple):
    topic: str
    key: bytes
    digest: bytes
    timestamp_ms: int
    is_keyed: bool


@dataclass(slots=True)
class Account:
    """`read`: different messages; `repeated`: further records of them, by topic; `missing`: topics by name."""

    read: int = 0
    repeated: Counter[str] = field(default_factory=Counter)
    missing: dict[Name, str] = field(default_factory=dict)

    @property
    def missing_by_topic(self) -> Counter[str]:
        return Counter(self.missing.values())

    def first_missing(self, sender: int, sent: int) -> int:
        """How many messages of a sender were read before the first one that was not."""
        return min((name.number for name in self.missing if name.sender == sender), default=sent)


def compare(load: Load, sent: Mapping[int, int], records: Mapping[str, list[Seen]]) -> Account:
    """Compare; `sent` says how far each sender came, `records` has each partition's records in order of offset."""
    messages = dict(_messages(load, sent))
    read: set[Name] = set()
    account = Account()
    last: dict[tuple[str, int, int, bool], int] = {}
    for topic, some in records.items():
        for seen in some:
            name = _name(seen)
            message = messages[name]
            assert _as_sent(seen, topic, is_keyed=message.is_keyed) == message, f"{name} is not what was sent: {seen}"
            if name in read:
                account.repeated[topic] += 1
                continue
            read.add(name)
            place = (topic, seen.partition, name.sender, message.is_keyed)
            before = last.get(place, -1)
            assert before < name.number, f"{topic}-{seen.partition}: {name} came after {before}; {message}"
            last[place] = name.number
    account.read = len(read)
    account.missing = {name: message.topic for name, message in messages.items() if name not in read}
    return account


def _messages(load: Load, sent: Mapping[int, int]) -> Iterator[tuple[Name, _Sent]]:
    for sender, count in sent.items():
        for number, message in enumerate(islice(messages_of(load, sender), count)):
            is_keyed = message.partition_key is not None
            digest = digest_of(message.value)
            yield Name(sender, number), _Sent(message.topic, message.key, digest, message.timestamp_ms, is_keyed)


def _as_sent(seen: Seen, topic: str, *, is_keyed: bool) -> _Sent:
    return _Sent(topic, seen.key or b"", digest_of(seen.value or b""), seen.timestamp_ms, is_keyed)


def _name(seen: Seen) -> Name:
    assert seen.value is not None
    sender, number = seen.value.split(b":", 2)[:2]
    return Name(int(sender), int(number))
