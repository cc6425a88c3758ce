"""A topic gets more partitions while messages are on their way: each partition keeps the order of arrival.

No partition ever stands in for another here, so that the order holds for all PartitionKey messages of a partition.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bruce_mp.router.cluster import MISSING_GRACE_MS
from bruce_mp.slab.file import Geometry
from support.examples import examples
from support.flow import World
from support.flow_parts import quick_config
from support.machine import BROKERS
from support.slabs import Input, datagram, new_slab

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

MANY_LANES: Final = 640
FEW_LANES: Final = 48
"""Chunks.  A quarter of them may be lanes, so that with few some keys go through a shared lane.

With fewer than 40 the longest of the generated stories fill the slab.
"""
LEADERS: Final = (1, 2, 3, 1)

keys = st.one_of(st.none(), st.integers(0, 63))
batches = st.lists(keys, min_size=1, max_size=12)
leaders = st.lists(st.sampled_from([*BROKERS, None]), min_size=1, max_size=3)


@contextmanager
def a_world(chunks: int = MANY_LANES) -> Iterator[World]:
    geometry = Geometry(chunks=chunks, topics=16, partitions=128, landing_slots=16, landing_slot_size=4096)
    with new_slab(geometry) as slab:
        world = World(slab, {b"t": LEADERS}, quick_config(action="none"))
        world.input = Input(slab, linger_ms=1000)
        yield world
        world.close()


def receive(world: World, keys: Sequence[int | None]) -> None:
    world.receive([(b"t", datagram(b"t", b"v", partition_key=key), key) for key in keys])


def elect(world: World) -> None:
    for place, leader in world.cluster.leaders.items():
        world.cluster.leaders[place] = leader or 1


Step = tuple[Callable[["Story", Any], None], object]


class Story:
    """The steps of a world; each has an argument, which most ignore."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.first_view = world.view()

    def receive(self, keys: Sequence[int | None]) -> None:
        receive(self.world, keys)

    def grow(self, leaders: Sequence[int | None]) -> None:
        self.world.grow(b"t", leaders)

    def elect(self, _: None) -> None:
        elect(self.world)

    def hand_over(self, _: None) -> None:
        self.world.hand_over()

    def ring(self, _: None) -> None:
        self.world.ring()

    def run(self, _: None) -> None:
        self.world.step_all()

    def hand_back(self, _: None) -> None:
        self.world.refresh()

    def hear_metadata(self, _: None) -> None:
        hear(self.world)

    def hear_stale_metadata(self, _: None) -> None:
        self.world.router.on_metadata(self.first_view, self.world.now_ms, self.world.now_ms)

    def kill_router(self, _: None) -> None:
        self.world.kill_router()

    def kill_input(self, _: None) -> None:
        self.world.input = Input(self.world.slab, linger_ms=1000)
        self.world.router.claim_filled(self.world.now_ms)

    def kill_everything(self, _: None) -> None:
        self.world.input = Input(self.world.slab, linger_ms=1000)
        self.world.kill_all()

    def end(self) -> None:
        elect(self.world)
        self.world.hand_over()
        settle(self.world)


PLAIN: Final = (
    Story.elect, Story.hand_over, Story.ring, Story.run, Story.hand_back, Story.hear_metadata,
    Story.hear_stale_metadata, Story.kill_router, Story.kill_input, Story.kill_everything,
)  # fmt: skip
receptions = st.tuples(st.just(Story.receive), batches)
steps = st.one_of(
    receptions, receptions, st.tuples(st.just(Story.grow), leaders), st.tuples(st.sampled_from(PLAIN), st.none())
)


@pytest.mark.exhaustive
@pytest.mark.parametrize("chunks", [MANY_LANES, FEW_LANES])
@examples(30)
@given(actions=st.lists(steps, min_size=1, max_size=30))
def test_partition_order_holds_for_any_growth_of_a_topic(chunks: int, actions: list[Step]) -> None:
    with a_world(chunks) as world:
        number_the_topic(world)
        story = Story(world)
        for step, argument in actions:
            step(story, argument)
        story.end()


@pytest.fixture
def world() -> Iterator[World]:
    with a_world() as made:
        number_the_topic(made)
        yield made


def number_the_topic(world: World) -> None:
    world.step_until_synced()
    receive(world, [0])
    world.hand_over()
    world.step_until_settled()


def hear(world: World) -> None:
    world.router.on_metadata(world.view(), world.now_ms, world.now_ms)


def settle(world: World) -> None:
    world.end_faults()
    world.step_until_settled()
    world.check(stands_in=False)


def homes(world: World, keys: Sequence[int]) -> list[int]:
    """The partition in which each of these keys is, all of which are different."""
    found = {
        record.partition_key: partition
        for partition in range(world.topics[b"t"])
        for record in world.cluster.log(b"t", partition)
    }
    return [found[key] for key in keys]


KEYS: Final = (3, 10, 9, 17, 2, 16, 24, 23)
"""Modulo 7 each of them is 2 or 3; modulo 4 they are of all lanes."""


def test_held_runs_keep_their_lanes_partitions_under_a_new_router(world: World) -> None:
    receive(world, KEYS)
    world.hand_over()
    world.grow(b"t", [1, 2, 3])
    world.kill_router()
    settle(world)
    assert homes(world, KEYS) == [key % 4 for key in KEYS]


def test_published_runs_keep_their_order_when_the_topic_grows(world: World) -> None:
    receive(world, KEYS)
    world.grow(b"t", [1, 2, 3])
    hear(world)
    receive(world, [key + 28 for key in KEYS])
    world.hand_over()
    settle(world)
    assert homes(world, KEYS) == [key % 4 for key in KEYS]
    assert homes(world, [key + 28 for key in KEYS]) == [key % 7 for key in KEYS]


def test_runs_of_shared_lanes_keep_the_order_when_the_topic_grows() -> None:
    with a_world(FEW_LANES // 6) as world:
        number_the_topic(world)
        receive(world, KEYS)
        world.hand_over()
        world.grow(b"t", [1, 2, 3])
        world.kill_router()
        settle(world)
        assert homes(world, KEYS) == [key % 4 for key in KEYS]


def test_a_new_partition_gets_keys_only_after_it_had_a_leader(world: World) -> None:
    world.grow(b"t", [1, None, 3])
    hear(world)
    receive(world, KEYS)
    world.hand_over()
    world.ring()
    elect(world)
    hear(world)
    receive(world, [key + 70 for key in KEYS])
    world.hand_over()
    settle(world)
    assert homes(world, KEYS) == [key % 5 for key in KEYS]
    assert homes(world, [key + 70 for key in KEYS]) == [key % 7 for key in KEYS]


def test_stale_metadata_does_not_undo_a_partition_increase(world: World) -> None:
    stale = world.view()
    world.grow(b"t", [1, 2, 3])
    hear(world)
    receive(world, KEYS)
    world.hand_over()
    world.router.on_metadata(stale, world.now_ms, world.now_ms)
    world.ring()
    settle(world)
    assert homes(world, KEYS) == [key % 7 for key in KEYS]


def test_any_partition_messages_are_delivered_under_stale_metadata(world: World) -> None:
    stale = world.view()
    world.grow(b"t", [1, 2, 3])
    hear(world)
    world.router.on_metadata(stale, world.now_ms, world.now_ms)
    before = sum(len(world.cluster.log(b"t", partition)) for partition in range(7))
    for _ in range(5):
        world.send_one(b"t")
    for _ in range(40):
        world.ring()
        world.deliver_to_router()
        for slot in list(world.peers):
            world.deliver_to_dispatcher(slot)
            world.send_request(slot)
            world.answer(slot)
    after = sum(len(world.cluster.log(b"t", partition)) for partition in range(7))
    assert after - before == 5


def test_a_recreated_topic_with_fewer_partitions_is_accepted_after_a_delay(world: World) -> None:
    world.topics[b"t"] = 2
    receive(world, KEYS)
    world.hand_over()
    hear(world)
    world.ring()
    assert world.router.leaderless_partitions()
    world.advance_clock(MISSING_GRACE_MS)
    hear(world)
    world.end_faults()
    world.step_until_settled()
    assert homes(world, KEYS) == [key % 2 for key in KEYS]
