"""A topic that is batched in another way: records accumulated by the old rules go before records of the new ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

from bruce_mp.config.sections import Batching, BatchLimits, CombinedBatching, DefaultBatching
from bruce_mp.slab.file import Geometry
from support.flow import ROUTER, World
from support.flow_parts import quick_config
from support.slabs import new_slab

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOMY: Final = Geometry(chunks=64, topics=4, partitions=8, landing_slots=16, landing_slot_size=4096)
LIMITS: Final = {"slow": BatchLimits(time_ms=60_000), "each": BatchLimits(messages=1)}
COMBINED: Final = quick_config(batching=Batching(configs=LIMITS, combined=CombinedBatching(config="slow")))
PER_TOPIC: Final = quick_config(
    batching=Batching(configs=LIMITS, default=DefaultBatching(action="per_topic", config="each"))
)


@pytest.fixture
def world() -> Iterator[World]:
    """A message gathers in the dispatcher of its topic."""
    with new_slab(ROOMY) as slab:
        world = World(slab, {b"t": (1,)}, COMBINED)
        world.step_until_synced()
        world.send_one(b"t")
        for _ in range(20):
            world.step_all()
        assert world.held() == {"QUEUED": 1}
        yield world
        world.close()


def deliver_another(world: World) -> None:
    world.send_one(b"t")
    for _ in range(20):
        world.step_all()
    for slot in list(world.peers):
        world.apply_config(slot)
    world.step_until_settled()
    world.check()


def test_order_holds_when_the_router_reloads_before_the_dispatcher(world: World) -> None:
    world.reload(PER_TOPIC)
    world.apply_config(ROUTER)
    deliver_another(world)


def test_order_holds_when_a_router_starts_with_a_reloaded_config(world: World) -> None:
    world.reload(PER_TOPIC)
    world.kill_router()
    world.step_until_synced()
    deliver_another(world)


def test_order_holds_when_the_dispatcher_reloads_before_the_router(world: World) -> None:
    world.reload(PER_TOPIC)
    for slot in list(world.peers):
        world.apply_config(slot)
    deliver_another(world)
