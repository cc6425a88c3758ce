"""Router and dispatchers together: faults and crashes leave every message delivered once and in order."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Final, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bruce_mp.config.sections import Batching, BatchingAction, BatchLimits, DefaultBatching
from bruce_mp.slab.file import Geometry
from support.examples import examples, seeds
from support.flow import ROUTER, World
from support.flow_parts import quick_config
from support.slabs import datagram, new_slab

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

ROOMY: Final = Geometry(chunks=320, topics=16, partitions=32, landing_slots=16, landing_slot_size=4096)
TOPICS: Final = {b"t1": (1, 2, 3), b"t2": (1,)}
PLACES: Final = [(topic, partition) for topic, nodes in TOPICS.items() for partition in range(len(nodes))]
BATCHING: Final[tuple[BatchingAction, ...]] = ("combined", "none", "per_topic")
REFUSED: Final = (6, 5, 7, 19, 10, 29, 17, 13, -1)
"""Errors with which nothing was written."""
WRITTEN: Final = (7, 20, 13, 56, 6)
"""Errors with which all was written."""


class Step(NamedTuple):
    """One step: an action, two numbers as its arguments, and optionally a death in the middle."""

    action: int
    one: int
    other: int
    kill_at: int | None


def batch_of(step: Step) -> list[tuple[bytes, bytes, int | None]]:
    batch = []
    for number in range(1 + step.one % 6):
        topic, key = (b"t2", None) if (step.other + number) % 5 == 0 else (b"t1", None)
        if (step.other + number) % 3 == 0:
            key = (step.one + number) % 3
        batch.append((topic, datagram(topic, b"v" * (number * 7), partition_key=key), key))
    return batch


def send(world: World, step: Step) -> None:
    world.send(batch_of(step))


def receive(world: World, step: Step) -> None:
    """Receive runs that the next `send` hands over, together with its own."""
    world.receive(batch_of(step), is_numbered=step.other % 2 == 1)


def slot_of(world: World, step: Step) -> int:
    slots = sorted(world.peers)
    return slots[step.one % len(slots)] if slots else -1


def move_leader(world: World, step: Step) -> None:
    world.cluster.leaders[PLACES[step.one % len(PLACES)]] = (None, 1, 2, 3, 1, 2, 3)[step.other % 7]


def take_down(world: World, step: Step) -> None:
    node = 1 + step.one % 3
    world.down ^= {node}
    if node in world.down:
        for slot in list(world.peers):
            if world.node_of(slot) == node:
                world.break_connection(slot, executed=step.other % 3)


def fail(world: World, step: Step) -> None:
    is_written = step.other % 2 == 1
    codes = WRITTEN if is_written else REFUSED
    world.errors.append((codes[step.one % len(codes)], is_written))


def kill_router(world: World, _: Step) -> None:
    world.kill_router()


def kill_peer(world: World, step: Step) -> None:
    world.kill_peer(slot_of(world, step))


def kill_all(world: World, _: Step) -> None:
    world.kill_all()


def reload(world: World, step: Step) -> None:
    limits = BatchLimits(time_ms=(10, 100, 1000)[step.one % 3], messages=1 + step.other % 7)
    action = BATCHING[step.other % 3]
    default = DefaultBatching(action=action, config="c" if action == "per_topic" else None)
    world.reload(quick_config(batching=Batching(configs={"c": limits}, default=default)))


ACTIONS: Final[list[Callable[[World, Step], None]]] = [
    send,
    send,
    send,
    receive,
    receive,
    lambda world, step: world.ring(kill_at=step.kill_at),
    lambda world, step: world.ring(kill_at=step.kill_at),
    lambda world, step: world.answer_fetch(kill_at=step.kill_at),
    lambda world, step: world.deliver_to_router(kill_at=step.kill_at),
    lambda world, step: world.deliver_to_router(kill_at=step.kill_at),
    lambda world, step: world.deliver_to_dispatcher(slot_of(world, step), kill_at=step.kill_at),
    lambda world, step: world.deliver_to_dispatcher(slot_of(world, step), kill_at=step.kill_at),
    lambda world, step: world.send_request(slot_of(world, step), kill_at=step.kill_at),
    lambda world, step: world.send_request(slot_of(world, step), kill_at=step.kill_at),
    lambda world, step: world.answer(slot_of(world, step), kill_at=step.kill_at),
    lambda world, step: world.answer(slot_of(world, step), kill_at=step.kill_at),
    lambda world, step: world.break_connection(slot_of(world, step), executed=step.other % 4, kill_at=step.kill_at),
    lambda world, _: world.execute_stray(),
    lambda world, step: world.advance_clock((1, 10, 100)[step.one % 3]),
    lambda world, _: world.step_all(),
    lambda world, _: world.step_all(),
    kill_router,
    kill_peer,
    kill_all,
    move_leader,
    take_down,
    fail,
    lambda world, step: world.refresh(kill_at=step.kill_at),
    reload,
    lambda world, step: world.apply_config(ROUTER, kill_at=step.kill_at),
    lambda world, step: world.apply_config(slot_of(world, step), kill_at=step.kill_at),
]
RARE: Final = (kill_router, kill_peer, kill_all, move_leader, take_down, fail)

steps = st.builds(
    Step,
    action=st.integers(0, len(ACTIONS) - 1),
    one=st.integers(0, 63),
    other=st.integers(0, 63),
    kill_at=st.none() | st.integers(0, 12),
)


def run(script: Iterable[Step], seed: int, action: str) -> None:
    """Play a script, then let everything settle, and compare."""
    with new_slab(ROOMY) as slab:
        world = World(slab, TOPICS, quick_config(action=action), seed=seed)
        for step in script:
            ACTIONS[step.action](world, step)
        world.hand_over()
        world.end_faults()
        world.step_until_settled()
        world.check()
        while world.stray:
            world.execute_stray()
        world.check()
        world.close()


@examples(40)
@given(script=st.lists(steps, max_size=100), seed=st.integers(0, 1000), action=st.sampled_from(BATCHING))
def test_every_message_is_delivered_once_and_in_order(script: list[Step], seed: int, action: str) -> None:
    run(script, seed, action)


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", seeds(40))
def test_long_random_scripts_deliver_once_and_in_order(seed: int) -> None:
    """Hypothesis makes short scripts; some mishaps take many steps."""
    rng = random.Random(seed)
    weights = [rng.choice((0.3, 1, 1, 3)) * (0.3 if action in RARE else 1) for action in ACTIONS]
    deadly = rng.choice((0, 0.05, 0.3))
    script = [
        Step(action, rng.randrange(64), rng.randrange(64), rng.randrange(13) if rng.random() < deadly else None)
        for action in rng.choices(range(len(ACTIONS)), weights, k=rng.choice((30, 80, 200, 300)))
    ]
    run(script, seed, rng.choice(BATCHING))
