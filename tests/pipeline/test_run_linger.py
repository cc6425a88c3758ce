from __future__ import annotations

import pytest

from bruce_mp.config.sections import BatchLimits
from bruce_mp.config.topics import UNBATCHED, BatchingKind, TopicBatching
from bruce_mp.pipeline.run_linger import linger_ms


@pytest.mark.parametrize("kind", [BatchingKind.PER_TOPIC, BatchingKind.COMBINED])
@pytest.mark.parametrize(
    ("limits", "linger"),
    [
        (BatchLimits(time_ms=1), 0),
        (BatchLimits(time_ms=2), 1),
        (BatchLimits(time_ms=49), 24),
        (BatchLimits(time_ms=50), 40),
        (BatchLimits(time_ms=100), 90),
        (BatchLimits(time_ms=200), 190),
        (BatchLimits(time_ms=86_400_000), 250),
        (BatchLimits(messages=10), 25),
        (BatchLimits(bytes=10), 25),
        (BatchLimits(time_ms=10, messages=10, bytes=10), 5),
    ],
)
def test_linger_is_the_batching_time_less_the_transit_up_to_250_ms(
    kind: BatchingKind, limits: BatchLimits, linger: int
) -> None:
    assert linger_ms(TopicBatching(kind, limits)) == linger


def test_an_unbatched_topic_does_not_linger() -> None:
    assert linger_ms(UNBATCHED) == 0


@pytest.mark.parametrize(("time_ms", "linger"), [(10, 5), (500, 25)])
def test_a_rate_limited_topic_has_a_short_linger(time_ms: int, linger: int) -> None:
    """A rate limit counts a run in the window in which it began."""
    batching = TopicBatching(BatchingKind.COMBINED, BatchLimits(time_ms=time_ms))
    assert linger_ms(batching, is_limited=True) == linger
