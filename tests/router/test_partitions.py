"""Which partition: the words of the spec as a model, for any number of partitions, of which some have no leader."""

from __future__ import annotations

from collections import Counter as Tally
from typing import TYPE_CHECKING, Final, Literal

from hypothesis import given
from hypothesis import strategies as st

from bruce_mp.router.cluster import TopicView
from bruce_mp.slab import layout as lay
from bruce_mp.slab.file import Geometry
from support.examples import examples
from support.flow import World
from support.flow_parts import quick_config
from support.slabs import datagram, new_slab

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

GEOMETRY: Final = Geometry(chunks=320, topics=16, partitions=32, landing_slots=16, landing_slot_size=8192)
ONE_TO_A_CHUNK: Final = b"v" * (lay.CHUNK_BYTES * 5 // 8)
"""The turn of AnyPartition messages passes on with the chunk that they lie in."""

keys = st.integers(-(1 << 31), (1 << 32) - 1)
leaders = st.lists(st.sampled_from([1, 2, 3, None]), min_size=1, max_size=6).filter(any)
actions = st.sampled_from(["none", "per_topic"])
"""Combined topics have turns of brokers: `test_broker_turns.py`."""


def designated(key: int, known: Collection[int], available: Collection[int]) -> int | None:
    """`uint32(key) mod P` picks from all known partitions, ascending; then forward, wrapping, to an available one."""
    ascending = sorted(known)
    index = (key & 0xFFFFFFFF) % len(ascending)
    walk = ascending[index:] + ascending[:index]
    return next((partition for partition in walk if partition in available), None)


@examples(150)
@given(known=st.sets(st.integers(0, 50), min_size=1, max_size=20), data=st.data())
def test_a_key_selects_from_all_known_partitions_and_skips_leaderless_ones(
    known: set[int], data: st.DataObject
) -> None:
    """Also where the numbers of partitions have gaps."""
    available = data.draw(st.sets(st.sampled_from(sorted(known))))
    key = data.draw(keys)
    key_partitions = TopicView(tuple(sorted(known)), dict.fromkeys(available, 1)).key_partitions()
    found = key_partitions[(key & 0xFFFFFFFF) % len(key_partitions)] if key_partitions else None
    assert found == designated(key, known, available)


@examples(150)
@given(known=st.sets(st.integers(0, 8)), count=st.integers(1, 9))
def test_a_topic_lacks_a_partition_below_a_count(known: set[int], count: int) -> None:
    """Also where the numbers of partitions have gaps."""
    view = TopicView(tuple(sorted(known)), {})
    assert view.lacks_below(count) == any(partition not in known for partition in range(count))


@examples(40)
@given(leaders=leaders, sent=st.lists(st.lists(keys, min_size=1, max_size=8), min_size=1, max_size=4))
def test_keyed_messages_reach_their_partition(leaders: Sequence[int | None], sent: list[list[int]]) -> None:
    """This holds for messages before the first metadata, in one lane, and for messages in a lane by partition."""
    available = [partition for partition, leader in enumerate(leaders) if leader is not None]
    expected: dict[int, list[int]] = {}
    with new_slab(GEOMETRY) as slab:
        world = make_world(slab, leaders)
        for batch in sent:
            world.send([(b"t", datagram(b"t", partition_key=key & 0xFFFFFFFF), key & 0xFFFFFFFF) for key in batch])
            for key in batch:
                partition = designated(key, range(len(leaders)), available)
                assert partition is not None
                expected.setdefault(partition, []).append(key & 0xFFFFFFFF)
            world.step_all()
        world.step_until_settled()
        for partition in range(len(leaders)):
            found = [record.partition_key for record in world.cluster.log(b"t", partition)]
            assert Tally(found) == Tally(expected.get(partition, []))
        world.close()


@examples(40)
@given(leaders=leaders, action=actions, rounds=st.integers(1, 4))
def test_brokers_get_any_partition_messages_in_proportion_to_led_partitions(
    leaders: Sequence[int | None], action: Literal["none", "per_topic"], rounds: int
) -> None:
    """In as many rounds each available partition has its turn as often, and so has each broker with its partitions."""
    available = [partition for partition, leader in enumerate(leaders) if leader is not None]
    with new_slab(GEOMETRY) as slab:
        world = make_world(slab, leaders, action)
        world.step_until_synced()
        for _ in range(rounds * len(available)):
            world.send_one(b"t", ONE_TO_A_CHUNK)
            world.ring()
            world.advance_clock(100)  # the time of a batch
            for _ in range(5):
                world.step_all()
        world.step_until_settled()
        counts = {partition: len(world.cluster.log(b"t", partition)) for partition in available}
        assert counts == dict.fromkeys(available, rounds)
        world.close()


def make_world(slab: object, leaders: Sequence[int | None], action: str = "combined") -> World:
    world = World(slab, {b"t": [leader or 0 for leader in leaders]}, quick_config(action=action))  # type: ignore[arg-type]
    for partition, leader in enumerate(leaders):
        world.cluster.leaders[b"t", partition] = leader
    return world
