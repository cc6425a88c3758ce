"""A topic is deleted and created again with fewer partitions while messages for the lost ones are on their way.

Batches that a dispatcher had built are discarded, like those of a deleted topic; all other messages are delivered once,
those of a partition key in order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

from bruce_mp.errors import DiscardReason
from bruce_mp.pipeline.stage_counts import count_books
from bruce_mp.router.cluster import MISSING_GRACE_MS, ClusterView, TopicView
from bruce_mp.slab.file import Geometry
from bruce_mp.slab.layout import RunState
from bruce_mp.telemetry.counters import Counter
from support.examples import seeds
from support.flow import ROUTER, World
from support.flow_parts import quick_config
from support.slabs import datagram, new_slab
from support.variants import PURE_KERNELS_ONLY

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from bruce_mp.slab.file import Slab

GEOMETRY: Final = Geometry(chunks=160, topics=16, partitions=32, landing_slots=16, landing_slot_size=4096)
LEADERS: Final = (1, 2, 3, 1)
LEFT: Final = 2
"""The number of partitions after the topic was created again."""
KEYS: Final = (0, 1, 2, 3, 6, 7, 10, 11)
MOST_STORES: Final = 200
SEEDS: Final = seeds(40)


class Story:
    """A world with topic `t`; `lost` has the arrival numbers in the logs of lost partitions."""

    def __init__(self, slab: Slab, seed: int = 0) -> None:
        self.world = World(slab, {b"t": LEADERS}, quick_config(action="none"), seed=seed)
        self.lost: set[int] = set()
        self.world.step_until_synced()
        self.send(range(len(LEADERS)))
        self.world.step_until_settled()

    def send(self, keys: Sequence[int | None]) -> None:
        self.world.send([(b"t", datagram(b"t", b"v", partition_key=key), key) for key in keys])
        self.world.ring()

    def recreate(self, count: int = LEFT) -> None:
        """Delete the topic, and create it again with empty logs and at most as many partitions as before."""
        cluster, before = self.world.cluster, self.world.topics[b"t"]
        self.lost |= {record.arrival for p in range(count, before) for record in cluster.log(b"t", p)}
        for partition in range(before):
            leader = cluster.leaders.pop((b"t", partition)) or 1
            if partition < count:
                cluster.add((b"t", partition), leader)
        self.world.topics[b"t"] = count

    def hear(self, view: ClusterView | None = None) -> None:
        self.world.router.on_metadata(view or self.world.view(), self.world.now_ms, self.world.now_ms)

    def fetch(self) -> None:
        """Let the router fetch the present metadata."""
        self.world.router.request_fetch_now(self.world.now_ms)
        self.world.advance_clock(1000)
        self.world.answer_fetch()
        self.world.advance_clock(1)

    def deliver_to_dispatchers(self) -> None:
        for _ in range(3):
            for slot in list(self.world.peers):
                self.world.deliver_to_dispatcher(slot)

    def hold_in_router(self, keys: Sequence[int | None], *, is_built: bool) -> None:
        """Let messages wait in the routes of their partitions; if `is_built`, brokers wrote them and did not answer."""
        world = self.world
        leaders = dict(world.cluster.leaders)
        if not is_built:
            world.down.update(LEADERS)
            for slot in list(world.peers):
                world.break_connection(slot)
        self.send(keys)
        self.deliver_to_dispatchers()
        for slot in list(world.peers):
            world.send_request(slot)
            world.break_connection(slot, executed=9)
        world.cluster.leaders.update(dict.fromkeys(leaders, None))
        for _ in range(30):
            world.step_all()
        assert world.held() == {"ROUTED_SENT" if is_built else "ROUTED": len(keys)}
        world.down.clear()
        world.cluster.leaders.update(leaders)

    def pass_grace_period(self) -> None:
        """Let metadata come several times a second until the grace period is over."""
        for _ in range(MISSING_GRACE_MS // 500 + 2):
            self.run(5)
            self.world.advance_clock(450)

    def run(self, rounds: int) -> None:
        for _ in range(rounds):
            self.world.step_all()

    def settle(self) -> None:
        for _ in range(60):
            if self.world.is_settled():
                break
            self.run(10)
            self.world.advance_clock(500)
        self.world.step_until_settled(100)
        self.check()

    def check(self) -> None:
        """Check that each message was delivered or discarded, and none of a lost partition was sent again.

        No message may be discarded before a dispatcher has built a batch of it.  In a partition, the messages of each
        key must be in order.
        """
        logs = [self.world.cluster.log(b"t", partition) for partition in range(self.world.topics[b"t"])]
        arrivals = [record.arrival for log in logs for record in log]
        assert len(arrivals) == len(set(arrivals))
        assert not self.lost.intersection(arrivals)
        for log in logs:
            for key in {record.partition_key for record in log} - {None}:
                of_key = [record.arrival for record in log if record.partition_key == key]
                assert of_key == sorted(of_key), f"key {key}"
        assert (RunState.ROUTED, RunState.DISCARDED) not in self.world.words.stored
        books = count_books(self.world.slab)
        assert {reason for reason, count in books.discarded.items() if count} <= {DiscardReason.BAD_TOPIC.name}
        assert books.delivered + sum(books.discarded.values()) == len(self.world.received)

    def homes(self) -> dict[int | None, int]:
        """Return the partition of each key in the logs."""
        return {
            record.partition_key: partition
            for partition in range(self.world.topics[b"t"])
            for record in self.world.cluster.log(b"t", partition)
        }


@pytest.fixture
def story() -> Iterator[Story]:
    with new_slab(GEOMETRY) as slab:
        made = Story(slab)
        yield made
        made.world.close()


def test_unsent_messages_of_lost_partitions_go_to_the_others(story: Story) -> None:
    story.hold_in_router([*KEYS, None, None, None], is_built=False)
    story.recreate()
    story.run(20)
    assert sum(story.world.held().values()) >= 6, "a partition is lost before the grace period ends"
    story.pass_grace_period()
    story.settle()
    assert story.world.reporter.discarded == {}
    homes = story.homes()
    assert [homes[key] for key in KEYS] == [key % LEFT for key in KEYS]
    of_lost = [record.arrival for record in story.world.cluster.log(b"t", 0) if record.partition_key in {2, 6, 10}]
    assert of_lost == sorted(of_lost)


def test_built_batches_of_lost_partitions_are_discarded_once(story: Story) -> None:
    story.hold_in_router([2, 3, 2, 3], is_built=True)
    story.recreate()
    story.pass_grace_period()
    story.settle()
    assert story.world.reporter.discarded == {DiscardReason.BAD_TOPIC: 4}
    assert story.world.router._row.counters[Counter.DiscardBadTopicOnReroute] == 4
    quiet_from = story.world.fetches
    story.run(100)
    assert story.world.fetches == quiet_from


def lose_held_partitions(story: Story) -> None:
    """Recreate the topic while dispatchers hold its lost partitions; return before the grace period ends."""
    story.send([2, 3])
    story.deliver_to_dispatchers()
    for slot in list(story.world.peers):
        story.world.send_request(slot)
    story.send([6, 7])
    story.deliver_to_dispatchers()
    assert story.world.held() == {"IN_FLIGHT": 2, "QUEUED": 2}
    story.recreate()
    story.fetch()
    story.world.advance_clock(MISSING_GRACE_MS)


def test_a_dispatcher_hands_back_lost_partitions(story: Story) -> None:
    lose_held_partitions(story)
    story.fetch()
    story.deliver_to_dispatchers()
    assert story.world.held() == {"IN_FLIGHT": 2, "QUEUED": 2}, "the broker has not answered"
    story.settle()
    assert story.world.reporter.discarded == {DiscardReason.BAD_TOPIC: 2}
    assert [story.homes()[key] for key in (6, 7)] == [0, 1]
    assert story.world.router._assignments._routes.keys() <= {(1, 0), (1, 1)}


def test_later_messages_of_a_key_wait_for_those_at_a_dispatcher(story: Story) -> None:
    lose_held_partitions(story)
    story.send([6, 7])
    story.fetch()
    story.deliver_to_dispatchers()
    assert story.world.held() == {"IN_FLIGHT": 2, "QUEUED": 2, "ROUTED": 2}
    story.settle()
    assert story.world.reporter.discarded == {DiscardReason.BAD_TOPIC: 2}
    assert [record.partition_key for record in story.world.cluster.log(b"t", 0)] == [6, 6]
    assert [record.partition_key for record in story.world.cluster.log(b"t", 1)] == [7, 7]


def test_messages_of_a_key_keep_their_order_if_two_partitions_had_them(story: Story) -> None:
    world = story.world
    story.send([2])
    story.deliver_to_dispatchers()
    world.cluster.leaders[b"t", 2] = None
    story.fetch()
    story.send([2])  # partition 3 stands in
    story.deliver_to_dispatchers()
    story.recreate()
    story.fetch()
    world.advance_clock(MISSING_GRACE_MS)
    story.fetch()
    for slot, queued in ((2, 2), (0, 1)):
        assert world.held()["QUEUED"] == queued
        for _ in range(3):
            world.deliver_to_dispatcher(slot)
            world.deliver_to_router()
        story.fetch()
    story.settle()
    assert [record.partition_key for record in world.cluster.log(b"t", 0)] == [2, 2]


def test_later_messages_of_a_key_wait_for_those_that_a_new_router_finds(story: Story) -> None:
    story.hold_in_router([2, 3], is_built=False)
    story.recreate()
    leaders = dict(story.world.cluster.leaders)
    story.world.cluster.leaders.update(dict.fromkeys(leaders, None))
    story.pass_grace_period()
    story.world.kill_router()
    story.world.cluster.leaders.update(leaders)
    story.send([2, 3])
    story.settle()
    assert [record.partition_key for record in story.world.cluster.log(b"t", 0)] == [2, 2]
    assert [record.partition_key for record in story.world.cluster.log(b"t", 1)] == [3, 3]


def test_later_messages_of_a_key_follow_a_partition_that_comes_back(story: Story) -> None:
    full = story.world.view()
    story.send([2, 3])
    story.deliver_to_dispatchers()
    story.hear(ClusterView(full.brokers, {b"t": TopicView((0, 1), {0: 1, 1: 2})}))
    story.send([2, 3])
    story.world.advance_clock(MISSING_GRACE_MS)
    story.hear(ClusterView(full.brokers, {b"t": TopicView((0, 1), {0: 1, 1: 2})}))
    story.hear(full)
    story.settle()
    assert story.world.reporter.discarded == {}
    assert [story.homes()[key] for key in (2, 3)] == [2, 3]


def test_partitions_that_are_missing_for_a_moment_lose_nothing(story: Story) -> None:
    story.hold_in_router([2, 3], is_built=True)
    full = story.world.view()
    lagging = ClusterView(full.brokers, {b"t": TopicView((0, 1), {0: 1, 1: 2})})
    waiting = ClusterView(full.brokers, {b"t": TopicView((0, 1, 2, 3), {0: 1, 1: 2})})
    for _ in range(3):
        story.hear(lagging)
        story.world.advance_clock(MISSING_GRACE_MS - 1)
        story.hear(lagging)
        story.hear(waiting)
    story.settle()
    assert story.world.reporter.discarded == {}


def test_an_error_without_partitions_loses_nothing(story: Story) -> None:
    story.hold_in_router([2, 3], is_built=True)
    broken = ClusterView(story.world.view().brokers, {b"t": TopicView((), {})})
    for _ in range(3):
        story.hear(broken)
        story.world.advance_clock(MISSING_GRACE_MS)
    story.settle()
    assert story.world.reporter.discarded == {}


def test_a_new_router_gives_lost_partitions_a_grace_period(story: Story) -> None:
    story.hold_in_router([2, 3], is_built=True)
    story.recreate()
    story.hear()
    story.world.advance_clock(MISSING_GRACE_MS)
    story.world.kill_router()
    story.hear()
    assert sum(story.world.held().values()) == 2
    story.pass_grace_period()
    story.settle()
    assert story.world.reporter.discarded == {DiscardReason.BAD_TOPIC: 2}


def tell(slab: Slab, who: int, stores: int) -> bool:
    """Lose partitions; kill process `who` after `stores` stores of the loss.  Return False if the process survives."""
    story = Story(slab, seed=stores)
    lose_held_partitions(story)
    story.send([6, 7])
    story.world.stores_until_kill[who] = stores
    story.fetch()
    story.deliver_to_dispatchers()
    story.send([6, 7, 0, 1, None])
    story.pass_grace_period()
    story.settle()
    story.world.close()
    return who not in story.world.stores_until_kill


@pytest.mark.exhaustive
@PURE_KERNELS_ONLY
@pytest.mark.parametrize("who", [ROUTER, 0, 2], ids=["router", "a dispatcher", "another dispatcher"])
def test_a_death_at_any_store_of_the_loss_neither_loses_nor_duplicates_messages(who: int) -> None:
    with new_slab(GEOMETRY) as slab:
        new = bytes(slab.view)
        for stores in range(MOST_STORES):
            slab.view[:] = new
            if not tell(slab, who, stores):
                return
    pytest.fail("the story has no end")


@pytest.mark.exhaustive
@PURE_KERNELS_ONLY
@pytest.mark.parametrize("seed", SEEDS)
def test_any_story_with_lost_partitions_neither_loses_nor_duplicates_messages(seed: int) -> None:
    with new_slab(GEOMETRY) as slab:
        story = Story(slab, seed)
        world, rng = story.world, story.world.rng
        faults: tuple[Callable[[], object], ...] = (
            *[lambda: story.send(rng.choices((*KEYS, None), k=4))] * 3,
            *[lambda: story.recreate(rng.randint(1, world.topics[b"t"]))] * 2,
            lambda: world.grow(b"t", rng.choices((1, 2, 3), k=rng.randint(1, 2))),
            lambda: world.break_connection(rng.randrange(3), executed=rng.randrange(3)),
            *[lambda: world.advance_clock(rng.randrange(2 * MISSING_GRACE_MS))] * 2,
            world.kill_router,
            lambda: world.kill_peer(rng.randrange(3)),
            lambda: world.stores_until_kill.update({rng.choice((ROUTER, 0, 1, 2)): rng.randrange(40)}),
            world.refresh,
        )
        for _ in range(30):
            rng.choice(faults)()
            story.run(rng.randrange(12))
        world.stores_until_kill.clear()
        story.settle()
        world.close()
