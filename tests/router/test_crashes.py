"""Crashes at every store: each story is repeated, each time with a death one store later."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import pytest

from bruce_mp.ipc.frames import EVERYTHING, Parcel, ParcelKind
from bruce_mp.router.pause_protocol import ScopeState
from bruce_mp.slab.file import Geometry
from support.flow import ROUTER, World
from support.flow_parts import quick_config
from support.slabs import datagram, new_slab
from support.variants import PURE_KERNELS_ONLY

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bruce_mp.slab.file import Slab

GEOMETRY: Final = Geometry(chunks=64, topics=16, partitions=32, landing_slots=16, landing_slot_size=4096)
MOST_STORES: Final = 400
SHARED_STORES: Final = 33
"""The first stores of the router, which are the same in all stories."""
KEY: Final = 0

Story = Callable[[World], None]


def send(world: World, runs: int) -> None:
    """Send runs of three messages for one partition; each becomes a separate segment."""
    for _ in range(runs):
        world.send([(b"t", datagram(b"t", b"v", partition_key=KEY), KEY)] * 3)
        world.ring()


def several_batches(world: World) -> None:
    """Batches of several segments in flight, and more in the queue."""
    for _ in range(3):
        send(world, 3)
        for _ in range(3):
            world.deliver_to_dispatcher(0)
        world.send_request(0)
    send(world, 2)


def a_lost_answer(world: World) -> None:
    several_batches(world)
    world.break_connection(0, executed=2)


def a_leader_that_moves(world: World) -> None:
    several_batches(world)
    world.cluster.leaders[b"t", 0] = 2
    world.break_connection(0, executed=1)


def a_leader_that_moves_without_an_error(world: World) -> None:
    several_batches(world)
    world.cluster.leaders[b"t", 0] = 2
    world.router.request_fetch_now(world.now_ms)


def a_refused_record(world: World) -> None:
    several_batches(world)
    world.cluster.poison = {7}


def refused_records_behind_a_doubtful_batch(world: World) -> None:
    """The first batch is written, though the answer does not say so; in the next the first record is refused."""
    world.names_refused = True
    world.errors.append((7, True))
    world.cluster.poison = {12, 16}
    several_batches(world)


def a_new_epoch(world: World) -> None:
    several_batches(world)
    world.errors.append((59, False))


def an_error_while_everything_is_handed_back(world: World) -> None:
    several_batches(world)
    world.refresh()
    world.deliver_to_dispatcher(0)
    world.errors.append((6, False))


STORIES: Final = [
    a_lost_answer,
    a_leader_that_moves,
    a_leader_that_moves_without_an_error,
    a_refused_record,
    refused_records_behind_a_doubtful_batch,
    a_new_epoch,
    an_error_while_everything_is_handed_back,
]


def tell(slab: Slab, story: Story, who: int, stores: int) -> bool:
    """Run a story in which process `who` dies after `stores` stores; return False if it survives."""
    world = World(slab, {b"t": (1, 2)}, quick_config(action="none"), seed=stores)
    world.step_until_synced()
    send(world, 1)
    world.step_until_settled()
    world.stores_until_kill[who] = stores
    story(world)
    world.step_until_settled()
    world.check()
    while world.stray:
        world.execute_stray()
    world.check()
    world.close()
    return who not in world.stores_until_kill


def places(story: Story, who: int) -> Iterator[int]:
    """Yield the stores to die at. One story has a death at each shared store, the others at each fourth."""
    for stores in range(MOST_STORES):
        if story is STORIES[0] or who != ROUTER or stores >= SHARED_STORES or stores % 4 == 0:
            yield stores


@pytest.mark.exhaustive
@PURE_KERNELS_ONLY
@pytest.mark.parametrize("story", STORIES)
@pytest.mark.parametrize("who", [ROUTER, 0, 1], ids=["router", "old leader", "new leader"])
def test_a_death_at_any_store_neither_loses_nor_duplicates_messages(story: Story, who: int) -> None:
    with new_slab(GEOMETRY) as slab:
        new = bytes(slab.view)
        for stores in places(story, who):
            slab.view[:] = new
            if not tell(slab, story, who, stores):
                return
    pytest.fail("the story has no end")


@pytest.fixture
def world() -> Iterator[World]:
    with new_slab(GEOMETRY) as slab:
        made = World(slab, {b"t": (1, 2)}, quick_config(action="none"))
        made.step_until_synced()
        yield made
        made.close()


def hear_all_but_answers(world: World) -> None:
    """Deliver all frames, but no broker responses."""
    for _ in range(20):
        world.ring()
        world.answer_fetch()
        world.deliver_to_router()
        for slot in list(world.peers):
            world.deliver_to_dispatcher(slot)
        world.advance_clock(10)


def test_handed_back_runs_precede_newer_ones(world: World) -> None:
    """The router dies with a hand-back in its ear, and its successor hears of the new leader's dispatcher first."""
    several_batches(world)
    world.break_connection(0, executed=1)
    while not world.held().get("RETURNED"):
        world.deliver_to_router()
        world.deliver_to_dispatcher(0)
    world.cluster.leaders[b"t", 0] = 2
    world.kill_router()
    send(world, 1)
    line = world.from_peer[0]
    world.to_router.remove(line)
    for _ in range(30):
        world.step_all()
    world.to_router.append(line)
    world.step_until_settled()
    world.check()


def test_a_new_router_ignores_a_hand_back_requested_by_the_dead_one(world: World) -> None:
    several_batches(world)
    world.cluster.leaders[b"t", 0] = 2
    world.router.request_fetch_now(world.now_ms)
    world.advance_clock(200)
    world.answer_fetch()
    for _ in range(5):
        world.deliver_to_dispatcher(0)
    assert world.peers[0].core._queues[1, 0].must_hand_back
    world.cluster.leaders[b"t", 0] = 1
    world.kill_router()
    hear_all_but_answers(world)
    send(world, 1)
    hear_all_but_answers(world)
    world.step_until_settled()
    world.check()


# --- frames of dead processes -----------------------------------------------------------------------------------------
@pytest.mark.parametrize("kind", [ParcelKind.PAUSED, ParcelKind.HANDED_BACK, ParcelKind.HELLO])
def test_messages_of_a_dead_dispatcher_are_void(world: World, kind: ParcelKind) -> None:
    world.kill_peer(0)
    world.step_until_synced()
    peer = world.router._assignments._dispatcher_scopes[0]
    world.router.on_parcels(
        [Parcel(ParcelKind.SENDER, 0, peer.incarnation - 1), Parcel(kind, 0, EVERYTHING)], world.now_ms
    )
    assert peer.state is ScopeState.FLOWING
    assert not world.router.drain_outbox()


@pytest.mark.parametrize("kind", [ParcelKind.RESYNC, ParcelKind.HAND_BACK])
def test_messages_of_a_dead_router_are_void(world: World, kind: ParcelKind) -> None:
    dead = world.router._routed_word >> 8
    world.kill_router()
    world.step_until_synced()
    core = world.peers[0].core
    core.on_parcels([Parcel(ParcelKind.SENDER, 0, dead), Parcel(kind, 0, EVERYTHING)], world.now_ms)
    assert not core.drain_outbox()


def test_an_answer_to_a_dead_router_does_not_end_the_sync(world: World) -> None:
    """Both routers number their words from one."""
    peer = world.router._assignments._dispatcher_scopes[0]
    incarnation, session, dead = peer.incarnation, peer.resync_number, world.router._routed_word >> 8
    world.kill_router()
    assignments = world.router._assignments
    while assignments._ensure_scope(0).resync_number < session:
        assignments._resync(0, [])
    world.router.on_parcels(
        [Parcel(ParcelKind.SENDER, 0, incarnation), Parcel(ParcelKind.SYNCED, session, dead)], world.now_ms
    )
    assert assignments._ensure_scope(0).state is ScopeState.SYNCING
