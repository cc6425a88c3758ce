"""Find the batching of a topic by its rule, and list the compression configs that topics use."""

from __future__ import annotations

from enum import Enum, unique
from typing import TYPE_CHECKING, Final, NamedTuple

from bruce_mp.config.sections import BatchLimits, CompressionConfig
from bruce_mp.config.sizes import KIB

if TYPE_CHECKING:
    from bruce_mp.config.sections import Batching, BatchingRule, Compression, DefaultBatching

__all__ = [
    "BUILT_IN_LIMITS",
    "NO_COMPRESSION",
    "UNBATCHED",
    "BatchingKind",
    "TopicBatching",
    "batching_of_rule",
    "find_limits",
    "used_compressions",
]

BUILT_IN_LIMITS: Final = {"standard": BatchLimits(time_ms=100, bytes=256 * KIB)}
"""Limits that a rule can name although the file does not define them. Limits with the same name in `batching.configs`
take precedence."""

NO_COMPRESSION: Final = CompressionConfig(type="none")


@unique
class BatchingKind(Enum):
    """How a topic's messages are batched: separately, together with those of other topics, or not at all."""

    PER_TOPIC = "per_topic"
    COMBINED = "combined"
    NONE = "none"


class TopicBatching(NamedTuple):
    """The batching of one topic; a batch is complete as soon as it reaches one of the limits."""

    kind: BatchingKind
    limits: BatchLimits


UNBATCHED: Final = TopicBatching(BatchingKind.NONE, BatchLimits(messages=1))


def find_limits(batching: Batching, name: str | None) -> BatchLimits | None:
    """Return the limits with this name; None if they are not defined, or if `name` is None."""
    return batching.configs.get(name or "") or BUILT_IN_LIMITS.get(name or "")


def batching_of_rule(batching: Batching, rule: BatchingRule | DefaultBatching) -> TopicBatching:
    """Return the kind of batching and the limits that a rule sets."""
    kind = BatchingKind(rule.action)
    if kind is BatchingKind.NONE or (kind is BatchingKind.COMBINED and not batching.combined.enable):
        return UNBATCHED
    limits = find_limits(batching, rule.config if kind is BatchingKind.PER_TOPIC else batching.combined.config)
    assert limits is not None  # `checks.py` refuses a rule that names undefined limits
    return TopicBatching(kind, limits)


def used_compressions(compression: Compression) -> list[CompressionConfig]:
    """Return the compression configs that at least one topic uses."""
    names = {compression.default, *compression.topics.values()}
    return [config for name, config in compression.configs.items() if name in names]
