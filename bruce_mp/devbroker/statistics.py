"""Counters of the broker: the ground truth for a producer's own counters in tests."""

from __future__ import annotations

from collections import Counter

import msgspec

__all__ = ["Statistics"]


class Statistics(msgspec.Struct, kw_only=True):
    """Counters since the start. `records` and `bytes` count appended data without duplicates."""

    connections: int = 0
    requests: dict[str, int] = msgspec.field(default_factory=Counter)
    """Requests by name of the API, with or without faults."""
    client_ids: dict[str, int] = msgspec.field(default_factory=Counter)
    """Requests by the client's id."""
    timeouts_ms: dict[int, int] = msgspec.field(default_factory=Counter)
    """Produce requests by their time limit for the acks."""
    batches: int = 0
    records: int = 0
    bytes: int = 0
    duplicates: int = 0
    """Duplicate batches: acknowledged, not appended."""
    sequence_errors: int = 0
    """Batches refused with OUT_OF_ORDER_SEQUENCE_NUMBER (45) or INVALID_PRODUCER_EPOCH (47)."""
    errors: dict[int, int] = msgspec.field(default_factory=Counter)
    """Produce responses of partitions by error code, scripted or not."""
    faults: dict[str, int] = msgspec.field(default_factory=Counter)
    """Triggered faults, by action."""
    dropped_batches: int = 0
    """Batches that retention removed."""
    held_bytes: int = 0
    """Current size of all logs, including the cost of the batch objects."""
