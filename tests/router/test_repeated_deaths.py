"""Crashes during the recovery from a crash: batches keep their boundaries, also after a partial hand-over.

Records of one batch lie in several runs, some of them split, so that a hand-over takes many stores.  Deaths come at
words, at placements and at next sequence numbers, and often another one follows while the first is made good.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import pytest

from bruce_mp.config.sections import Batching, DefaultBatching
from bruce_mp.kernels.pure import segments
from bruce_mp.slab import runs, tables
from bruce_mp.slab.file import Geometry
from support.examples import seeds
from support.flow import ROUTER, World
from support.flow_parts import CrashingWords, quick_config
from support.slabs import datagram, new_slab
from support.variants import PURE_KERNELS_ONLY

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bruce_mp.slab.file import Slab

GEOMETRY: Final = Geometry(chunks=64, topics=16, partitions=32, landing_slots=16, landing_slot_size=4096)
KEYS: Final = (0, 0, 1, 0, 0, 0)
WHO: Final = (ROUTER, 0, 1)
SEEDS: Final = seeds(90)

Story = Callable[[World], None]


def send(world: World, runs: int) -> None:
    """Runs of messages for two partitions of one leader."""
    for _ in range(runs):
        world.send([(b"t", datagram(b"t", b"v", partition_key=key), key) for key in KEYS])
        world.ring()


def several_batches(world: World) -> None:
    """Batches in flight, and more in the queue."""
    for _ in range(3):
        send(world, 3)
        for _ in range(3):
            world.deliver_to_dispatcher(0)
        world.send_request(0)
    send(world, 2)


def a_lost_answer(world: World) -> None:
    several_batches(world)
    world.break_connection(0, executed=world.rng.randrange(4))


def a_leader_that_moves(world: World) -> None:
    several_batches(world)
    world.cluster.leaders[b"t", 0] = 2
    world.break_connection(0, executed=world.rng.randrange(4))


def a_leader_that_moves_without_an_error(world: World) -> None:
    several_batches(world)
    world.cluster.leaders[b"t", 0] = 2
    world.router.request_fetch_now(world.now_ms)


def a_leader_that_comes_back(world: World) -> None:
    a_leader_that_moves(world)
    for _ in range(world.rng.randrange(12)):
        world.step_all()
    world.cluster.leaders[b"t", 0] = 1
    world.break_connection(1, executed=world.rng.randrange(3))


def a_refused_record(world: World) -> None:
    several_batches(world)
    world.cluster.poison = {7}


def trouble_with_numbers(world: World) -> None:
    for code in world.rng.choices((45, 47, 59, 19, 7, 10, 6), k=4):
        world.errors.append((code, False))
    several_batches(world)
    world.answer(0)


STORIES: Final = (
    a_lost_answer,
    a_leader_that_moves,
    a_leader_that_moves_without_an_error,
    a_leader_that_comes_back,
    a_refused_record,
    trouble_with_numbers,
)


class DeadlyWorld(World):
    """A world in which a death may trigger the next one, up to a limit."""

    is_deadly = True

    def _is_completed(self, *arguments: Any) -> bool:
        is_completed = super()._is_completed(*arguments)
        if not is_completed and self.is_deadly and self.rng.random() < 0.5:
            self.stores_until_kill[self.rng.choice(WHO)] = self.rng.randrange(30)
        return is_completed


@pytest.fixture
def slab(monkeypatch: pytest.MonkeyPatch) -> Iterator[Slab]:
    """A slab that counts placements and sequence numbers as stores, beside its words."""
    with new_slab(GEOMETRY) as made:
        place, store = runs.write_placement, tables.store_next_sequence

        def tick() -> None:
            words: object = made.words
            if isinstance(words, CrashingWords):
                words.tick()

        def deadly_place(*arguments: Any, **options: Any) -> None:
            tick()
            place(*arguments, **options)

        def deadly_store(*arguments: Any) -> None:
            tick()
            store(*arguments)

        monkeypatch.setattr(runs, "write_placement", deadly_place)
        for module in (tables, segments):
            monkeypatch.setattr(module, "store_next_sequence", deadly_store)
        yield made


@pytest.mark.exhaustive
@PURE_KERNELS_ONLY
@pytest.mark.parametrize("seed", SEEDS)
def test_repeated_deaths_during_recovery_neither_lose_nor_duplicate_messages(slab: Slab, seed: int) -> None:
    rng = random.Random(seed)
    small = Batching(message_max_bytes=450, default=DefaultBatching(action="none"))
    world = DeadlyWorld(
        slab, {b"t": (1, 1)}, quick_config(action="none", batching=rng.choice((None, small))), seed=seed
    )
    world.step_until_synced()
    send(world, 1)
    world.step_until_settled()
    for who in rng.sample(WHO, rng.randint(1, 3)):
        world.stores_until_kill[who] = rng.randrange(rng.choice((5, 20, 60, 200)))
    rng.choice(STORIES)(world)
    for _ in range(60):
        world.step_all()
    world.is_deadly = False
    world.stores_until_kill.clear()
    world.step_until_settled()
    world.check()
    while world.stray:
        world.execute_stray()
    world.check()
    world.close()
