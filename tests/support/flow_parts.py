"""Parts of `flow.World`: a config, memory with stores that can kill, and a counting reporter."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final

from bruce_mp.config.model import Config
from bruce_mp.config.sections import Batching, DefaultBatching, Delivery, Kafka, PartitionerSection, RateLimit
from bruce_mp.slab import layout as lay
from bruce_mp.slab.runs import segment_records
from support.checked_words import CheckedWords
from support.fake_broker import SentRecord

if TYPE_CHECKING:
    from collections.abc import Iterable

    from bruce_mp.errors import DiscardReason
    from bruce_mp.slab.file import Slab
    from bruce_mp.slab.runs import Segment

__all__ = ["CrashingWords", "FakeReporter", "SimulatedCrashError", "quick_config", "records_of"]

QUICK: Final = Delivery(min_pause_delay_ms=10, pause_rate_limit_initial_ms=10, pause_rate_limit_max_double=2)


def quick_config(
    *,
    delivery: Delivery = QUICK,
    action: Any = "combined",
    batching: Batching | None = None,
    acks: Any = -1,
    rate_limit: RateLimit | None = None,
    partitioner: PartitionerSection | None = None,
) -> Config:
    """Return a configuration with short pauses."""
    default = DefaultBatching(action=action, config="standard" if action == "per_topic" else None)
    return Config(
        kafka=Kafka(bootstrap_servers=("broker:9092",), required_acks=acks),
        delivery=delivery,
        batching=batching or Batching(default=default),
        rate_limit=rate_limit or RateLimit(),
        partitioner=partitioner or PartitionerSection(),
    )


class FakeReporter:
    """A reporter that counts the reported discards."""

    def __init__(self) -> None:
        self.discarded: dict[DiscardReason, int] = defaultdict(int)
        self.duplicates = 0
        self.has_pending = self.keeps_copies = False
        self.sample_size = 10

    def record(self, reason: DiscardReason, *_: object, count: int = 1, **__: object) -> None:
        self.discarded[reason] += count

    def copy_increments(self) -> dict[int, int]:
        return {}

    def queue_copies(self) -> None:
        pass

    def record_oversized(self, _topic: bytes, _values: list[bytes]) -> None:
        pass

    def record_duplicates(self, _topic: bytes, count: int, _least: int, _most: int) -> None:
        self.duplicates += count


class SimulatedCrashError(BaseException):
    """A process was killed at a store; a BaseException, so that no handler catches it."""


class CrashingWords(CheckedWords):
    """The slab's words, which kill a process at a chosen store."""

    def __init__(self, slab: Slab) -> None:
        super().__init__(slab)
        self.left: int | None = None
        """Stores before the one that kills the process; None for no kill."""
        self.stores = 0

    def __setitem__(self, at: Any, value: Any) -> None:
        self.tick()
        super().__setitem__(at, value)

    def tick(self) -> None:
        """Count a store, and kill a doomed process before it."""
        self.stores += 1
        if self.left is not None:
            if self.left == 0:
                self.left = None
                raise SimulatedCrashError
            self.left -= 1


def records_of(slab: Slab, segments: Iterable[Segment]) -> tuple[SentRecord, ...]:
    """Return the records of segments as a broker sees them."""
    return tuple(
        SentRecord(
            record.arrival, record.partition_key if record.flags & lay.FLAG_PARTITION_KEY else None, record.timestamp
        )
        for segment in segments
        for _, record in segment_records(slab, segment)
    )
