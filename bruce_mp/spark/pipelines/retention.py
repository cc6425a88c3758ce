"""Warn of messages with timestamps older than their topic's retention, because Kafka may delete them at once."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from bruce_mp.spark.kafka_admin import UNLIMITED, retention_ms_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

    from bruce_mp.spark.pipelines.progress import Progress

__all__ = ["RetentionCheck"]

_DAY_MS: Final = 86_400_000
_HOUR_MS: Final = 3_600_000
_DEFAULT_RETENTION_MS: Final = 7 * _DAY_MS
"""Kafka's default of `retention.ms`, for topics of unknown configuration."""


@dataclass
class RetentionCheck:
    """A check of timestamps against the retention of topics.

    `kafka` are options of Spark's Kafka source, with which the check asks the brokers for the retention of a topic.
    None: the check uses Kafka's default.
    """

    spark: SparkSession
    kafka: Mapping[str, str] | None = None
    _has_warned: bool = False

    def warn_once(self, oldest_times: Mapping[str, int], progress: Progress) -> None:
        """Show the text of `warning`, if any, unless this check has shown a warning before."""
        text = None if self._has_warned else self.warning(oldest_times)
        if text is not None:
            self._has_warned = True
            progress.show_line(text)

    def warning(self, oldest_times: Mapping[str, int]) -> str | None:
        """Return a warning about the first topic with messages older than its retention; None if no topic has any.

        `oldest_times` has the oldest timestamp (ms since the epoch) by topic; topic "" stands for several topics.
        """
        now_ms = time.time_ns() // 1_000_000
        for topic, time_ms in sorted(oldest_times.items()):
            age_ms = now_ms - time_ms
            # None: the brokers did not answer, or are not asked.
            answer_ms = retention_ms_of(self.spark, self.kafka, topic) if self.kafka and topic and age_ms > 0 else None
            retention_ms = _DEFAULT_RETENTION_MS if answer_ms is None else answer_ms
            if retention_ms != UNLIMITED and age_ms > retention_ms:
                return _warning(topic, age_ms, answer_ms) + (_advice(topic, self.kafka) if answer_ms is None else "")
        return None


def _warning(topic: str, age_ms: int, answer_ms: int | None) -> str:
    """Return the warning; `answer_ms` is the brokers' retention for the topic, or None."""
    limit = (
        "Kafka's default retention of 7 days" if answer_ms is None else f"its retention.ms of {_format_age(answer_ms)}"
    )
    subject = f"timestamps of topic {topic}" if topic else "timestamps"
    return (
        f"WARNING: {subject} are up to {_format_age(age_ms)} old, more than {limit}: "
        "Kafka may delete these messages at once. Raise the topic's retention.ms first, or set its "
        "message.timestamp.type to LogAppendTime."
    )


def _advice(topic: str, kafka: Mapping[str, str] | None) -> str:
    """Return why the check used Kafka's default, or how to let it use the topic's own retention."""
    if kafka is None:
        return " With --bootstrap, the topic's own retention is used instead."
    if not topic:
        return " The rows have several topics: --dry-run compares those of each topic with its retention."
    return " The brokers did not answer with the retention of the topic."


def _format_age(ms: int) -> str:
    return f"{ms // _DAY_MS:,} days" if ms >= 2 * _DAY_MS else f"{ms / _HOUR_MS:,.1f} h"
