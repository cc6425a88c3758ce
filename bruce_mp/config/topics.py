"""Which rules hold for a topic: pure look-ups in the configuration.

Topics come from clients as bytes and from the configuration as text; what is not UTF-8 cannot be configured by name and
gets the rule for unlisted topics.
"""

from __future__ import annotations

from enum import Enum, unique
from typing import TYPE_CHECKING, Final, NamedTuple

from bruce_mp.config.sections import BatchLimits, CompressionConfig
from bruce_mp.config.sizes import KIB

if TYPE_CHECKING:
    from bruce_mp.config.sections import (
        Batching,
        Compression,
        DefaultBatching,
        RateLimit,
        RateLimitConfig,
        TopicRule,
        TopicShare,
    )
    from bruce_mp.config.timestamps import TimestampPolicy, Timestamps

__all__ = [
    "NO_COMPRESSION",
    "UNBATCHED",
    "BatchingKind",
    "TopicBatching",
    "alpha_for",
    "batching_for",
    "compression_for",
    "compressions",
    "rate_limit_for",
    "timestamp_policy_for",
]

BUILT_IN_LIMITS: Final = {"standard": BatchLimits(time_ms=100, bytes=256 * KIB)}
"""So that a configuration without any batching is a good one; a config of the same name takes precedence."""

NO_COMPRESSION: Final = CompressionConfig(type="none")


@unique
class BatchingKind(Enum):
    """Where a topic's messages wait for company."""

    PER_TOPIC = "per_topic"
    COMBINED = "combined"
    NONE = "none"


class TopicBatching(NamedTuple):
    """How one topic is batched; a batch is complete when the first of the limits is reached."""

    kind: BatchingKind
    limits: BatchLimits


UNBATCHED: Final = TopicBatching(BatchingKind.NONE, BatchLimits(messages=1))


def limits_named(batching: Batching, name: str | None) -> BatchLimits | None:
    """The limits with this name, `None` if there are none."""
    return batching.configs.get(name or "") or BUILT_IN_LIMITS.get(name or "")


def batching_for(batching: Batching, topic: bytes) -> TopicBatching:
    """The topic's own rule, else that of unlisted topics."""
    return _apply(batching, batching.topics.get(_name(topic), batching.default))


def compression_for(compression: Compression, topic: bytes) -> CompressionConfig:
    """The topic's own config, else that of unlisted topics, else none."""
    name = compression.topics.get(_name(topic), compression.default)
    return NO_COMPRESSION if name is None else compression.configs[name]


def compressions(compression: Compression) -> list[CompressionConfig]:
    """The configs that some topic has."""
    names = {compression.default, *compression.topics.values()}
    return [config for name, config in compression.configs.items() if name in names]


def rate_limit_for(rate_limit: RateLimit, topic: bytes) -> RateLimitConfig | None:
    """The topic's own limit, else that of unlisted topics, else none."""
    name = rate_limit.topics.get(_name(topic), rate_limit.default)
    return None if name is None else rate_limit.configs[name]


def timestamp_policy_for(timestamps: Timestamps, topic: bytes, of_input: TimestampPolicy | None) -> TimestampPolicy:
    """The topic's own policy, else that of its input, else the general one."""
    return timestamps.topics.get(_name(topic)) or of_input or timestamps.policy


def alpha_for(share: TopicShare, topic: bytes) -> int:
    """The topic's own factor, else that of unlisted topics."""
    return share.topics.get(_name(topic), share).alpha


def _apply(batching: Batching, rule: TopicRule | DefaultBatching) -> TopicBatching:
    kind = BatchingKind(rule.action)
    if kind is BatchingKind.NONE or (kind is BatchingKind.COMBINED and not batching.combined.enable):
        return UNBATCHED
    limits = limits_named(batching, rule.config if kind is BatchingKind.PER_TOPIC else batching.combined.config)
    assert limits is not None  # checks.py has seen to it
    return TopicBatching(kind, limits)


def _name(topic: bytes) -> str:
    return topic.decode("utf-8", "surrogateescape")
