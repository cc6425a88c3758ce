"""Crossing frames of router and dispatcher: events during a hand-back of everything."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from bruce_mp.ipc.frames import Parcel, ParcelKind
from bruce_mp.router.pause_protocol import ScopeState
from bruce_mp.slab.file import Geometry
from support.fake_broker import Partition
from support.flow import World
from support.flow_parts import quick_config
from support.slabs import new_slab

if TYPE_CHECKING:
    from collections.abc import Iterator

SLOT = 0


@pytest.fixture
def world() -> Iterator[World]:
    """Create one topic with one partition; its dispatcher has sent a first message."""
    with new_slab(Geometry(chunks=64, topics=16, partitions=16, landing_slots=16, landing_slot_size=4096)) as slab:
        world = World(slab, {b"t": [1]}, quick_config(action="none"))
        world.step_until_synced()
        world.send_one(b"t")
        world.step_until_settled()
        yield world
        world.close()


def send(world: World) -> None:
    world.send_one(b"t")
    world.ring()
    world.deliver_to_dispatcher(SLOT)
    world.send_request(SLOT)


def hear_all(world: World) -> None:
    while any(world.to_router):
        world.deliver_to_router()


def test_a_partition_can_pause_during_a_full_hand_back(world: World) -> None:
    send(world)
    world.refresh()
    world.deliver_to_dispatcher(SLOT)
    world.errors.append((6, False))
    world.answer(SLOT)
    hear_all(world)
    world.step_until_settled()
    world.check()


def test_the_router_holds_everything_only_after_all_hand_backs(world: World) -> None:
    send(world)
    found = [world.router.holds_everything]
    world.refresh()
    found.append(world.router.holds_everything)
    world.deliver_to_dispatcher(SLOT)
    world.answer(SLOT)
    found.append(world.router.holds_everything)
    hear_all(world)
    assert [*found, world.router.holds_everything] == [False, False, False, True]
    world.step_until_settled()
    world.check()


def test_a_pause_after_an_error_lasts_until_newer_metadata_if_another_dispatcher_is_synced(world: World) -> None:
    world.topics[b"u"], world.cluster.leaders[b"u", 0] = 1, 2
    world.router.request_fetch_now(world.now_ms)
    world.step_until_synced()
    send(world)
    world.errors.append((6, False))
    world.answer(SLOT)
    hear_all(world)
    world.deliver_to_dispatcher(SLOT)
    hear_all(world)
    (route,) = world.router._assignments._routes.values()
    assert route.state is ScopeState.WAITING
    world.answer_fetch()  # of a fetch that began before the end of the back-off
    while world.fetch_started is None:
        world.advance_clock(10)
    assert world.now_ms > route.backoff_end_ms
    other = 1 - SLOT
    world.kill_peer(other)
    for _ in range(2):  # HELLO and RESYNC, SYNCED
        hear_all(world)
        world.deliver_to_dispatcher(other)
    hear_all(world)
    assert world.router._assignments._dispatcher_scopes[other].is_flowing
    states = [route.state]
    world.answer_fetch()
    assert [*states, route.state] == [ScopeState.WAITING, ScopeState.FLOWING]
    world.step_until_settled()
    world.check()


def test_an_idle_connection_can_fail_after_a_full_hand_back(world: World) -> None:
    world.refresh()
    world.deliver_to_dispatcher(SLOT)
    hear_all(world)
    world.break_connection(SLOT)
    hear_all(world)
    send(world)
    world.step_until_settled()
    world.check()


def test_a_full_hand_back_succeeds_after_a_topic_was_removed(world: World) -> None:
    """Its entry in the slab's table went to another topic, which the dispatcher knows."""
    table = world.router._tables.topics
    gone = table.number_of(b"t")
    table.remove([gone])
    world.topics[b"u"], world.cluster.leaders[b"u", 0] = 1, 1
    world.cluster.partitions[b"u", 0] = Partition()
    world.peers[SLOT].core._topics.refresh()
    world.refresh()
    world.deliver_to_dispatcher(SLOT)
    hear_all(world)
    world.send_one(b"u")
    world.step_until_settled()
    assert len(world.cluster.partitions[b"u", 0].log) == 1


def test_a_flush_of_a_removed_topic_is_ignored(world: World) -> None:
    """Its last message was delivered while the word was under way, and its entry freed."""
    table = world.router._tables.topics
    gone = table.add(b"gone", 1)
    table.remove([gone])
    world.router._assignments._outbox.post(SLOT, Parcel(ParcelKind.FLUSH, gone))
    world.advance_clock(1)
    world.deliver_to_dispatcher(SLOT)
    send(world)
    world.step_until_settled()


def test_a_router_without_metadata_runs_the_dispatchers_that_it_wants_messages_back_from(world: World) -> None:
    """After a restart before a foreign cluster no dispatcher ran, and the accepted cluster waited for them for ever."""
    send(world)
    world.kill_router()
    assert not world.router.holds_everything
    assert world.router.dispatchers_to_run() is None
    world.router.hand_back_all(world.now_ms)
    assert set(world.router.dispatchers_to_run() or ()) == {SLOT}
    world.step_until_settled()
    world.check()
