"""Counters of the broker. Tests compare them with the counters of a producer."""

from __future__ import annotations

from collections import Counter

import msgspec

__all__ = ["Statistics"]


class Statistics(msgspec.Struct, kw_only=True):
    """Counters since the broker's start. All except `held_bytes` only increase."""

    connections: int = 0
    """Number of accepted connections."""
    requests: dict[str, int] = msgspec.field(default_factory=Counter)
    """Number of requests for each name of an API, such as "Produce", also of requests that triggered faults."""
    client_ids: dict[str, int] = msgspec.field(default_factory=Counter)
    """Number of requests for each client id."""
    timeouts_ms: dict[int, int] = msgspec.field(default_factory=Counter)
    """Number of Produce requests for each value of the field `timeout_ms`, the time limit for acknowledgments."""
    batches: int = 0
    """Number of appended batches; like the next two counters, without duplicates."""
    records: int = 0
    """Number of appended records."""
    bytes: int = 0
    """Size of the appended batches."""
    duplicates: int = 0
    """Number of duplicate batches, which are acknowledged and not appended."""
    sequence_errors: int = 0
    """Number of batches refused with OUT_OF_ORDER_SEQUENCE_NUMBER (45) or INVALID_PRODUCER_EPOCH (47)."""
    errors: dict[int, int] = msgspec.field(default_factory=Counter)
    """Number of partitions in Produce responses for each error code, also for a code that a fault set."""
    faults: dict[str, int] = msgspec.field(default_factory=Counter)
    """Number of triggered faults for each action."""
    dropped_batches: int = 0
    """Number of batches that the memory limit removed."""
    held_bytes: int = 0
    """Present size of all logs in memory: their batches, and `BATCH_OVERHEAD` for each batch."""
