"""The messages that are sent: text as in log lines, AnyPartition or PartitionKey, topic after topic.

The messages depend on the case alone, so two runs send the same.
"""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING, Final

from bruce_mp.protocol.client.messages import encode

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

__all__ = ["datagrams", "lines", "write_datagrams", "write_text"]

FILE_BYTES: Final = 1 << 20
"""Small enough for the sender's cache, so that reading the file does not dominate the cost."""
MOST: Final = 1000
SIZE_BYTES: Final = 4
MOST_KEYED: Final = 2000
"""One for each partition of the largest case."""
WORDS: Final = (
    "GET POST PUT 200 304 404 500 user session=4711 order item checkout cart latency_ms=17 host=web-03 ok failed retry "
    "path=/api/v1/search path=/static/app.js cache=hit cache=miss region=eu-west-1 status=active amount=12.90 EUR"
).split()


def datagrams(topics: Sequence[str], size: int, *, keyed: bool = False, largest: int = 0) -> list[bytes]:
    """Return datagrams of exactly `size` bytes, equally many for each topic; each partition key is unique.

    With `largest`, sizes from `size` to `largest` are equally frequent.
    """
    rng = random.Random(size)
    now_ms = time.time_ns() // 1_000_000
    largest = max(size, largest)
    most = MOST_KEYED if keyed else max(1, min(MOST, FILE_BYTES // ((size + largest) // 2)))
    rounds = max(1, most // len(topics))
    return [
        _datagram(rng, topic, rng.randint(size, largest) if largest > size else size, now_ms, number if keyed else None)
        for number in range(rounds)
        for topic in topics
    ]


def _datagram(rng: random.Random, topic: str, size: int, now_ms: int, key: int | None) -> bytes:
    overhead = len(encode(topic, b"", None, key, timestamp_ms=now_ms))
    return encode(topic, _text(rng, size - overhead), None, key, timestamp_ms=now_ms)


def _text(rng: random.Random, size: int) -> bytes:
    return " ".join(rng.choices(WORDS, k=size // 3 + 1)).encode()[:size]


def write_datagrams(path: Path, topics: Sequence[str], size: int, *, keyed: bool = False, largest: int = 0) -> None:
    """Write the datagrams back to back: each begins with its size."""
    path.write_bytes(b"".join(datagrams(topics, size, keyed=keyed, largest=largest)))


def lines(size: int) -> list[bytes]:
    """Return lines of that size without framing, for peers that do not speak our protocol."""
    rng = random.Random(size)
    return [_text(rng, size) for _ in range(max(1, min(MOST, FILE_BYTES // size)))]


def write_text(path: Path, size: int, head: bytes) -> None:
    """Write lines of `size` bytes including `head`, each after its size, as our sender reads them."""
    texts = [head + line for line in lines(size - len(head))]
    path.write_bytes(b"".join((SIZE_BYTES + len(text)).to_bytes(SIZE_BYTES, "big") + text for text in texts))
