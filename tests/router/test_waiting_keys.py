"""Keys of a partition without a leader: they wait for it, or the next partition gets them."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bruce_mp.config.sections import PartitionerSection
from bruce_mp.router.cluster import TopicView
from bruce_mp.slab.file import Geometry
from support.examples import examples
from support.flow import ROUTER, World
from support.flow_parts import quick_config
from support.slabs import new_slab

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from bruce_mp.config.model import Config

GEOMETRY: Final = Geometry(chunks=320, topics=16, partitions=32, landing_slots=16, landing_slot_size=4096)
PARTITIONS: Final = 3
leaders = st.lists(st.sampled_from([1, 2, 3, None]), min_size=PARTITIONS, max_size=PARTITIONS)


def config_of(choice: Literal["wait", "next"]) -> Config:
    return quick_config(action="none", partitioner=PartitionerSection(default="murmur2", without_leader=choice))


@contextmanager
def a_world(choice: Literal["wait", "next"], leaders: Sequence[int | None] = (1, 2, 3)) -> Iterator[World]:
    with new_slab(GEOMETRY) as slab:
        world = World(slab, {b"t": (1, 2, 3)}, config_of(choice))
        elect(world, leaders)
        world.step_until_synced()
        yield world
        world.check()
        world.close()


def elect(world: World, leaders: Sequence[int | None]) -> None:
    for partition, leader in enumerate(leaders):
        world.cluster.leaders[b"t", partition] = leader


def work(world: World) -> None:
    world.router.on_metadata(world.view(), world.now_ms, world.now_ms)
    for _ in range(40):
        world.step_all()


def keys_in(world: World, partition: int) -> list[int | None]:
    return [record.partition_key for record in world.cluster.log(b"t", partition)]


@given(partitions=st.sets(st.integers(0, 20), min_size=1), data=st.data())
def test_waiting_keys_keep_their_partition_once_any_partition_has_a_leader(
    partitions: set[int], data: st.DataObject
) -> None:
    led = data.draw(st.sets(st.sampled_from(sorted(partitions))))
    found = TopicView(tuple(sorted(partitions)), dict.fromkeys(led, 1)).key_partitions(keys_wait=True)
    assert found == (sorted(partitions) if led else [])


def test_keys_of_a_partial_view_wait_in_the_router() -> None:
    assert TopicView((0, 1), {0: 1}, is_partial=True).key_partitions(keys_wait=True) == []


@pytest.mark.parametrize("outage", [(1, None, 3), (None, None, None)])
def test_keys_wait_for_the_leader_of_their_partition(outage: Sequence[int | None]) -> None:
    with a_world("wait") as world:
        world.send_one(b"t", key=1)
        work(world)
        elect(world, outage)
        work(world)
        for key in (4, 3, 7):
            world.send_one(b"t", key=key)
            work(world)
        assert keys_in(world, 1) == [1]
        elect(world, (1, 2, 3))
        world.step_until_settled()
        assert [keys_in(world, partition) for partition in range(3)] == [[3], [1, 4, 7], []]


def test_keys_go_to_the_next_partition_when_the_config_says_so() -> None:
    with a_world("next", (1, None, 3)) as world:
        world.send_one(b"t", key=4)
        world.step_until_settled()
        assert keys_in(world, 2) == [4]


def test_a_reload_changes_the_choice_for_later_keys() -> None:
    with a_world("next", (1, None, 3)) as world:
        world.send_one(b"t", key=4)
        work(world)
        world.reload(config_of("wait"))
        world.apply_config(ROUTER)
        world.send_one(b"t", key=7)
        work(world)
        assert keys_in(world, 2) == [4]
        elect(world, (1, 2, 3))
        world.step_until_settled()
        assert (keys_in(world, 1), keys_in(world, 2)) == ([7], [4])


@pytest.mark.exhaustive
@examples(40)
@given(
    story=st.lists(st.tuples(st.lists(st.integers(0, 40), max_size=5), leaders, st.booleans()), min_size=1, max_size=6)
)
def test_each_key_stays_in_its_partition_and_in_order_through_outages_and_router_deaths(
    story: list[tuple[list[int], list[int | None], bool]],
) -> None:
    sent: list[int] = []
    with a_world("wait") as world:
        for keys, leaders_then, kills_router in story:
            elect(world, leaders_then)
            for key in keys:
                world.send_one(b"t", key=key)
                sent.append(key)
            if kills_router:
                world.kill_router()
            work(world)
        elect(world, (1, 2, 3))
        world.step_until_settled()
        for partition in range(PARTITIONS):
            assert keys_in(world, partition) == [key for key in sent if key % PARTITIONS == partition]
