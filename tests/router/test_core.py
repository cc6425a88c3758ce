"""The router's decisions: partitions, unknown topics, limits, pauses.  `World` delivers its frames."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import pytest

from bruce_mp import kernels
from bruce_mp.config.sections import Batching, DefaultBatching, Delivery
from bruce_mp.errors import DiscardReason
from bruce_mp.ipc.frames import Parcel, ParcelKind, unpack_parcels
from bruce_mp.router import cluster_status
from bruce_mp.router.cluster import MISSING_GRACE_MS
from bruce_mp.router.cluster_status import ClusterStatus
from bruce_mp.router.dispatchers import DispatcherSet
from bruce_mp.router.slab_tables import SlabTables
from bruce_mp.router.unknown_topics import START_GRACE_MS
from bruce_mp.slab import layout as lay
from bruce_mp.slab.file import Geometry
from bruce_mp.slab.tables import TopicTable
from bruce_mp.status.event_decoder import decode_events
from bruce_mp.telemetry.books import counter_total
from bruce_mp.telemetry.broker_status import ALL_PARTITIONS, NO_LEADER, PausedScope, RouterStatus
from bruce_mp.telemetry.counters import Counter
from support.flow import World
from support.flow_parts import quick_config
from support.links import Keeping
from support.slabs import datagram, new_slab

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from bruce_mp.config.model import Config
    from bruce_mp.kernels import RunHeader
    from bruce_mp.slab.file import Slab
    from bruce_mp.slab.runs import Segment

GEOMETRY: Final = Geometry(chunks=320, topics=16, partitions=32, landing_slots=16, landing_slot_size=4096)
NEGATIVE_CACHE_MS: Final = 5000

MakeWorld = Callable[..., World]


@pytest.fixture
def make() -> Iterator[MakeWorld]:
    """Makes worlds, and takes them down again."""
    contexts = []

    def make_world(
        topics: Mapping[bytes, Sequence[int]], config: Config | None = None, geometry: Geometry = GEOMETRY
    ) -> World:
        context = new_slab(geometry)
        world = World(context.__enter__(), topics, config)
        contexts.append((context, world))
        return world

    yield make_world
    for context, world in contexts:
        world.close()
        context.__exit__(None, None, None)


def shares(world: World, topic: bytes) -> Tally[int]:
    """Return the number of messages of a topic by broker."""
    found: Tally[int] = Tally()
    for (name, partition), node in world.cluster.leaders.items():
        if name == topic and node is not None:
            found[node] += len(world.cluster.log(topic, partition))
    return found


def settle(world: World) -> None:
    world.end_faults()
    world.step_until_settled()
    world.check()


# --- which partition --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("action", "tolerance"), [("none", 0), ("combined", 10)])
def test_brokers_receive_in_proportion_to_the_partitions_they_lead(
    make: MakeWorld, action: str, tolerance: int
) -> None:
    world = make({b"t": [1] * 3 + [2] * 7}, quick_config(action=action))
    world.step_until_synced()
    for _ in range(100):
        world.send_one(b"t")
        world.advance_clock(100)  # combined messages stay with a broker for a turn of five messages
        world.ring()
    settle(world)
    found = shares(world, b"t")
    assert found.total() == 100
    assert abs(found[1] - 30) <= tolerance


def test_waiting_messages_are_distributed_in_proportion(make: MakeWorld) -> None:
    world = make({b"t": [1] * 3 + [2] * 7})
    for _ in range(320):
        world.send_one(b"t", b"v" * 3000)  # before the first metadata and while all dispatchers start
        world.ring()
    settle(world)
    assert 60 <= shares(world, b"t")[1] <= 130


@pytest.mark.parametrize(
    ("key", "partitions", "expected"),
    [(-1, 3, 0), (-2, 3, 2), (-1, 4, 3), (-(2**31), 4, 0), (5, 3, 2), (0, 1, 0), (2**32 - 1, 3, 0)],
)
def test_a_partition_key_selects_its_partition(make: MakeWorld, key: int, partitions: int, expected: int) -> None:
    world = make({b"t": [1] * partitions})
    world.send_one(b"t", key=key & 0xFFFFFFFF)
    settle(world)
    assert [len(world.cluster.log(b"t", number)) for number in range(partitions)].index(1) == expected


def test_a_key_of_a_leaderless_partition_moves_to_the_next_led_partition(make: MakeWorld) -> None:
    world = make({b"t": [1, 2, 3, 1]})
    world.cluster.leaders[b"t", 2] = None
    world.cluster.leaders[b"t", 3] = None
    for key in range(4):
        world.send_one(b"t", key=key)
    world.step_until_settled()
    assert [[record.partition_key for record in world.cluster.log(b"t", p)] for p in range(4)] == [
        [0, 2, 3],
        [1],
        [],
        [],
    ]


@pytest.mark.parametrize("key", [None, 1])
def test_messages_wait_while_no_partition_has_a_leader(make: MakeWorld, key: int | None) -> None:
    world = make({b"t": [1, 2]})
    world.cluster.leaders.update({(b"t", 0): None, (b"t", 1): None})
    for _ in range(5):
        world.send_one(b"t", key=key)
        world.step_all()
    for _ in range(200):
        world.step_all()
    assert world.held() == {"ROUTED": 5}
    assert world.router.leaderless_partitions() == [(1, ALL_PARTITIONS)]
    world.cluster.leaders.update({(b"t", 0): 1, (b"t", 1): 2})
    settle(world)
    assert world.router.leaderless_partitions() == []


def test_waiting_messages_with_keys_are_not_read_again_before_a_leader_is_known(
    make: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A dispatcher's frame or metadata without a leader would cost time for each of many runs."""
    world = make({b"t": [1, 2]})
    world.step_until_synced()
    world.cluster.leaders.update({(b"t", 0): None, (b"t", 1): None})
    refresh(world)
    for key in range(3):
        world.send_one(b"t", key=key)
        world.ring()
    read, read_counts = kernels.read_headers, []

    def read_and_count(slab: Slab, segments: list[Segment]) -> list[RunHeader | None]:
        read_counts.append(len(segments))
        return read(slab, segments)

    monkeypatch.setattr(kernels, "read_headers", read_and_count)
    fetches = world.fetches
    for _ in range(50):
        world.step_all()
    assert sum(read_counts) == 0
    assert world.fetches > fetches
    world.cluster.leaders.update({(b"t", 0): 1, (b"t", 1): 2})
    world.step_until_settled()
    assert shares(world, b"t") == {1: 2, 2: 1}


def test_the_report_of_a_stall_counts_messages_with_and_without_key(make: MakeWorld) -> None:
    world = make({b"t": [1, 2]})
    world.step_until_synced()
    world.cluster.leaders.update({(b"t", 0): None, (b"t", 1): None})
    world.refresh()
    for _ in range(200):
        world.step_all()
    for key in (None, None, 1):
        world.send_one(b"t", key=key)
        world.ring()
    topic = world.router._topics.by_number[1]
    (keyed,), (unkeyed, _) = topic.parked_keyed, topic.parked_unkeyed
    world.slab.longs[(world.slab.chunk_at(keyed.chunk) + keyed.run + lay.RUN_ARRIVED_MS) >> 3] -= 10
    link = Keeping()
    status = ClusterStatus(link, lambda: 77_000 + 1_000 * len(link.sent), lambda _: b"t")
    for _ in range(2):
        status.publish(world.router, "", "")
    (last,) = decode_events(link.sent[-1])
    assert isinstance(last, RouterStatus)
    (stall,) = last.stalls
    assert (stall.topic, stall.partition, stall.message_count) == (b"t", ALL_PARTITIONS, 3)
    assert stall.oldest_message == (keyed.chunk, keyed.generation, keyed.run, keyed.first)
    topic.parked_unkeyed.remove(unkeyed)  # messages without key may flow again first
    status.publish(world.router, "", "")
    (last,) = decode_events(link.sent[-1])
    assert isinstance(last, RouterStatus)
    assert [each.since_ms for each in last.stalls] == [stall.since_ms]
    topic.parked_unkeyed.insert(0, unkeyed)


def test_bound_messages_wait_for_their_partitions_leader(make: MakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    world = make({b"t": [1, 2]})
    world.step_until_synced()
    world.send_one(b"t", key=1)
    world.ring()
    world.cluster.leaders[b"t", 1] = None
    world.refresh()
    for _ in range(200):
        world.step_all()
    assert (world.held(), world.router.leaderless_partitions()) == ({"ROUTED": 1}, [(1, 1)])
    link = Keeping()
    status = ClusterStatus(link, lambda: 77_000 + len(link.sent), lambda _: b"t")
    status.publish(world.router, "", "")
    status.publish(world.router, "", "")
    (last,) = decode_events(link.sent[-1])
    assert isinstance(last, RouterStatus)
    assert last.paused == (PausedScope(None, b"t", 1, NO_LEADER, 77_000),)
    monkeypatch.setattr(cluster_status, "MAX_LISTED_SCOPES", 0)
    status.publish(world.router, "", "")
    (last,) = decode_events(link.sent[-1])
    assert isinstance(last, RouterStatus)
    assert (last.paused, last.paused_count, last.paused_by_topic) == ((), 1, {b"t": 1})
    world.cluster.leaders[b"t", 1] = 1
    settle(world)
    status.publish(world.router, "", "")
    assert decode_events(link.sent[-1]) == [RouterStatus((), None, "", (), 0)]


def test_a_topic_that_is_created_again_before_the_next_metadata_is_noticed(make: MakeWorld) -> None:
    """The topic gets its number when its first message comes, after the metadata with its id."""
    world = make({b"t": [1]})
    assert world.router.store_topic_ids({b"t": b"1" * 16}) == []
    settle(world)
    world.send_one(b"t")
    settle(world)
    assert world.router.store_topic_ids({b"t": b"2" * 16}) == [b"t"]


def test_a_report_has_the_time_of_the_first_of_several_failed_fetches(
    make: MakeWorld, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    link, now_ms = Keeping(), 1000
    status = ClusterStatus(link, lambda: now_ms, lambda _: b"t")
    router = make({b"t": [1]}).router
    for error in ("first", "second"):
        status.on_fetch_failed(error, needs_operator=False)
        now_ms += 500
    status.publish(router, "", "")
    (report,) = link.events()
    assert isinstance(report, RouterStatus)
    assert (report.failing_since_ms, report.error) == (1000, "second")
    status.on_fetched({})
    assert "A broker answers again, after 1.0 s" in caplog.text


def test_a_report_lists_the_latest_recreated_topics_of_an_hour(make: MakeWorld) -> None:
    link = Keeping()
    now_ms = 1000
    status = ClusterStatus(link, lambda: now_ms, lambda _: b"t")
    status.on_recreated([b"early"])
    now_ms += 3_599_999
    status.on_recreated([b"late"])
    assert recreated(make, status, link) == [b"early", b"late"]
    now_ms += 1
    assert recreated(make, status, link) == [b"late"]
    status.on_recreated([b"%d" % number for number in range(200)])
    assert recreated(make, status, link) == [b"%d" % number for number in range(100, 200)]


def recreated(make: MakeWorld, status: ClusterStatus, link: Keeping) -> list[bytes]:
    """Return the recreated topics in the next report."""
    status.publish(make({b"t": [1]}).router, "", "")
    (last,) = decode_events(link.sent[-1])
    assert isinstance(last, RouterStatus)
    return [each.topic for each in last.recreated]


# --- topics -----------------------------------------------------------------------------------------------------------
def test_an_unknown_topic_costs_one_fetch_in_five_seconds(make: MakeWorld) -> None:
    world = make({b"t": [1]})
    world.step_until_synced()
    world.advance_clock(START_GRACE_MS)
    before = world.fetches
    for _ in range(20):
        world.send_one(b"unknown")
        world.step_until_settled()
    assert world.fetches == before + 1
    assert world.reporter.discarded == {DiscardReason.BAD_TOPIC: 20}
    world.advance_clock(NEGATIVE_CACHE_MS)
    world.send_one(b"unknown")
    world.step_until_settled()
    assert world.fetches == before + 2


def test_early_metadata_makes_no_topic_unknown(make: MakeWorld) -> None:
    """A broker that has just started answers before it has heard of all topics."""
    world = make({b"t": [1], b"late": [2]})
    del world.topics[b"late"]
    world.send_one(b"late")
    world.step_until_synced()
    began = world.now_ms
    world.send_one(b"late")
    while world.now_ms < began + START_GRACE_MS / 2:
        world.step_all()
    world.topics[b"late"] = 1
    settle(world)
    assert not world.reporter.discarded


def test_a_damaged_run_is_quarantined_and_others_are_routed(make: MakeWorld) -> None:
    world = make({b"t": [1, 1]}, quick_config(action="none"))
    world.step_until_synced()
    for damage in (with_a_damaged_record, of_no_topic):
        world.send([(b"t", datagram(b"t", partition_key=key), key) for key in (0, 1)])
        damage(world.slab, world.doorbells[0][0])
        world.ring()
        arrival = world.send_one(b"t")
        while (arrival, None) not in [
            record[:2] for place in world.cluster.leaders for record in world.cluster.log(*place)
        ]:
            world.step_all()
    assert world.router._row.counters[Counter.RefusedDamagedPlace] == 2
    world.kill_router()
    assert world.router._row.counters[Counter.RefusedDamagedPlace] > 2, "a new router finds it again"
    world.step_until_synced()


def test_a_run_damaged_while_waiting_for_a_leader_is_quarantined(make: MakeWorld) -> None:
    world = make({b"t": [1, 2]}, quick_config(action="none"))
    world.step_until_synced()
    for partition in (0, 1):
        world.cluster.leaders[b"t", partition] = None
    world.router.on_metadata(world.view(), world.now_ms, world.now_ms)
    for _ in range(2):
        world.send([(b"t", datagram(b"t", partition_key=key), key) for key in (0, 1)])
    with_a_damaged_record(world.slab, world.doorbells[0][0])
    world.ring()
    world.ring()
    world.end_faults()
    while sum(len(world.cluster.log(*place)) for place in world.cluster.leaders) < 2:
        world.step_all()
    assert world.router._row.counters[Counter.RefusedDamagedPlace] == 1


def keyed_runs(world: World) -> list[Segment]:
    """A run for each of three partitions, of which the router hears at once."""
    for key in (0, 1, 2):
        world.send_one(b"t", key=key)
    segments = [segment for doorbell in world.doorbells for segment in doorbell]
    world.doorbells.clear()
    world.doorbells.append(segments)
    return segments


def test_runs_of_many_partitions_are_sent_to_a_dispatcher_in_one_parcel(make: MakeWorld) -> None:
    world = make({b"t": [1, 1, 2]}, quick_config(action="none"))
    world.step_until_synced()
    keyed_runs(world)
    settle(world)
    segments = keyed_runs(world)
    world.ring()
    parcels = [unpack_parcels(line[-1]) for line in world.from_router.values() if line]
    assert {tuple(parcel.kind for parcel in sent) for sent in parcels} == {(ParcelKind.SENDER, ParcelKind.QUEUE)}
    assert sorted(segment for sent in parcels for segment in sent[1].segments) == sorted(segments)
    settle(world)
    assert [len(world.cluster.log(b"t", partition)) for partition in range(3)] == [2, 2, 2]


def test_a_flush_is_sent_only_to_dispatchers_with_new_runs(make: MakeWorld) -> None:
    world = make({b"t": [1, 1, 2]}, quick_config(action="combined"))
    world.step_until_synced()
    for _ in range(3):  # the first time it is found out which partitions are open, then that is known
        keyed_runs(world)
        world.ring()
        assert [flushed(world) for _ in range(2)] == [2, 0]
    settle(world)


def flushed(world: World) -> int:
    """Return the number of dispatchers that a FLUSH addresses, and drop the frames."""
    world.router.flush_topic(1, world.now_ms)
    return sum(Parcel(ParcelKind.FLUSH, 1) in sent for sent in world.router.drain_outbox().values())


def test_nothing_is_sent_to_the_dispatcher_of_a_former_leader(make: MakeWorld) -> None:
    world = make({b"t": [1, 1, 2]}, quick_config(action="none"))
    world.step_until_synced()
    keyed_runs(world)
    settle(world)
    world.cluster.leaders[b"t", 0] = 2
    world.router.on_metadata(world.view(), world.now_ms, world.now_ms)
    segments = keyed_runs(world)
    world.ring()
    sent = [part for line in world.from_router.values() for data in line for part in unpack_parcels(data)]
    assert [part for part in sent if part.kind is ParcelKind.HAND_BACK] == [Parcel(ParcelKind.HAND_BACK, 1, 0, [])]
    assert segments[0] not in [segment for part in sent for segment in part.segments]
    settle(world)
    assert [len(world.cluster.log(b"t", partition)) for partition in range(3)] == [2, 2, 2]


def test_a_run_damaged_between_two_reads_blocks_no_other(make: MakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    world = make({b"t": [1, 1, 1]}, quick_config(action="none"))
    world.step_until_synced()
    keyed_runs(world)
    settle(world)
    segments = keyed_runs(world)

    def heads(slab: Slab, *arguments: Any, **more: Any) -> Any:
        found = look(slab, *arguments, **more)
        slab.words[(slab.chunk_at(segments[1].chunk) + segments[1].run + lay.RUN_MAGIC_AT) >> 2] ^= 1
        return found

    look = kernels.queue_chosen
    with monkeypatch.context() as patch:
        patch.setattr(kernels, "queue_chosen", heads)
        world.ring()
    for _ in range(100):
        world.step_all()
    assert [len(world.cluster.log(b"t", partition)) for partition in range(3)] == [2, 1, 2]
    assert world.router._row.counters[Counter.RefusedDamagedPlace] == 1


def of_no_topic(slab: Slab, segment: Segment) -> None:
    slab.words[(slab.chunk_at(segment.chunk) + segment.run + lay.RUN_TOPIC) >> 2] = 15


def with_a_damaged_record(slab: Slab, segment: Segment) -> None:
    slab.words[(slab.chunk_at(segment.chunk) + segment.first + lay.RECORD_VALUE_LENGTH) >> 2] = 2**31


def test_a_topic_created_just_now_is_found(make: MakeWorld) -> None:
    world = make({b"t": [1], b"new": [2]})
    del world.topics[b"new"]
    world.step_until_synced()
    world.topics[b"new"] = 1
    world.send_one(b"new")
    settle(world)
    assert shares(world, b"new") == {2: 1}


def test_messages_of_a_missing_topic_are_discarded_after_the_grace_period(make: MakeWorld) -> None:
    world = make({b"t": [1], b"doomed": [2]})
    world.send_one(b"doomed")
    settle(world)
    del world.topics[b"doomed"]
    world.cluster.leaders[b"doomed", 0] = None
    world.send_one(b"doomed")
    for _ in range(20):
        world.step_all()
    assert sum(world.held().values()) == 1
    world.advance_clock(MISSING_GRACE_MS)
    world.step_until_settled()
    assert world.reporter.discarded == {DiscardReason.BAD_TOPIC: 1}
    quiet_from = world.fetches
    for _ in range(100):
        world.step_all()
    assert world.fetches == quiet_from, "a topic that is gone goes on costing fetches"


@pytest.mark.parametrize(("code", "reason"), [(29, DiscardReason.BAD_TOPIC), (42, DiscardReason.KAFKA_ERROR_ACK)])
def test_a_refusal_ends_when_its_topic_is_deleted(make: MakeWorld, code: int, reason: DiscardReason) -> None:
    """With code 29 a message waits for the deletion; with code 42 a new router has no message of the topic."""
    world = make({b"t": [1], b"doomed": [2]})
    world.step_until_synced()
    world.errors.extend([(code, False)] * 1000)
    world.send_one(b"doomed")
    for _ in range(30):
        world.step_all()
    table = TopicTable(world.slab)
    assert table.refusals() == {b"doomed": code}
    if not world.held():
        world.kill_router()
        world.step_until_synced()
    del world.topics[b"doomed"]
    world.cluster.leaders[b"doomed", 0] = None
    refresh(world)
    assert table.refusals() == {b"doomed": code}, "the grace period has not ended"
    world.advance_clock(MISSING_GRACE_MS)
    refresh(world)
    world.step_until_settled()
    run_for(world, 1)
    assert table.refusals() == {}
    assert world.reporter.discarded == {reason: 1}


def test_a_full_topic_table_refuses_further_topics(make: MakeWorld) -> None:
    world = make({b"a": [1], b"b": [1], b"c": [1]}, geometry=replace(GEOMETRY, topics=3))
    for topic in (b"a", b"b", b"c"):
        world.send_one(topic)
    world.step_until_settled()
    assert world.reporter.discarded == {DiscardReason.BAD_TOPIC: 1}
    assert sum(len(world.cluster.log(topic, 0)) for topic in (b"a", b"b", b"c")) == 2


def test_a_full_partition_table_discards_and_blocks_nothing_else(make: MakeWorld) -> None:
    world = make({b"t": [1, 1, 1]}, geometry=replace(GEOMETRY, partitions=2))
    for key in (0, 1, 2, 0, 1, 2):
        world.send_one(b"t", key=key)
        world.step_all()
    world.step_until_settled()
    assert world.reporter.discarded == {DiscardReason.NO_AVAILABLE_PARTITIONS: 2}
    assert [len(world.cluster.log(b"t", partition)) for partition in range(3)] == [2, 2, 0]


def test_a_damaged_run_without_room_in_the_partition_table_is_quarantined(
    make: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = make({b"t": [1, 1]}, geometry=replace(GEOMETRY, partitions=1))
    world.send_one(b"t", key=0)
    world.step_until_settled()
    world.send_one(b"t", key=1)
    read = kernels.queue_chosen

    def read_and_damage(slab: Slab, segments: list[Segment], *arguments: Any, **more: Any) -> Any:
        heads = read(slab, segments, *arguments, **more)
        at = slab.chunk_at(segments[0].chunk) + segments[0].run + lay.RUN_MAGIC_AT
        slab.words[at >> 2] ^= 1
        return heads

    with monkeypatch.context() as patch:
        patch.setattr(kernels, "queue_chosen", read_and_damage)
        world.ring()
    assert world.reporter.discarded == {}
    assert world.router._row.counters[Counter.RefusedDamagedPlace] == 1


def vanish(world: World, *topics: bytes) -> None:
    """Remove topics from the cluster, and let the router's grace period pass."""
    for topic in topics:
        del world.topics[topic]
        world.cluster.leaders[topic, 0] = None
    refresh(world)
    world.advance_clock(MISSING_GRACE_MS)
    refresh(world)


def refresh(world: World) -> None:
    world.router.request_fetch_now(world.now_ms)
    run_for(world, 1)


def test_entries_of_missing_topics_are_reused(make: MakeWorld) -> None:
    names = [b"t%d" % number for number in range(40)]
    world = make({name: [1] for name in names}, geometry=replace(GEOMETRY, topics=5, partitions=4))
    for name in names:
        del world.topics[name]
    for at in range(0, 40, 4):
        for name in names[at : at + 4]:
            world.topics[name] = 1
            world.send_one(name)
            world.send_one(name)
            world.step_until_settled()
        vanish(world, *names[at : at + 4])
    assert world.reporter.discarded == {}
    assert [len(world.cluster.log(name, 0)) for name in names] == [2] * 40
    limits = world.router._runs.rate_limits
    assert len(limits._windows) == len(limits._names) <= 4, "what is known of topics that are gone goes with them"
    world.check()


def test_a_dispatcher_discards_queues_of_missing_topics(make: MakeWorld) -> None:
    names = [b"t%d" % number for number in range(30)]
    world = make({b"stays": [1], **{name: [1] for name in names}}, geometry=replace(GEOMETRY, topics=3, partitions=4))
    for name in names:
        del world.topics[name]
    for name in names:
        world.topics[name] = 1
        for topic in (name, b"stays", name):
            world.send_one(topic)
        world.step_until_settled()
        vanish(world, name)
    [peer] = world.peers.values()
    assert len(peer.core._queues) <= 8
    assert world.reporter.discarded == {}
    assert len(world.cluster.log(b"stays", 0)) == 30
    assert [len(world.cluster.log(name, 0)) for name in names] == [2] * 30
    world.check()


def with_full_topic_table(make: MakeWorld, *names: bytes, new_leader: int) -> World:
    """Return a world in which these two topics have the only entries, and a message each; "new" is not yet known."""
    leaders = {name: [1] for name in names} | {b"new": [new_leader]}
    world = make(leaders, geometry=replace(GEOMETRY, topics=3))
    del world.topics[b"new"]
    for name in names:
        world.send_one(name)
    return world


def test_a_topic_with_held_messages_keeps_its_entry(make: MakeWorld) -> None:
    world = with_full_topic_table(make, b"gone", b"held", new_leader=2)
    world.step_until_settled()
    world.down.add(1)
    world.send_one(b"held")
    world.step_all()
    held = world.router._tables.topics.number_of(b"held")
    vanish(world, b"gone")
    world.topics[b"new"] = 1
    world.send_one(b"new")
    settle(world)
    assert world.router._tables.topics.number_of(b"held") == held
    assert shares(world, b"new") == {2: 1}
    assert world.reporter.discarded == {}


def test_runs_under_a_freed_number_do_not_reach_another_topic(make: MakeWorld) -> None:
    world = with_full_topic_table(make, b"old", b"other", new_leader=1)
    settle(world)
    stale = world.router._tables.topics.number_of(b"old")
    vanish(world, b"old")
    world.topics[b"new"] = 1
    world.send_one(b"new")
    settle(world)
    world.send_one(b"new")
    [segment] = world.doorbells[0]
    at = world.slab.chunk_at(segment.chunk) + segment.run
    world.slab.words[(at + lay.RUN_TOPIC) >> 2] = stale  # as an input would that has not looked at the table since
    world.step_until_settled()
    assert world.reporter.discarded == {DiscardReason.BAD_TOPIC: 1}
    assert len(world.cluster.log(b"new", 0)) == 1
    assert stale not in world.router._topics.by_number


def test_no_run_overtakes_one_under_a_freed_number_of_its_topic(make: MakeWorld) -> None:
    world = with_full_topic_table(make, b"back", b"other", new_leader=1)
    settle(world)
    stale = world.router._tables.topics.number_of(b"back")
    vanish(world, b"back", b"other")
    for topic in (b"new", b"back"):  # the first frees both entries
        world.topics[topic] = world.cluster.leaders[topic, 0] = 1
        world.send_one(topic)
        settle(world)
    assert world.router._tables.topics.number_of(b"back") not in {0, stale}
    for _ in range(3):  # the topic is plain, and a turn of brokers has chosen its partition
        world.send_one(b"back")
        settle(world)
    world.send_one(b"back")
    world.send_one(b"back")
    (early,), (late,) = world.doorbells
    world.slab.words[(world.slab.chunk_at(early.chunk) + early.run + lay.RUN_TOPIC) >> 2] = stale
    world.doorbells.clear()
    world.doorbells.append([early, late])
    settle(world)
    assert len(world.cluster.log(b"back", 0)) == 7


def test_a_new_router_discards_runs_under_a_freed_number(make: MakeWorld) -> None:
    world = with_full_topic_table(make, b"old", b"other", new_leader=1)
    settle(world)
    stale = world.router._tables.topics.number_of(b"old")
    vanish(world, b"old")
    world.topics[b"new"] = 1
    world.send_one(b"new")
    settle(world)
    world.send_one(b"new")
    [segment] = world.doorbells[0]
    world.slab.words[(world.slab.chunk_at(segment.chunk) + segment.run + lay.RUN_TOPIC) >> 2] = stale
    world.kill_router()
    run_for(world, 1)
    world.advance_clock(START_GRACE_MS)
    world.step_until_settled()
    assert world.reporter.discarded == {DiscardReason.BAD_TOPIC: 1}
    assert world.router._row.counters[Counter.RefusedDamagedPlace] == 0


def test_a_topic_that_returns_after_its_entry_was_freed_is_no_duplicate(make: MakeWorld) -> None:
    world = with_full_topic_table(make, b"back", b"other", new_leader=1)
    settle(world)
    vanish(world, b"back")
    world.topics[b"new"] = 1
    world.send_one(b"new")
    settle(world)
    vanish(world, b"new")
    world.topics[b"back"] = 1
    world.cluster.leaders[b"back", 0] = 1
    world.send_one(b"back")
    settle(world)
    assert len(world.cluster.log(b"back", 0)) == 2, "the broker took it for the message of before"


@pytest.mark.parametrize("version", [1, lay.LAYOUT_VERSION])
def test_full_tables_are_reported(make: MakeWorld, caplog: pytest.LogCaptureFixture, version: int) -> None:
    geometry = replace(GEOMETRY, topics=3, partitions=3, rows=lay.ROW_FIRST_DISPATCHER + 2)
    world = make({b"a": [1, 2, 3], b"b": [1], b"c": [1]}, geometry=geometry)
    world.slab.words[lay.SUPER_VERSION >> 2] = version
    for topic in (b"a", b"b", b"c"):
        for key in range(8):
            world.send_one(topic, key=key)
    for _ in range(300):
        world.step_all()
    lines = [record.getMessage() for record in caplog.records if "is full" in record.getMessage()]
    assert sorted(text.split(" is full")[0].split()[-1] for text in lines) == ["brokers", "partitions", "topics"]
    raised = sorted(text.partition("raises this one to ")[2].split(" ")[0] for text in lines)
    assert raised == (["128", "65,536", "8,191"] if version == 1 else [""] * 3)


# --- limits -----------------------------------------------------------------------------------------------------------
def test_the_largest_message_has_room_for_26_bytes_of_overhead(make: MakeWorld) -> None:
    world = make({b"t": [1]}, quick_config(batching=Batching(message_max_bytes=1000)))
    fits = [world.send_one(b"t", b"v" * size) for size in (10, 974)]
    for size in (975, 3000):
        world.send_one(b"t", b"v" * size)
    fits.append(world.send_one(b"t", b"v" * 974))
    world.step_until_settled()
    assert [record.arrival for record in world.cluster.log(b"t", 0)] == fits
    assert world.reporter.discarded == {DiscardReason.LONG_MSG: 2}


def test_a_per_topic_batch_is_routed_as_a_whole(make: MakeWorld) -> None:
    batching = Batching(default=DefaultBatching(action="per_topic", config="standard"))
    world = make({b"t": [1] * 4}, quick_config(batching=batching))
    world.step_until_synced()
    for _ in range(3):
        for _ in range(5):
            world.send_one(b"t")
            world.ring()
        world.advance_clock(100)
    settle(world)
    assert sorted(len(world.cluster.log(b"t", partition)) for partition in range(4)) == [0, 5, 5, 5]


def slots_with_frames(world: World) -> set[int]:
    """Return the slots of the dispatchers for which frames are under way."""
    return {slot for slot, lines in world.to_peer.items() if any(lines)}


def hear_all(world: World) -> None:
    while slots := slots_with_frames(world):
        for slot in slots:
            world.deliver_to_dispatcher(slot)


def test_a_flush_wakes_only_dispatchers_that_accumulate_the_topic(make: MakeWorld) -> None:
    world = make({b"t": [1], b"u": [2]})
    world.step_until_synced()
    world.send_one(b"t")
    world.ring()
    (slot,) = slots_with_frames(world)
    number = world.router._tables.topics.number_of(b"t")
    for expected in ({slot}, set()):  # the router repeats a flush while a barrier waits
        hear_all(world)
        world.router.flush_topic(number, world.now_ms)
        world.advance_clock(0)
        assert slots_with_frames(world) == expected
    world.send_request(slot)
    world.answer(slot)
    assert len(world.cluster.log(b"t", 0)) == 1
    settle(world)


# --- pauses -----------------------------------------------------------------------------------------------------------
SLOW: Final = Delivery(min_pause_delay_ms=1000, pause_rate_limit_initial_ms=1000, pause_rate_limit_max_double=4)


def run_for(world: World, seconds: float) -> None:
    for _ in range(int(seconds * 100)):
        world.step_all()


def test_a_metadata_fetch_in_progress_delays_no_known_topic(make: MakeWorld) -> None:
    world = make({b"t": [1]}, quick_config(action="none"))
    world.step_until_synced()
    world.send_one(b"new")
    world.ring()
    world.advance_clock(NEGATIVE_CACHE_MS)
    assert world.fetch_started is not None
    world.send_one(b"t")
    world.ring()
    (slot,) = world.peers
    world.deliver_to_dispatcher(slot)
    world.send_request(slot)
    world.answer(slot)
    assert len(world.cluster.log(b"t", 0)) == 1
    assert world.fetch_started is not None
    settle(world)


@pytest.mark.parametrize("partitions", [1, 20])
def test_a_broker_that_is_down_for_a_minute_costs_few_fetches(make: MakeWorld, partitions: int) -> None:
    world = make({b"t": [1] * partitions}, quick_config(delivery=SLOW, action="none"))
    world.step_until_synced()
    world.down.add(1)
    for _ in range(partitions):
        world.send_one(b"t")
    before = world.fetches
    run_for(world, 60)
    assert 3 <= world.fetches - before <= 12
    settle(world)


def test_leaderless_partitions_for_a_minute_cost_few_fetches(make: MakeWorld) -> None:
    world = make({b"t": [1] * 20}, quick_config(delivery=SLOW, action="none"))
    world.step_until_synced()
    for partition in range(20):
        world.cluster.leaders[b"t", partition] = None
    before = world.fetches
    for second in range(60):
        world.send_one(b"t", key=second)
        world.send_one(b"t")
        run_for(world, 1)
    assert 15 <= world.fetches - before <= 31  # every two seconds
    for partition in range(20):
        world.cluster.leaders[b"t", partition] = 2
    settle(world)


def test_one_down_broker_delays_no_other(make: MakeWorld) -> None:
    world = make({b"t": [1, 2, 3]})
    world.step_until_synced()
    world.down.add(1)
    world.break_connection(0)
    for _ in range(100):
        world.send([(b"t", datagram(b"t", b"v", partition_key=key), key) for key in range(3)])
        world.step_all()
    run_for(world, 0.2)
    assert [len(world.cluster.log(b"t", partition)) for partition in range(3)] == [0, 100, 100]
    settle(world)


@pytest.mark.parametrize(("action", "unnoticed", "tolerance"), [("none", 1, 2), ("combined", 2, 10)])
def test_any_partition_messages_avoid_a_down_broker(
    make: MakeWorld, action: str, unnoticed: int, tolerance: int
) -> None:
    """`unnoticed`: messages that arrive before the first batch of the turn notices the loss."""
    world = make({b"t": [1, 2, 3]}, quick_config(delivery=SLOW, action=action))
    world.step_until_synced()
    world.down.add(1)
    world.break_connection(0)
    for _ in range(20):
        world.send_one(b"t")
        run_for(world, 0.11)
    stuck = len(world.cluster.log(b"t", 0))
    for _ in range(60):
        world.send_one(b"t")
        run_for(world, 0.11)
    run_for(world, 0.3)
    logs = [len(world.cluster.log(b"t", partition)) for partition in range(3)]
    assert logs[0] == stuck == 0
    assert sum(world.held().values()) <= unnoticed, "more than what noticed the loss waits for the broker"
    assert abs(logs[1] - logs[2]) <= tolerance
    settle(world)


@pytest.mark.parametrize("is_removed", [True, False], ids=["removed", "without partitions"])
def test_the_slot_of_a_broker_that_leads_nothing_is_reused(make: MakeWorld, *, is_removed: bool) -> None:
    world = make({b"t": [1]}, geometry=replace(GEOMETRY, rows=lay.ROW_FIRST_DISPATCHER + 4))
    world.send_one(b"t")
    settle(world)
    for node in range(2, 10):
        world.brokers = {node} if is_removed else set(range(1, 10))
        world.cluster.leaders[b"t", 0] = node
        world.send_one(b"t")
        world.router.request_fetch_now(world.now_ms)
        settle(world)
    assert len(world.cluster.log(b"t", 0)) == 9
    assert len(world.router._assignments._slots) <= (2 if is_removed else 4)


def test_a_new_router_does_not_know_the_slot_of_a_removed_broker(make: MakeWorld) -> None:
    world = make({b"t": [1], b"u": [2]})
    world.step_until_synced()
    world.brokers = {2}
    world.cluster.leaders[b"t", 0] = 2
    for _ in range(2):  # the first one moves the leader, the second one finds the slot unused
        world.router.request_fetch_now(world.now_ms)
        world.send_one(b"t")
        settle(world)
    assert DispatcherSet(world.slab, SlabTables(world.slab), set).slots.keys() == {2}


def test_the_removal_of_a_broker_ends_the_pause_of_its_dispatcher(make: MakeWorld) -> None:
    world = make({b"t": [1], b"u": [2]})
    world.step_until_synced()
    world.down.add(1)
    world.send_one(b"t")
    run_for(world, 0.5)
    world.brokers = {2}
    world.cluster.leaders[b"t", 0] = 2
    world.router.request_fetch_now(world.now_ms)
    settle(world)
    started = counter_total(world.slab, Counter.PauseStarted)
    assert started > 0
    assert counter_total(world.slab, Counter.PauseFinished) == started


def test_a_router_without_metadata_leaves_the_dispatchers_alone(make: MakeWorld) -> None:
    """An empty set of dispatchers would make the supervisor stop the running ones."""
    world = make({b"t": [1, 2]})
    world.send_one(b"t")
    settle(world)
    world.kill_router()
    assert world.router.dispatchers_to_run() is None
    world.answer_fetch()
    assert set(world.router.dispatchers_to_run() or ()) == {0, 1}
