"""Rate limits: windows compared with a model of the rule, and the router's treatment of runs."""

from __future__ import annotations

from collections import Counter as Tally
from typing import TYPE_CHECKING, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bruce_mp.config.sections import Batching, RateLimit, RateLimitConfig
from bruce_mp.errors import DiscardReason
from bruce_mp.pipeline.stage_counts import count_books
from bruce_mp.router.rate_limit import MAX_LATENESS_MS, RateWindows
from bruce_mp.slab import layout as lay
from bruce_mp.slab.chunk_readers import all_runs
from bruce_mp.slab.file import Geometry
from support.examples import examples
from support.flow import World
from support.flow_parts import quick_config
from support.slabs import datagram, new_slab

if TYPE_CHECKING:
    from collections.abc import Iterator

GEOMETRY: Final = Geometry(chunks=320, topics=16, partitions=32, landing_slots=16, landing_slot_size=4096)


# --- windows ----------------------------------------------------------------------------------------------------------
class Model:
    """The words of the rule, one message at a time: drop it if it makes more than the limit in its window."""

    def __init__(self, interval_ms: int, max_count: int) -> None:
        self.interval_ms = interval_ms
        self.max_count = max_count
        self.first_ms: int | None = None
        self.seen: Tally[int] = Tally()

    def passes(self, at_ms: int) -> bool:
        if self.first_ms is None:
            self.first_ms = at_ms
        window = max(0, (at_ms - self.first_ms) // self.interval_ms)  # the first one is the first that is looked at
        self.seen[window] += 1
        return self.seen[window] <= self.max_count


runs = st.lists(
    st.tuples(st.integers(0, 5000), st.integers(0, MAX_LATENESS_MS), st.integers(1, 30)),  # ms on, ms late, messages
    max_size=30,
)


@examples(150)
@given(runs=runs, interval_ms=st.integers(1, 20_000), max_count=st.integers(0, 50))
def test_windows_match_the_model(runs: list[tuple[int, int, int]], interval_ms: int, max_count: int) -> None:
    """Runs come from several inputs, so that some are looked at after others that arrived later."""
    windows, model = RateWindows(interval_ms, max_count), Model(interval_ms, max_count)
    now_ms = 1_000_000
    for on, late, records in runs:
        now_ms += on
        passed = [model.passes(now_ms - late) for _ in range(records)]
        assert windows.admit(records, now_ms - late) == sum(passed)


def test_very_late_messages_count_in_the_oldest_kept_window() -> None:
    windows = RateWindows(MAX_LATENESS_MS, 2)
    assert [windows.admit(2, at_ms) for at_ms in (0, 10 * MAX_LATENESS_MS, 0, 9 * MAX_LATENESS_MS)] == [2, 2, 2, 0]


def test_the_number_of_kept_windows_is_bounded() -> None:
    windows = RateWindows(1, 1)
    for at_ms in range(3 * MAX_LATENESS_MS):
        windows.admit(1, at_ms)
    assert len(windows._counts) <= MAX_LATENESS_MS + 1


# --- the router -------------------------------------------------------------------------------------------------------
TEN_IN_A_SECOND: Final = RateLimit(
    default="ten", configs={"ten": RateLimitConfig(interval_ms=1000, max_count=10), "free": RateLimitConfig(1000)},
    topics={"free": "free"},
)  # fmt: skip


@pytest.fixture
def world() -> Iterator[World]:
    with new_slab(GEOMETRY) as slab:
        config = quick_config(rate_limit=TEN_IN_A_SECOND, batching=Batching(message_max_bytes=1000))
        world = World(slab, {b"t": [1], b"u": [2], b"free": [3]}, config)
        yield world
        world.close()


def send(world: World, topic: bytes, count: int, size: int = 10) -> None:
    world.send([(topic, datagram(topic, b"v" * size), None)] * count)
    world.ring()


def arrived(world: World, topic: bytes) -> int:
    """Return the number of messages of a topic that reached the brokers, once all are settled."""
    world.step_until_settled()
    world.check()
    return len(world.cluster.log(topic, 0))


def test_the_limit_splits_a_run_at_the_end_of_the_allowance(world: World) -> None:
    world.step_until_synced()
    for count in (4, 4, 4, 4):
        send(world, b"t", count)
    assert arrived(world, b"t") == 10
    assert [record.arrival for record in world.cluster.log(b"t", 0)] == list(range(10))
    assert world.reporter.discarded == {DiscardReason.RATE_LIMIT: 6}
    assert count_books(world.slab).discarded == {"RATE_LIMIT": 6}


def test_each_topic_has_its_own_count_and_each_window_a_new_one(world: World) -> None:
    world.step_until_synced()
    for _ in range(3):
        for topic in (b"t", b"u", b"free"):
            send(world, topic, 12)
        world.advance_clock(1000)
    assert [arrived(world, topic) for topic in (b"t", b"u", b"free")] == [30, 30, 36]


def test_messages_discarded_earlier_use_no_allowance(world: World) -> None:
    world.step_until_synced()
    send(world, b"unknown", 15)
    world.send([(b"t", datagram(b"t", b"v" * size), None) for size in (1, 975, 1, 2000, 975)])
    world.ring()
    send(world, b"t", 8)
    assert arrived(world, b"t") == 10
    assert world.reporter.discarded == {DiscardReason.BAD_TOPIC: 15, DiscardReason.LONG_MSG: 3}


def test_waiting_messages_count_in_the_window_of_their_arrival(world: World) -> None:
    """Without metadata for three seconds, the messages of each second are within the limit."""
    for _ in range(3):
        send(world, b"t", 10)
        world.advance_clock(1000)
    world.step_until_synced()
    assert arrived(world, b"t") == 30


def test_an_arrival_time_in_the_future_takes_no_allowance_of_later_messages(world: World) -> None:
    """It is from the clock before a reboot, and would be the newest window for a long time."""
    send(world, b"t", 5)
    for chunk, offset, _ in all_runs(world.slab):
        world.slab.longs[(world.slab.chunk_at(chunk) + offset + lay.RUN_ARRIVED_MS) >> 3] += 3_600_000
    world.step_until_synced()
    for _ in range(2):
        world.advance_clock(1000)
        send(world, b"t", 10)
    assert arrived(world, b"t") == 25


def test_a_new_router_counts_no_message_twice(world: World) -> None:
    """Runs admitted by its predecessor pass; a topic gets one extra allowance, because the count is lost."""
    world.step_until_synced()
    world.cluster.leaders[b"t", 0] = None
    world.router.request_fetch_now(world.now_ms)
    for _ in range(20):
        world.step_all()
    for _ in range(3):
        send(world, b"t", 8)
        world.kill_router()
        world.answer_fetch()
    assert world.reporter.discarded == {}
    send(world, b"t", 14)
    world.end_faults()
    assert arrived(world, b"t") == 24 + 10
    assert world.reporter.discarded == {DiscardReason.RATE_LIMIT: 4}


@pytest.mark.parametrize("kill_at", range(12))
def test_a_router_that_dies_while_counting_stays_within_one_allowance(world: World, kill_at: int) -> None:
    world.step_until_synced()
    world.send([(b"t", datagram(b"t", b"v"), None)] * 15)
    world.ring(kill_at=kill_at)
    assert 10 <= arrived(world, b"t") <= 15
