"""Warn of messages with timestamps that are older than their topic keeps messages: Kafka deletes them at once."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from bruce_mp.spark.kafka_admin import retention_ms_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

__all__ = ["RetentionCheck"]

_DAY_MS: Final = 86_400_000
_HOUR_MS: Final = 3_600_000
_DEFAULT_MS: Final = 7 * _DAY_MS
"""Kafka's default, for topics of unknown configuration."""
UNLIMITED: Final = -1


@dataclass(frozen=True)
class RetentionCheck:
    """A check by the topics' configurations; without `kafka`, options of Spark's Kafka source, by Kafka's default."""

    spark: SparkSession
    kafka: Mapping[str, str] | None = None

    def warning(self, oldest_ms: Mapping[str, int]) -> str | None:
        """Return a warning about the first topic with older messages; `oldest_ms` has each topic's oldest timestamp."""
        now_ms = time.time_ns() // 1_000_000
        for topic, oldest in sorted(oldest_ms.items()):
            age = now_ms - oldest
            kept = retention_ms_of(self.spark, self.kafka, topic) if self.kafka and topic and age > 0 else None
            if kept != UNLIMITED and age > (_DEFAULT_MS if kept is None else kept):
                return _text(topic, age, kept) + (_advice(topic, self.kafka) if kept is None else "")
        return None


def _text(topic: str, age: int, kept: int | None) -> str:
    limit = "Kafka's default retention of 7 days" if kept is None else f"its retention.ms of {_age(kept)}"
    return (
        f"WARNING: timestamps {f'of topic {topic} ' if topic else ''}are up to {_age(age)} old, more than {limit}: "
        "Kafka may delete these messages at once. Raise the topic's retention.ms first, or set its "
        "message.timestamp.type to LogAppendTime."
    )


def _advice(topic: str, kafka: Mapping[str, str] | None) -> str:
    """Return the reason for which the topic's own retention does not count, or the option for it."""
    if kafka is None:
        return " With --bootstrap the retention of the topic counts."
    if not topic:
        return " The rows have several topics: --dry-run compares those of each topic with its retention."
    return " The brokers did not tell the retention of the topic."


def _age(ms: int) -> str:
    return f"{ms // _DAY_MS:,} days" if ms >= 2 * _DAY_MS else f"{ms / _HOUR_MS:,.1f} h"
