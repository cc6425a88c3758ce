"""Frames of runs that need different steps in the router: their order, their parcels, and damage among them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pytest

from bruce_mp import kernels
from bruce_mp.config.sections import Batching, BatchingRule, BatchLimits, DefaultBatching, RateLimit, RateLimitConfig
from bruce_mp.errors import DiscardReason
from bruce_mp.ipc.frames import EVERYTHING, Parcel, ParcelKind, unpack_parcels
from bruce_mp.router.broker_turns import TURN_MS
from bruce_mp.router.cluster import MISSING_GRACE_MS
from bruce_mp.router.topics import Topic
from bruce_mp.slab import layout as lay
from bruce_mp.slab.file import Geometry
from bruce_mp.slab.recovery import inspect_segment
from bruce_mp.slab.states import Role
from bruce_mp.telemetry.counters import Counter
from support.flow import World
from support.flow_parts import quick_config
from support.slabs import datagram, new_slab

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

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
    read = kernels.queue_chosen

    def read_and_damage(slab: Slab, segments: list[Segment], *arguments: Any, **more: Any) -> Any:
        heads = read(slab, segments, *arguments, **more)
        at = slab.chunk_at(segments[damaged].chunk) + segments[damaged].run + lay.RUN_MAGIC_AT
        slab.words[at >> 2] ^= 1
        return heads

    with monkeypatch.context() as patch:
        patch.setattr(kernels, "queue_chosen", read_and_damage)
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


COMBINED: Final = Batching(message_max_bytes=LARGEST)


@pytest.fixture
def busy() -> Iterator[World]:
    """Three dispatchers and a combined topic, for which a turn of brokers has chosen the partition."""
    with new_slab(GEOMETRY) as slab:
        world = World(slab, {b"t": [1, 2, 3]}, quick_config(batching=COMBINED))
        world.step_until_synced()
        world.now_ms += -world.now_ms % TURN_MS  # so that the test lies within one turn
        for _ in range(3):
            world.send_one(b"t")
            world.ring()
        drop_frames(world)
        yield world
        world.close()


def drop_frames(world: World) -> None:
    for line in world.from_router.values():
        line.clear()


def decisions(world: World, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that gets an item for each run whose partition `Topic.next_partition` decides."""
    made: list[int] = []
    decide = Topic.next_partition

    def count(topic: Topic, *arguments: Any) -> int | None:
        made.append(topic.number)
        return decide(topic, *arguments)

    monkeypatch.setattr(Topic, "next_partition", count)
    return made


def queued(world: World) -> dict[int, list[int]]:
    """The first arrival numbers of the runs in QUEUE parcels, by the slot of the dispatcher."""
    found: dict[int, list[int]] = {}
    for slot, line in world.from_router.items():
        parcels = [parcel for frame in line for parcel in unpack_parcels(frame) if parcel.kind is ParcelKind.QUEUE]
        segments = [segment for parcel in parcels for segment in parcel.segments]
        if segments:
            found[slot] = [inspect_segment(world.slab, segment).arrival for segment in segments]
    return found


def test_a_turn_decides_the_partition_of_a_topic_once(busy: World, monkeypatch: pytest.MonkeyPatch) -> None:
    made = decisions(busy, monkeypatch)
    expected = [busy.send_one(b"t") for _ in range(4)]
    ring_once(busy)
    assert not made
    assert list(queued(busy).values()) == [expected]
    assert busy.router._row.counters[Counter.RouteAnyPartitionMsg] == 7


def test_the_runs_of_later_turns_go_to_all_brokers(busy: World) -> None:
    slots: set[int] = set()
    for _ in range(40):
        busy.now_ms += TURN_MS
        busy.send_one(b"t")
        busy.ring()
        busy.send_one(b"t")
        busy.ring()
        assert len(queued(busy)) == 1
        slots |= queued(busy).keys()
        drop_frames(busy)
    assert len(slots) == 3


def test_a_choice_ends_when_its_partition_closes(busy: World) -> None:
    busy.send_one(b"t")
    busy.ring()
    [chosen] = queued(busy)
    drop_frames(busy)
    incarnation = busy.peers[chosen].core._incarnation
    pause = [Parcel(ParcelKind.SENDER, chosen, incarnation), Parcel(ParcelKind.PAUSED, 0, EVERYTHING)]
    busy.router.on_parcels(pause, busy.now_ms)
    busy.send_one(b"t")
    busy.ring()
    [other] = queued(busy)
    assert other != chosen


def test_partitions_are_decided_again_after_a_frame_of_a_dispatcher(
    busy: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The frame may have closed all partitions for a time, in which messages of the topic were parked."""
    busy.router.on_parcels([Parcel(ParcelKind.SENDER, 0, busy.peers[0].core._incarnation)], busy.now_ms)
    for key in range(3):
        busy.send_one(b"t", key=key)
        busy.ring()
    busy.now_ms += TURN_MS
    made = decisions(busy, monkeypatch)
    for _ in range(2):
        busy.send_one(b"t")
        busy.ring()
    assert made == [1]


@pytest.mark.parametrize("first", [0, 1, 2])
def test_no_run_overtakes_one_that_needs_more_than_a_choice(busy: World, first: int) -> None:
    expected = []
    for index in range(4):
        large = [(b"t", datagram(b"t", b"v" * LARGEST), None)] if index == first else []
        expected.append(busy.input.base)
        busy.send([(b"t", datagram(b"t", b"v"), None), *large])
    ring_once(busy)
    assert list(queued(busy).values()) == [expected]
    assert busy.reporter.discarded == {DiscardReason.LONG_MSG: 1}


@pytest.mark.parametrize("sizes", [[1], [1, LARGEST], [LARGEST, 1]])
@pytest.mark.parametrize("at", [0, 1])
def test_no_run_overtakes_one_whose_topic_had_no_number(busy: World, at: int, sizes: list[int]) -> None:
    """A message that is too long would else end the choice of number 0, and leave that of the topic's number."""
    expected = []
    for index in range(3):
        of_run = sizes if index == at else [1]
        expected.append(busy.input.base + of_run.index(1))
        busy.receive([(b"t", datagram(b"t", b"v" * size), None) for size in of_run], is_numbered=index != at)
    busy.hand_over()
    busy.ring()
    assert list(queued(busy).values()) == [expected]


def test_a_flush_reaches_the_dispatcher_of_each_choice(busy: World) -> None:
    for _ in range(20):
        busy.send_one(b"t")
        busy.ring()
        [slot] = queued(busy)
        drop_frames(busy)
        busy.router.flush_topic(1, busy.now_ms)
        frames = busy.router.drain_outbox()
        assert {slot: parcels[1:] for slot, parcels in frames.items()} == {slot: [Parcel(ParcelKind.FLUSH, 1)]}
        busy.now_ms += TURN_MS // 2


def test_a_reload_ends_the_choices(busy: World) -> None:
    limit = RateLimit(configs={"few": RateLimitConfig(interval_ms=60_000, max_count=1)}, topics={"t": "few"})
    busy.router.apply_config(quick_config(batching=COMBINED, rate_limit=limit), busy.now_ms)
    for _ in range(4):
        busy.send_one(b"t")
        busy.ring()
    assert busy.reporter.discarded == {DiscardReason.RATE_LIMIT: 3}


def slot_of_run(world: World, chunks: int) -> int:
    """Send a run of the open chunk, which becomes a span of so many chunks; return the slot of its dispatcher."""
    world.receive([(b"t", datagram(b"t", b"v"), None)])
    with world.words.acting(Role.INPUT):
        world.input.lanes.close_runs()
        [segment] = world.input.lanes.drain_closed()
    world.slab.view[world.slab.chunk_at(segment.chunk) + lay.CHUNK_SPAN] = chunks
    world.doorbells.append([segment])
    world.ring()
    [slot] = queued(world)
    drop_frames(world)
    return slot


def test_a_span_keeps_its_partition_when_a_turn_has_chosen_another(busy: World) -> None:
    pairs = []
    for _ in range(15):
        busy.now_ms += 4 * TURN_MS
        kept = slot_of_run(busy, chunks=3)
        busy.now_ms += TURN_MS
        chosen = slot_of_run(busy, chunks=1)
        assert slot_of_run(busy, chunks=3) == kept
        pairs.append((kept, chosen))
    assert any(kept != chosen for kept, chosen in pairs)


def test_the_partition_of_a_span_of_large_traffic_is_no_choice(busy: World) -> None:
    pairs = []
    for _ in range(15):
        busy.now_ms += 4 * TURN_MS
        busy.router._turns.record_routed(2**40, busy.now_ms)
        kept = slot_of_run(busy, chunks=3)
        busy.now_ms += 2 * TURN_MS
        assert slot_of_run(busy, chunks=3) == kept
        pairs.append((kept, slot_of_run(busy, chunks=1)))
    assert any(kept != chosen for kept, chosen in pairs)
