"""Traffic that can be checked: senders in separate processes, and a comparison message by message.

A sender's messages follow from its number and a seed, so the checker computes every byte itself: message i of sender s
has the value `s:i:` and filler; `messages_of` chooses topic and key.
"""

from __future__ import annotations

import hashlib
import os
import random
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from bruce_mp.client import DatagramClient
from support import processes

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from bruce_mp.client.base import Client

__all__ = [
    "Load",
    "Message",
    "Name",
    "Seen",
    "assert_all_there",
    "digest_of",
    "home_of",
    "homes_of",
    "messages_of",
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
    client.send(
        message.topic,
        message.value,
        key=message.key,
        partition_key=message.partition_key,
        timestamp_ms=message.timestamp_ms,
    )


def start_senders(load: Load, path: Path) -> list[subprocess.Popen[bytes]]:
    """Start a process for each sender; the caller waits for them."""
    here = Path(__file__).resolve()
    arguments = [
        ",".join(load.topics),
        *map(str, (load.senders, load.messages, load.smallest, load.largest, load.keyed)),
    ]
    env = {**os.environ, "PYTHONPATH": str(here.parents[1])}
    return [
        processes.spawn(
            [sys.executable, str(here), str(path), str(sender), *arguments, str(load.seed)],
            output=sys.stderr.fileno(),
            env=env,
        )
        for sender in range(load.senders)
    ]


def home_of(message: Message, partitions: int) -> int | None:
    """Return the partition that a key names in a topic of this size; None for an AnyPartition message."""
    homes = homes_of(message, (partitions,))
    return None if homes is None else homes[0]


def homes_of(message: Message, counts: Iterable[int]) -> tuple[int, ...] | None:
    """Return the partition that a key names for each number of partitions; None for an AnyPartition message."""
    if message.partition_key is None:
        return None
    return tuple((message.partition_key & 0xFFFFFFFF) % count for count in counts)


def assert_all_there(load: Load, records: Mapping[str, Iterable[Seen]], *, partitions: int = 1) -> None:
    """Compare the consumed records with the sent messages: none lost, none doubled, nothing changed, in order.

    `records` has for each topic the records of all partitions, each partition's in order of offset.  The order holds
    per sender, partition and kind of message: PartitionKey messages may pass AnyPartition messages.  If some of the
    topics' `partitions` have no leader for a time, others replace them; then the order holds for each partition that
    keys name.
    """
    # Digests, because a large load does not fit in memory twice.
    sent = {
        Name(sender, number): message._replace(value=digest_of(message.value))
        for sender in range(load.senders)
        for number, message in enumerate(messages_of(load, sender))
    }
    last: dict[tuple[str, int, int, int | None], int] = {}
    read: set[Name] = set()
    for topic, of_topic in records.items():
        for seen in of_topic:
            name = Name.of(seen.value)
            message = sent[name]
            assert name not in read, f"{name} was read twice."
            read.add(name)
            assert _agrees(topic, seen, message), f"{seen} is not what was sent: {message}"
            stream = (
                topic,
                seen.partition,
                name.sender,
                home_of(message, partitions),
            )  # messages that keep their order
            assert last.get(stream, -1) < name.number, f"{topic}-{seen.partition}: {name} is out of order."
            last[stream] = name.number
    missing = sorted(sent.keys() - read)
    assert not missing, f"{len(missing)} of {len(sent)} messages were not read, such as {missing[:5]}."


def digest_of(value: bytes) -> bytes:
    """Return a short form of a value, for a comparison of many."""
    return hashlib.blake2b(value, digest_size=16).digest()


def _agrees(topic: str, seen: Seen, message: Message) -> bool:
    found = (topic, seen.key or b"", digest_of(seen.value or b""), seen.timestamp_ms)
    return found == (message.topic, message.key, message.value, message.timestamp_ms)


def _main(arguments: Sequence[str]) -> None:
    path, sender, topics, *numbers = arguments
    senders, messages, smallest, largest, keyed, seed = map(int, numbers)
    load = Load(tuple(topics.split(",")), senders, messages, smallest, largest, keyed, seed)
    send_all(load, int(sender), Path(path))


if __name__ == "__main__":
    _main(sys.argv[1:])
