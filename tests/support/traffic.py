"""Traffic that can be checked: senders in separate processes, and a comparison message by message.

A sender's messages follow from its number and a seed, so the checker computes every byte itself: message i of sender s
has the value `s:i:` and filler; `messages_of` chooses topic and key.

`compare` allows missing and repeated messages and names them; `assert_all_there` does not. Both assert that no message
is changed, invented or out of order. Order holds per sender and partition, separately for AnyPartition and PartitionKey
messages. While a partition has no leader, another may replace it, and messages of the two may pass each other. In a
topic where this may have happened, order holds only among messages whose keys map to the same partition for each
partition count that the topic has had. Only each message's first record counts, because at-least-once delivery may
repeat a batch later.
"""

from __future__ import annotations

import hashlib
import random
import sys
from collections import Counter
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from bruce_mp.client import DatagramClient
from support import processes

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Collection, Iterator, Mapping

    from bruce_mp.client.base import Client
    from bruce_mp.telemetry.books import Books
    from support.daemon import Daemon

__all__ = [
    "Account",
    "Load",
    "Message",
    "Name",
    "Seen",
    "assert_all_there",
    "compare",
    "deliver",
    "messages_of",
    "run_senders",
    "send_all",
    "send_message",
    "start_senders",
]

FILLER: Final = random.Random(7).randbytes(128 * 1024)
EPOCH_MS: Final = 1_700_000_000_000


@dataclass(frozen=True, slots=True)
class Load:
    """The load of the senders.  `keyed` is the share of PartitionKey messages in percent."""

    topics: tuple[str, ...]
    senders: int
    messages: int
    smallest: int = 10
    largest: int = 2000
    keyed: int = 30
    seed: int = 1

    @property
    def total(self) -> int:
        return self.senders * self.messages


class Message(NamedTuple):
    """One message of a load."""

    topic: str
    key: bytes
    value: bytes
    partition_key: int | None
    timestamp_ms: int


class Name(NamedTuple):
    """The sender and number of a message."""

    sender: int
    number: int

    @classmethod
    def of(cls, value: bytes | None) -> Name:
        """Return the name in a value."""
        assert value is not None
        sender, number = value.split(b":", 2)[:2]
        return cls(int(sender), int(number))


class Seen(NamedTuple):
    """A record as it was read back."""

    partition: int
    key: bytes | None
    value: bytes | None
    timestamp_ms: int


def messages_of(load: Load, sender: int) -> Iterator[Message]:
    """Yield the messages of a sender, in order."""
    rng = random.Random(load.seed * 1000 + sender)
    for number in range(load.messages):
        # Sizes spread over magnitudes: most small, some large, both ends present.
        size = int(load.smallest * (load.largest / load.smallest) ** rng.random())
        head = b"%d:%d:" % (sender, number)
        at = rng.randrange(1024)
        yield Message(
            topic=load.topics[rng.randrange(len(load.topics))],
            key=b"" if rng.random() < 0.5 else b"k%d" % rng.randrange(100),
            value=head + FILLER[at : at + max(0, size - len(head))],
            partition_key=rng.randrange(-(1 << 31), 1 << 32) if rng.randrange(100) < load.keyed else None,
            timestamp_ms=EPOCH_MS + number,
        )


def send_all(load: Load, sender: int, path: Path) -> None:
    """Send the messages of a sender."""
    with DatagramClient(str(path), timeout=60) as client:
        for message in messages_of(load, sender):
            send_message(client, message)


def send_message(client: Client, message: Message) -> None:
    """Send a message of a load."""
    topic, key, value, partition_key, timestamp_ms = message
    client.send(topic, value, key, partition_key, timestamp_ms)


def start_senders(load: Load, path: Path) -> list[subprocess.Popen[bytes]]:
    """Start a process for each sender; the caller waits for them."""
    encoded = msgspec.json.encode(load).decode()
    return [processes.spawn_sender("traffic", str(path), str(sender), encoded) for sender in range(load.senders)]


def run_senders(load: Load, path: Path, timeout: float = 60) -> None:
    """Send a load from a process for each sender."""
    for sender in start_senders(load, path):
        assert sender.wait(timeout) == 0


def deliver(load: Load, daemon: Daemon, timeout: float = 60) -> Books:
    """Send a load from processes, and return the books once the daemon has delivered all that it received."""
    before = daemon.books()
    run_senders(load, daemon.socket_path, timeout)
    books = daemon.wait_settled(before.received + load.total, timeout)
    assert (books.received, books.delivered) == (before.received + load.total, before.delivered + load.total)
    return books


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


class _Sent(NamedTuple):
    topic: str
    key: bytes
    digest: bytes
    timestamp_ms: int
    homes: tuple[int, ...] | None
    """The partitions of its key in topics with replaced partitions; None for an AnyPartition message."""


def assert_all_there(load: Load, records: Mapping[str, list[Seen]], *, partitions: int = 1) -> None:
    """Compare the consumed records with the sent messages: none lost, none doubled, nothing changed, in order.

    If some of the topics' `partitions` have no leader for a time, others replace them.
    """
    sent = dict.fromkeys(range(load.senders), load.messages)
    account = compare(load, sent, records, dict.fromkeys(load.topics, (partitions,)))
    assert not account.repeated, f"{account.repeated_names} were read twice."
    missing = sorted(account.missing)
    assert not missing, f"{len(missing)} of {load.total} messages were not read, such as {missing[:5]}."


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
            key, counts = message.partition_key, standing_in.get(message.topic, ())
            homes = None if key is None else tuple((key & 0xFFFFFFFF) % partitions for partitions in counts)
            digest = _digest_of(message.value)
            yield Name(sender, number), _Sent(message.topic, message.key, digest, message.timestamp_ms, homes)


def _as_sent(seen: Seen, topic: str, homes: tuple[int, ...] | None) -> _Sent:
    return _Sent(topic, seen.key or b"", _digest_of(seen.value or b""), seen.timestamp_ms, homes)


def _digest_of(value: bytes) -> bytes:
    """Return a short form of a value, for a comparison of many."""
    return hashlib.blake2b(value, digest_size=16).digest()


def _main(path: str, sender: str, load: str) -> None:
    send_all(msgspec.json.decode(load, type=Load), int(sender), Path(path))


if __name__ == "__main__":
    _main(*sys.argv[1:])
