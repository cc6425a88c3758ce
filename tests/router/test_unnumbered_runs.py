"""Runs that inputs opened before their topics had numbers, among numbered runs of the same topics."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Final, NamedTuple

import pytest

from bruce_mp.config.sections import Batching
from bruce_mp.errors import DiscardReason
from bruce_mp.router.broker_turns import TURN_MS
from bruce_mp.slab.file import Geometry
from bruce_mp.telemetry.counters import Counter
from support.examples import seeds
from support.flow import World
from support.flow_parts import quick_config
from support.slabs import datagram, new_slab

if TYPE_CHECKING:
    from bruce_mp.slab.file import Slab

GEOMETRY: Final = Geometry(chunks=320, topics=16, partitions=32, landing_slots=16, landing_slot_size=4096)
LARGEST: Final = 100
CONFIG: Final = quick_config(batching=Batching(message_max_bytes=LARGEST))  # combined topics, for turns of brokers
LATE: Final = b"late"
"""A topic that the cluster does not have at first."""


class Message(NamedTuple):
    """A message of a run; a long one is discarded."""

    key: int | None
    is_long: bool


class Run(NamedTuple):
    """The messages of one topic that an input receives together."""

    topic: bytes
    messages: list[Message]
    is_numbered: bool


class Story:
    """Three dispatchers, and topics for which a turn of brokers has chosen the partitions."""

    def __init__(self, slab: Slab) -> None:
        self.world = World(slab, {b"t": [1, 2, 3], b"u": [2], LATE: [3, 1]}, CONFIG)
        self.late_partitions = self.world.topics.pop(LATE)
        self.sent: list[Message] = []
        self.world.step_until_synced()
        self.world.advance_clock(-self.world.now_ms % TURN_MS)  # so that a turn begins
        for _ in range(3):
            self.frame([Run(topic, [Message(None, is_long=False)], is_numbered=True) for topic in (b"t", b"u")])

    def frame(self, runs: list[Run]) -> None:
        """Hand runs over in one frame, and route them."""
        for topic, messages, is_numbered in runs:
            values = [b"v" * LARGEST if is_long else b"v" for _, is_long in messages]
            whole = [
                (topic, datagram(topic, value, partition_key=key), key)
                for value, (key, _) in zip(values, messages, strict=True)
            ]
            self.world.receive(whole, is_numbered=is_numbered)
            self.sent += messages
        self.world.hand_over()
        self.world.ring()

    def run(self) -> None:
        for _ in range(5):
            self.world.step_all()

    def begin_turn(self) -> None:
        self.world.advance_clock(TURN_MS)

    def hand_back(self) -> None:
        self.world.refresh()

    def create_late_topic(self) -> None:
        self.world.topics[LATE] = self.late_partitions
        self.world.router.request_fetch_now(self.world.now_ms)

    def end(self) -> None:
        """Check that each message was routed or discarded once, and that each partition has its messages in order."""
        self.world.step_until_settled()
        self.world.check(stands_in=False)
        counters, discarded = self.world.router._row.counters, self.world.reporter.discarded
        routed = counters[Counter.RouteAnyPartitionMsg] + counters[Counter.RoutePartitionKeyMsg]
        assert routed == sum(len(state.log) for state in self.world.cluster.partitions.values())
        assert routed + sum(discarded.values()) == len(self.sent)
        if not discarded[DiscardReason.BAD_TOPIC]:
            assert discarded[DiscardReason.LONG_MSG] == sum(message.is_long for message in self.sent)
            assert counters[Counter.RoutePartitionKeyMsg] == sum(
                message.key is not None and not message.is_long for message in self.sent
            )


OTHER_STEPS: Final = (Story.run, Story.run, Story.begin_turn, Story.hand_back, Story.create_late_topic)


def random_run(rng: random.Random) -> Run:
    topic = rng.choice((b"t", b"t", b"t", b"u", LATE))
    keys = rng.choices((None, 0, 4), (4, 1, 1), k=rng.choice((1, 2, 3)))
    messages = [Message(key, is_long=rng.random() < 0.2) for key in keys]
    return Run(topic, messages, is_numbered=rng.random() < 0.8)


@pytest.mark.parametrize("seed", seeds(20))
def test_each_message_is_routed_once_and_in_order(seed: int) -> None:
    rng = random.Random(seed)
    with new_slab(GEOMETRY) as slab:
        story = Story(slab)
        for _ in range(30):
            if rng.random() < 0.2:
                rng.choice(OTHER_STEPS)(story)
            else:
                story.frame([random_run(rng) for _ in range(rng.choice((1, 2, 4, 6)))])
        story.end()
        story.world.close()
