"""Look up the rules for a topic in the configuration, without side effects.

Clients send topics as bytes, the configuration has text. A topic that is not UTF-8 cannot be configured by name and
gets the rule for unlisted topics.
"""

from __future__ import annotations

from enum import Enum, unique
from typing import TYPE_CHECKING, Final, NamedTuple

from bruce_mp.config.sections import BatchLimits, CompressionConfig
from bruce_mp.config.sizes import KIB

if TYPE_CHECKING:
    from bruce_mp.config.inputs import TimestampPolicy, Timestamps
    from bruce_mp.config.sections import (
        Batching,
        Compression,
        DefaultBatching,
        PartitionerName,
        PartitionerSection,
        RateLimit,
        RateLimitConfig,
        TopicRule,
        TopicShare,
    )

__all__ = [
    "NO_COMPRESSION",
    "UNBATCHED",
    "BatchingKind",
    "TopicBatching",
    "alpha_for",
    "batching_for",
    "compression_for",
    "partitioner_for",
    "rate_limit_for",
    "timestamp_policy_for",
    "used_compressions",
]

BUILT_IN_LIMITS: Final = {"standard": BatchLimits(time_ms=100, bytes=256 * KIB)}
"""Limits that a rule can name without a definition; limits of `batching.configs` with the same name take precedence."""

NO_COMPRESSION: Final = CompressionConfig(type="none")


@unique
class BatchingKind(Enum):
    """How a topic's messages are batched: alone, together with other topics, or not at all."""

    PER_TOPIC = "per_topic"
    COMBINED = "combined"
    NONE = "none"


class TopicBatching(NamedTuple):
    """The batching of one topic; a batch is complete when it reaches the first of the limits."""

    kind: BatchingKind
    limits: BatchLimits


UNBATCHED: Final = TopicBatching(BatchingKind.NONE, BatchLimits(messages=1))


def find_limits(batching: Batching, name: str | None) -> BatchLimits | None:
    """Return the limits with this name; None if the name is not known, or None."""
    return batching.configs.get(name or "") or BUILT_IN_LIMITS.get(name or "")


def batching_for(batching: Batching, topic: bytes) -> TopicBatching:
    """Return the batching by the topic's own rule, else by the rule of unlisted topics."""
    return _batching_of_rule(batching, batching.topics.get(_decode_topic(topic), batching.default))


def compression_for(compression: Compression, topic: bytes) -> CompressionConfig:
    """Return the topic's own config, else the config of unlisted topics, else no compression."""
    name = compression.topics.get(_decode_topic(topic), compression.default)
    return NO_COMPRESSION if name is None else compression.configs[name]


def used_compressions(compression: Compression) -> list[CompressionConfig]:
    """Return the configs that at least one topic uses."""
    names = {compression.default, *compression.topics.values()}
    return [config for name, config in compression.configs.items() if name in names]


def partitioner_for(partitioner: PartitionerSection, topic: bytes) -> PartitionerName:
    """Return the topic's own partitioner, else that of unlisted topics."""
    return partitioner.topics.get(_decode_topic(topic), partitioner.default)


def rate_limit_for(rate_limit: RateLimit, topic: bytes) -> RateLimitConfig | None:
    """Return the topic's own limit, else the limit of unlisted topics, else None."""
    name = rate_limit.topics.get(_decode_topic(topic), rate_limit.default)
    return None if name is None else rate_limit.configs[name]


def timestamp_policy_for(timestamps: Timestamps, topic: bytes, input_policy: TimestampPolicy | None) -> TimestampPolicy:
    """Return the topic's own policy, else that of its input, else the general one."""
    return timestamps.topics.get(_decode_topic(topic)) or input_policy or timestamps.policy


def alpha_for(topic_share: TopicShare, topic: bytes) -> int:
    """Return the topic's own factor, else the factor of unlisted topics."""
    return topic_share.topics.get(_decode_topic(topic), topic_share).alpha  # `topic_share.alpha` is for unlisted topics


def _batching_of_rule(batching: Batching, rule: TopicRule | DefaultBatching) -> TopicBatching:
    kind = BatchingKind(rule.action)
    if kind is BatchingKind.NONE or (kind is BatchingKind.COMBINED and not batching.combined.enable):
        return UNBATCHED
    limits = find_limits(batching, rule.config if kind is BatchingKind.PER_TOPIC else batching.combined.config)
    assert limits is not None  # checks.py guarantees it
    return TopicBatching(kind, limits)


def _decode_topic(topic: bytes) -> str:
    return topic.decode("utf-8", "surrogateescape")
