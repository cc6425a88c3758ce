from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

from bruce_mp.config.sections import (
    Batching,
    BatchingRule,
    BatchLimits,
    CombinedBatching,
    DefaultBatching,
    RateLimit,
    RateLimitConfig,
)
from bruce_mp.input import receive_coalescing
from bruce_mp.input.receive_coalescing import MAX_STREAM_NAP_US, UNBATCHED_NAP_US, coalescing_for, stream_coalescing_for
from bruce_mp.kernels import NO_COALESCING, Coalescing
from bruce_mp.pipeline.run_linger import shortest_linger_ms
from support.flow_parts import quick_config

if TYPE_CHECKING:
    from pathlib import Path

UNBATCHED: Final = BatchingRule(action="none")
SHORT: Final = {"short": BatchLimits(time_ms=20)}
BY_TOPIC: Final = BatchingRule(action="per_topic", config="short")
SLOW: Final = Batching(
    configs={"slow": BatchLimits(time_ms=1000)},
    combined=CombinedBatching(config="slow"),
    default=DefaultBatching(action="per_topic", config="slow"),
)


@pytest.mark.parametrize(
    ("batching", "linger_ms"),
    [
        (Batching(), 90),
        (Batching(default=DefaultBatching(action="none")), 0),
        (Batching(topics={"urgent": UNBATCHED}), 0),
        (Batching(configs=SHORT, topics={"quick": BY_TOPIC}), 10),
        (Batching(configs=SHORT, default=DefaultBatching(action="per_topic", config="short")), 10),
    ],
)
def test_coalescing_uses_the_shortest_linger_of_all_topics(batching: Batching, linger_ms: int) -> None:
    assert shortest_linger_ms(quick_config(batching=batching)) == linger_ms


def test_coalescing_respects_the_linger_of_a_rate_limited_topic() -> None:
    limit = RateLimit(configs={"few": RateLimitConfig(interval_ms=1000, max_count=10)}, topics={"some": "few"})
    assert shortest_linger_ms(quick_config(rate_limit=limit)) == 25


@pytest.mark.parametrize(
    ("granted", "room"), [("212992\n", 53_248), ("4194304\n", 53_248), ("16384\n", 4096), ("", 53_248)]
)
def test_a_long_socket_queue_enables_coalescing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, granted: str, room: int
) -> None:
    """The expected messages fit into a send buffer, also below the usual size."""
    monkeypatch.setattr(receive_coalescing, "SEND_BUFFER_SETTING", tmp_path / "wmem_default")
    (tmp_path / "wmem_default").write_text(granted)
    assert coalescing_for(quick_config(), 512) == Coalescing(5000, 128, room)


@pytest.mark.parametrize("queue", [0, 10, 127])
def test_a_short_or_unknown_socket_queue_disables_coalescing(queue: int) -> None:
    assert coalescing_for(quick_config(), queue) == NO_COALESCING


def test_the_shortest_queue_for_coalescing_has_room_for_a_quarter() -> None:
    assert coalescing_for(quick_config(), 128).max_messages == 32


def test_coalescing_delays_a_message_by_a_small_part_of_its_linger() -> None:
    batching = Batching(configs=SHORT, topics={"quick": BY_TOPIC})
    assert coalescing_for(quick_config(batching=batching), 512).max_nap_us == 1000
    unbatched = quick_config(batching=Batching(topics={"urgent": UNBATCHED}))
    assert coalescing_for(unbatched, 512).max_nap_us == 0


@pytest.mark.parametrize(
    ("batching", "max_nap_us"),
    [
        (Batching(), 90_000 // 10),
        (SLOW, MAX_STREAM_NAP_US),
        (Batching(topics={"urgent": UNBATCHED}), UNBATCHED_NAP_US),
    ],
)
def test_the_longest_nap_of_a_stream_worker_follows_the_batching(batching: Batching, max_nap_us: int) -> None:
    assert stream_coalescing_for(quick_config(batching=batching)).max_nap_us == max_nap_us
