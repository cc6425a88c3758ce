"""The datagrams that are sent: text as in log lines, AnyPartition, topic after topic.

They follow from the case alone, so that two runs send the same.
"""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING, Final

from bruce_mp.protocol.client_wire import encode_any_partition

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

__all__ = ["datagrams", "write_datagrams"]

FILE_BYTES: Final = 1 << 20
"""Small enough for the sender to have it in its cache: reading it must not be what is measured."""
MOST: Final = 1000
WORDS: Final = (
    "GET POST PUT 200 304 404 500 user session=4711 order item checkout cart latency_ms=17 host=web-03 ok failed retry "
    "path=/api/v1/search path=/static/app.js cache=hit cache=miss region=eu-west-1 status=active amount=12.90 EUR"
).split()


def datagrams(topics: Sequence[str], size: int) -> list[bytes]:
    """Datagrams of exactly `size` bytes, as many for each topic."""
    rng = random.Random(size)
    now_ms = time.time_ns() // 1_000_000
    rounds = max(1, min(MOST, FILE_BYTES // size) // len(topics))
    return [_datagram(rng, topic, size, now_ms) for _ in range(rounds) for topic in topics]


def _datagram(rng: random.Random, topic: str, size: int, now_ms: int) -> bytes:
    overhead = len(encode_any_partition(topic, b"", timestamp_ms=now_ms))
    text = " ".join(rng.choices(WORDS, k=size // 3 + 1)).encode()
    return encode_any_partition(topic, text[: size - overhead], timestamp_ms=now_ms)


def write_datagrams(path: Path, topics: Sequence[str], size: int) -> None:
    """Write them back to back: each begins with its own size."""
    path.write_bytes(b"".join(datagrams(topics, size)))
