"""Frames of runs that need different steps in the router: their order, their parcels, and damage among them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

from bruce_mp import kernels
from bruce_mp.config.sections import Batching, BatchingRule, BatchLimits, DefaultBatching, RateLimit, RateLimitConfig
from bruce_mp.errors import DiscardReason
from bruce_mp.ipc.frames import ParcelKind, unpack_parcels
from bruce_mp.router.cluster import MISSING_GRACE_MS
from bruce_mp.slab import layout as lay
from bruce_mp.slab.file import Geometry
from bruce_mp.telemetry.counters import Counter
from support.flow import World
from support.flow_parts import quick_config
from support.slabs import datagram, new_slab

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from bruce_mp.ipc.frames import Parcel
    from bruce_mp.kernels import RunHeader
    from bruce_mp.slab.file import Slab
    from bruce_mp.slab.runs import Segment
    from bruce_mp.telemetry.message_copies import CopyTarget

GEOMETRY: Final = Geometry(chunks=320, topics=16, partitions=32, landing_slots=16, landing_slot_size=4096)
LARGEST: Final = 100
BATCHING: Final = Batching(
    message_max_bytes=LARGEST,
    configs={"single": BatchLimits(messages=1)},
    default=DefaultBatching(action="none"),
    topics={"batched": BatchingRule(action="per_topic", config="single")},
)


@pytest.fixture
def world() -> Iterator[World]:
    """One dispatcher; the topics are plain, because each has had a run."""
    with new_slab(GEOMETRY) as slab:
        world = World(slab, {b"t": [1, 1], b"batched": [1]}, quick_config(batching=BATCHING))
        world.step_until_synced()
        for topic in (b"t", b"batched"):
            world.send_one(topic, key=0)
            world.step_until_settled()
            world.send_one(topic, key=0)
            world.step_until_settled()
        for line in world.from_router.values():
            line.clear()
        yield world
        world.close()


def ring_once(world: World) -> None:
    """Announce all runs that were handed over in one frame."""
    segments = [segment for doorbell in world.doorbells for segment in doorbell]
    world.doorbells.clear()
    world.doorbells.append(segments)
    world.ring()


def sent(world: World) -> list[Parcel]:
    """The parcels in the pipe to the dispatcher, without the sender's."""
    [line] = world.from_router.values()
    return [parcel for frame in line for parcel in unpack_parcels(frame) if parcel.kind is not ParcelKind.SENDER]


def arrivals(world: World, topic: bytes, partition: int) -> list[int]:
    return [arrival for arrival, _, _ in world.cluster.log(topic, partition)]


def test_runs_of_one_frame_keep_their_order_when_one_is_cut(world: World) -> None:
    small, large = datagram(b"t", b"v", partition_key=0), datagram(b"t", b"v" * LARGEST, partition_key=0)
    first = world.input.base
    for run in ([small], [small, large, small], [small]):
        world.send([(b"t", data, 0) for data in run])
    ring_once(world)
    [parcel] = sent(world)
    assert (parcel.kind, [segment.records for segment in parcel.segments]) == (ParcelKind.QUEUE, [1, 1, 1, 1])
    world.step_until_settled()
    assert arrivals(world, b"t", 0)[-4:] == [first, first + 1, first + 3, first + 4]
    assert world.reporter.discarded == {DiscardReason.LONG_MSG: 1}


def test_a_batch_is_sent_between_the_runs_that_arrived_before_and_after_it(world: World) -> None:
    for topic, key in ((b"t", 0), (b"batched", None), (b"t", 1)):
        world.send_one(topic, key=key)
    ring_once(world)
    assert [parcel.kind for parcel in sent(world)] == [ParcelKind.QUEUE, ParcelKind.BATCH, ParcelKind.QUEUE]
    world.step_until_settled()
    world.check()


@pytest.mark.parametrize("damaged", [0, 1, 2])
def test_a_damaged_run_holds_no_run_of_its_partition_back(
    world: World, monkeypatch: pytest.MonkeyPatch, damaged: int
) -> None:
    expected = [world.send_one(b"t", key=0) for _ in range(3)]
    del expected[damaged]
    read = kernels.read_headers

    def read_and_damage(slab: Slab, segments: list[Segment]) -> list[RunHeader | None]:
        heads = read(slab, segments)
        at = slab.chunk_at(segments[damaged].chunk) + segments[damaged].run + lay.RUN_MAGIC_AT
        slab.words[at >> 2] ^= 1
        return heads

    with monkeypatch.context() as patch:
        patch.setattr(kernels, "read_headers", read_and_damage)
        ring_once(world)
    for _ in range(100):
        world.step_all()
    assert arrivals(world, b"t", 0)[-2:] == expected
    assert world.router._row.counters[Counter.RefusedDamagedPlace] == 1


def test_a_rate_limit_applies_to_a_plain_topic_when_a_reload_adds_it(world: World) -> None:
    limit = RateLimit(configs={"few": RateLimitConfig(interval_ms=60_000, max_count=1)}, topics={"t": "few"})
    world.router.apply_config(quick_config(batching=BATCHING, rate_limit=limit), world.now_ms)
    for _ in range(3):
        world.send_one(b"t", key=0)
    ring_once(world)
    world.step_until_settled()
    assert world.reporter.discarded == {DiscardReason.RATE_LIMIT: 2}


def test_a_smaller_largest_message_applies_to_a_plain_topic_when_a_reload_sets_it(world: World) -> None:
    batching = Batching(message_max_bytes=LARGEST // 2, default=DefaultBatching(action="none"))
    world.router.apply_config(quick_config(batching=batching), world.now_ms)
    world.send_one(b"t", b"v" * (LARGEST // 2), key=0)
    world.step_until_settled()
    assert world.reporter.discarded == {DiscardReason.LONG_MSG: 1}


@pytest.mark.parametrize("key", [None, 0])
def test_a_run_of_a_plain_topic_is_discarded_after_the_topic_is_deleted(world: World, key: int | None) -> None:
    del world.topics[b"t"]
    for _ in range(2):
        world.advance_clock(MISSING_GRACE_MS)
        world.router.on_metadata(world.view(), world.now_ms, world.now_ms)
    world.send_one(b"t", key=key)
    world.step_until_settled()
    assert world.reporter.discarded == {DiscardReason.BAD_TOPIC: 1}
    assert world.router._row.counters[Counter.DiscardBadTopicMsgOnRoute] == 1, "it never waited for a leader"


class FakeTap:
    """A wire tap that keeps the segments it gets."""

    def __init__(self) -> None:
        self.is_active = False
        self.copied: list[Segment] = []

    def copy(self, _target: CopyTarget, _topic: bytes, segments: Iterable[Segment]) -> None:
        self.copied += segments


def test_runs_of_a_plain_topic_are_copied_while_the_tap_is_active(world: World) -> None:
    world.router._runs._tap = tap = FakeTap()  # type: ignore[assignment]
    traced = []
    for is_active in (False, True, False):
        tap.is_active = is_active
        world.send_one(b"t", key=0)
        traced += list(world.doorbells[0]) if is_active else []
        world.step_until_settled()
    assert tap.copied == traced
    assert len(traced) == 1
