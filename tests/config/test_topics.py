"""The rules for a topic."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from bruce_mp.config.sections import BatchLimits, CompressionConfig, RateLimitConfig
from bruce_mp.config.topics import NO_COMPRESSION, UNBATCHED, BatchingKind, TopicBatching

if TYPE_CHECKING:
    from collections.abc import Callable

    from bruce_mp.config.model import Config

    Load = Callable[..., Config]

STANDARD = BatchLimits(time_ms=100, bytes=256 << 10)
OWN = TopicBatching(BatchingKind.PER_TOPIC, BatchLimits(messages=7))
COMBINED = TopicBatching(BatchingKind.COMBINED, BatchLimits(time_ms=9))
DEFAULT = TopicBatching(BatchingKind.PER_TOPIC, BatchLimits(time_ms=1, messages=2, bytes=3072))

RULES = """
[batching.configs]
own = { messages = 7 }
combined = { time_ms = 9 }
default = { time_ms = 1, messages = 2, bytes = "3k" }
[batching.combined]
config = "combined"
[batching.topics]
own = { action = "per_topic", config = "own" }
together = { action = "combined" }
alone = { action = "none" }
"größe" = { action = "per_topic", config = "own" }
"""


def test_topics_are_combined_without_batching_rules(load: Load) -> None:
    assert load().batching_for(b"t") == TopicBatching(BatchingKind.COMBINED, STANDARD)


@pytest.mark.parametrize(
    ("default", "other"),
    [
        ('action = "per_topic"\nconfig = "default"', DEFAULT),
        ('action = "combined"', COMBINED),
        ('action = "none"', UNBATCHED),
    ],
)
def test_a_listed_topic_has_its_own_rule_and_the_others_the_default(
    load: Load, default: str, other: TopicBatching
) -> None:
    config = load(f"{RULES}[batching.default]\n{default}\n")
    assert config.batching_for(b"own") == OWN
    assert config.batching_for("größe".encode()) == OWN
    assert config.batching_for(b"together") == COMBINED
    assert config.batching_for(b"alone") == UNBATCHED
    assert config.batching_for(b"other") == other
    assert config.batching_for(b"\xff\x00") == other


def test_topics_are_not_batched_when_combined_batches_are_disabled(load: Load) -> None:
    config = load("[batching.combined]\nenable = false\n[batching.topics.t]\naction = 'combined'\n")
    assert config.batching_for(b"t") == config.batching_for(b"other") == UNBATCHED


def test_own_limits_may_be_named_standard(load: Load) -> None:
    limits = load("[batching.configs.standard]\nmessages = 1\n").batching_for(b"t").limits
    assert limits == BatchLimits(messages=1)


def test_compression_falls_back_from_topic_to_default_to_none(load: Load) -> None:
    configs = "[compression.configs]\nz = { type = 'zstd', level = 3 }\nplain = { type = 'none' }\n"
    zstd = CompressionConfig(type="zstd", level=3)
    config = load(f"[compression]\ndefault = 'z'\n{configs}[compression.topics]\nt = 'plain'\n")
    assert config.compression_for(b"t") == NO_COMPRESSION
    assert config.compression_for(b"other") == zstd
    config = load(f"{configs}[compression.topics]\nt = 'z'\n")
    assert config.compression_for(b"t") == zstd
    assert config.compression_for(b"other") == NO_COMPRESSION
    assert load().compression_for(b"t") == NO_COMPRESSION


LIMITS = """
[rate_limit.configs.free]
interval_ms = 1
[rate_limit.configs.slow]
interval_ms = 10000
max_count = 1000
[rate_limit.topics]
noisy = "slow"
"größe" = "free"
"""


def test_a_topic_without_limits_has_no_rate_limit(load: Load) -> None:
    assert load().rate_limit_for(b"t") is None
    assert load(LIMITS).rate_limit_for(b"other") is None


def test_a_listed_topic_has_its_own_limit_and_the_others_the_default(load: Load) -> None:
    config = load(LIMITS, 'rate_limit.default="slow"')
    assert config.rate_limit_for("größe".encode()) == RateLimitConfig(interval_ms=1)
    for topic in (b"noisy", b"other", b"\xff"):
        assert config.rate_limit_for(topic) == RateLimitConfig(interval_ms=10_000, max_count=1000)
