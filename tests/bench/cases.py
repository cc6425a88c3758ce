"""What is measured: one row a case.

A case is a load of datagrams and the settings of the daemon that has to carry it.  Cases with the same settings share
a daemon.  The plain receiver gets the same load from the same sender just before.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["CASES", "IDLE", "PARTITIONS", "TOPICS", "Case"]

TOPICS: Final = tuple(f"bench-{number}" for number in range(10))
PARTITIONS: Final = 4
IDLE: Final = "idle"
"""The name under which the idle daemon can be chosen like a case."""

COMBINED: Final[Mapping[str, object]] = {
    "batching.configs.bench.time_ms": 500,
    "batching.configs.bench.bytes": "64k",
    "batching.combined.config": "bench",
}
PER_TOPIC: Final[Mapping[str, object]] = {
    "batching.configs.bench.time_ms": 500,
    "batching.configs.bench.bytes": "64k",
    "batching.default.action": "per_topic",
    "batching.default.config": "bench",
}


@dataclass(frozen=True, slots=True)
class Case:
    """A load: `messages` datagrams of `size` bytes by `senders` processes; `rate` a second in all, 0 = flat out."""

    name: str
    size: int
    messages: int
    senders: int = 1
    rate: int = 0
    settings: Mapping[str, object] = field(default_factory=lambda: COMBINED)

    def shortened(self, share: int) -> Case:
        """The same with one `share`th of the messages."""
        return Case(self.name, self.size, self.messages // share, self.senders, self.rate, self.settings)


CASES: Final = (
    Case("100B", size=100, messages=200_000),
    Case("1KB", size=1024, messages=120_000),
    Case("10KB", size=10_240, messages=24_000),
    Case("100B-20k/s", size=100, messages=80_000, rate=20_000),
    Case("100B-2k/s", size=100, messages=8_000, rate=2_000),
    Case("100B-64-senders", size=100, messages=192_000, senders=64),
    Case("100B-per-topic", size=100, messages=200_000, settings=PER_TOPIC),
)
