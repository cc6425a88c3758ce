"""Turns of brokers: topics with small traffic send to the same broker, and every partition has its share."""

from __future__ import annotations

import random
from collections import Counter as Tally
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bruce_mp.config.sections import Batching, BatchLimits, CombinedBatching
from bruce_mp.config.topics import UNBATCHED, BatchingKind, TopicBatching
from bruce_mp.kernels import ChosenPartition, RunQueue
from bruce_mp.router.broker_turns import SHORTEST_BATCH_MS, TURN_MS, BrokerTurns
from bruce_mp.router.cluster import Address, ClusterView, TopicView
from bruce_mp.router.topics import Topic
from bruce_mp.slab import layout as lay
from bruce_mp.slab.file import Geometry
from bruce_mp.slab.runs import Segment
from support.examples import examples
from support.slabs import new_slab

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bruce_mp.router.topics import IsOpen
    from bruce_mp.slab.file import Slab

BATCH_MS = 200
COMBINED = TopicBatching(BatchingKind.COMBINED, BatchLimits(time_ms=BATCH_MS))
BROKERS = 3
PARTITIONS = 4
REQUEST = 10_000


def config(limit: int = REQUEST, batch_ms: int | None = BATCH_MS) -> Batching:
    limits = {"c": BatchLimits(time_ms=batch_ms, messages=None if batch_ms else 10)}
    return Batching(produce_request_data_limit=limit, configs=limits, combined=CombinedBatching(config="c"))


GEOMETRY = Geometry(chunks=64, topics=16, partitions=16, landing_slots=16, landing_slot_size=4096)


@pytest.fixture
def slab() -> Iterator[Slab]:
    with new_slab(GEOMETRY) as made:
        for chunk in range(GEOMETRY.chunks):
            set_span(made, chunk, 1)
        yield made


def set_span(slab: Slab, chunk: int, span: int) -> None:
    slab.words[(slab.chunk_at(chunk) + lay.CHUNK_SPAN) >> 2] = span


@pytest.fixture
def turns() -> BrokerTurns:
    return BrokerTurns(config(), random.Random(7))


def leader(topic: int, partition: int) -> int:
    return 1 + (topic + partition) % BROKERS


def a_topic(slab: Slab, turns: BrokerTurns, number: int = 0, rule: TopicBatching = COMBINED) -> Topic:
    topic = Topic(slab, number, b"t%d" % number, rule, random.Random(number), turns=turns)
    leaders = {partition: leader(number, partition) for partition in range(PARTITIONS)}
    topic.update_view(TopicView(tuple(range(PARTITIONS)), leaders))
    return topic


def is_open(_topic: int, _partition: int) -> bool:
    return True


def choose(topic: Topic, now_ms: int, is_open: IsOpen = is_open, generation: int = 0) -> int:
    """The partition of a run in the topic's chunk; another `generation` is another chunk."""
    partition = topic.next_partition([Segment(topic.number, generation, 64, 152, 1, 10)], is_open, now_ms)
    assert partition is not None
    return partition


def test_a_turn_wakes_few_brokers(slab: Slab, turns: BrokerTurns) -> None:
    topics = [a_topic(slab, turns, number) for number in range(30)]
    used = []
    for turn in range(200):
        turns.record_routed(100, turn * TURN_MS)
        used.append(len({leader(topic.number, choose(topic, turn * TURN_MS)) for topic in topics}))
    assert sum(used) / len(used) < 1.7  # 1.5 of 3; no choice with equal shares has fewer
    assert used.count(1) > 100


def a_view(brokers: int, spread: int) -> ClusterView:
    """Topics with one partition on each of `spread` successive brokers."""
    topics = {
        b"t%d" % first: TopicView(
            tuple(range(spread)), {index: 1 + (first + index) % brokers for index in range(spread)}
        )
        for first in range(brokers)
    }
    return ClusterView({broker: Address("broker", broker) for broker in range(1, brokers + 1)}, topics)


@pytest.mark.parametrize(("brokers", "spread", "used"), [(10, 4, 3), (6, 4, 2), (8, 2, 4), (4, 2, 2)])
def test_topics_on_successive_brokers_use_as_few_as_hold_them_all(
    slab: Slab, turns: BrokerTurns, brokers: int, spread: int, used: int
) -> None:
    view = a_view(brokers, spread)
    turns.apply_view(view)
    topics = [
        Topic(slab, number, name, COMBINED, random.Random(number), turns=turns)
        for number, name in enumerate(view.topics)
    ]
    shares: Tally[tuple[int, int]] = Tally()
    for topic in topics:
        topic.update_view(view.topics[topic.name])
    for turn in range(100 * spread):
        turns.record_routed(100, turn * TURN_MS)
        chosen = {topic.number: choose(topic, turn * TURN_MS) for topic in topics}
        assert len({1 + (number + partition) % brokers for number, partition in chosen.items()}) == used
        shares.update(chosen.items())
    assert all(abs(shares[topic.number, partition] - 100) <= 20 for topic in topics for partition in range(spread))


@examples(30)
@given(leaders=st.lists(st.sampled_from([1, 2, 3, 4]), min_size=1, max_size=8), step=st.integers(1, 5))
def test_each_partition_has_an_equal_share_in_the_long_run(leaders: list[int], step: int) -> None:
    """The topic has messages in each `step`th turn."""
    count = 250 * len(leaders)
    with new_slab(GEOMETRY) as slab:
        set_span(slab, 0, 1)
        turns = BrokerTurns(config(), random.Random(7))
        turns.apply_view(a_view(4, 2))
        topic = Topic(slab, 0, b"t", COMBINED, random.Random(1), turns=turns)
        topic.update_view(TopicView(tuple(range(len(leaders))), dict(enumerate(leaders))))
        shares: Tally[int] = Tally()
        for turn in range(0, count * step, step):
            turns.record_routed(100, turn * TURN_MS)
            shares[choose(topic, turn * TURN_MS)] += 1
    assert set(shares) == set(range(len(leaders)))
    assert all(abs(share - 250) <= 50 for share in shares.values())


def test_a_topic_keeps_its_partition_for_a_turn(slab: Slab, turns: BrokerTurns) -> None:
    topic = a_topic(slab, turns)
    chosen = []
    for now_ms in range(0, 40 * TURN_MS, 50):
        turns.record_routed(100, now_ms)
        chosen.append(choose(topic, now_ms, generation=now_ms // 150))  # a chunk lasts 150 ms
    changes = [at * 50 for at, (before, after) in enumerate(pairwise(chosen), 1) if before != after]
    assert changes
    assert all(moment % TURN_MS == 0 for moment in changes)


def test_a_span_of_several_chunks_keeps_its_partition_for_as_many_turns(slab: Slab, turns: BrokerTurns) -> None:
    """Otherwise a stuck partition would keep the messages of all others in use that share its span."""
    topic = a_topic(slab, turns)
    set_span(slab, topic.number, 3)
    chosen = []
    for now_ms in range(0, 60 * TURN_MS, TURN_MS // 2):
        turns.record_routed(100, now_ms)
        chosen.append(choose(topic, now_ms))
        turns.record_routed(100, now_ms)
        topic.next_partition([Segment(20, 0, 64, 152, 1, 10)], is_open, now_ms)  # a chunk of another input
    changes = [at // 2 for at, (before, after) in enumerate(pairwise(chosen), 1) if before != after]
    assert len(changes) > 5
    assert all(turn % 3 == 0 for turn in changes)


@examples(50)
@given(
    leaders=st.lists(st.sampled_from([1, 2, 3]), min_size=1, max_size=8),
    steps=st.lists(st.tuples(st.integers(0, 3), st.sampled_from([1, 1, 1, 3]), st.booleans()), max_size=40),
)
def test_a_choice_in_a_turn_is_the_one_that_a_run_gets(leaders: list[int], steps: list[tuple[int, int, bool]]) -> None:
    """Each step is a run: half turns since the last one, chunks in its span, True if a flush precedes it."""
    view = TopicView(tuple(range(len(leaders))), dict(enumerate(leaders)))
    queue = RunQueue(0, [], [], [])
    open_partitions = {(1, partition): ChosenPartition(partition, queue) for partition in view.partitions}
    with new_slab(GEOMETRY) as slab:
        turns = BrokerTurns(config(), random.Random(7))
        usual, other = (Topic(slab, 1, b"t", COMBINED, random.Random(1), turns=turns) for _ in range(2))
        for topic in (usual, other):
            topic.update_view(view)
        now_ms, chosen = 0, None
        for half_turns, chunks, is_flushed in steps:
            now_ms += half_turns * TURN_MS // 2
            turns.record_routed(100, now_ms)
            assert turns.current_turn is not None
            set_span(slab, 1, chunks)
            if is_flushed or not other.has_chosen(turns.current_turn):
                chosen = None
            if chosen is None and other.follows_turns(now_ms) and chunks == 1:
                chosen = other.choose_in_turn(turns.current_turn, turns, open_partitions)
            partition = chosen.partition if chosen is not None else choose(other, now_ms)
            assert partition == choose(usual, now_ms)
            if other.follows_turns(now_ms) and other.has_chosen(turns.current_turn):
                chosen = open_partitions[1, partition]


def test_a_topic_does_not_choose_in_a_turn_without_an_open_partition(slab: Slab, turns: BrokerTurns) -> None:
    topic = a_topic(slab, turns)
    turns.record_routed(100, 0)
    assert topic.choose_in_turn(0, turns, {}) is None
    assert not topic.has_chosen(0)


def test_a_closed_partition_is_replaced_at_once(slab: Slab, turns: BrokerTurns) -> None:
    topic = a_topic(slab, turns)
    turns.record_routed(100, 0)
    first = choose(topic, 0)
    second = choose(topic, 10, lambda _, partition: partition != first)
    assert second != first
    assert choose(topic, 20) == second
    closed = topic.next_partition([Segment(0, 9, 64, 152, 1, 10)], lambda *_: False, 20)
    assert closed is None


def test_large_traffic_is_spread_over_all_partitions(slab: Slab, turns: BrokerTurns) -> None:
    topic = a_topic(slab, turns)
    chosen = []
    for now_ms in range(0, 4 * PARTITIONS * BATCH_MS, BATCH_MS):
        turns.record_routed(REQUEST * TURN_MS // BATCH_MS, now_ms)  # too much for a request
        chosen.append(choose(topic, now_ms, generation=now_ms))
    assert Tally(chosen) == dict.fromkeys(range(PARTITIONS), 4)


def test_traffic_is_small_again_after_a_turn_with_little(turns: BrokerTurns) -> None:
    most = REQUEST * TURN_MS // BATCH_MS

    def turn_after(size: int, now_ms: int) -> int | None:
        turns.record_routed(size, now_ms)
        return turns.current_turn

    assert turn_after(most - 1, 0) == 0
    assert turn_after(1, TURN_MS - 1) is None
    assert turn_after(1, TURN_MS) is None, "the turn before was large"
    assert turn_after(1, 2 * TURN_MS) == 2
    assert turn_after(most, 3 * TURN_MS) is None
    assert turn_after(1, 5 * TURN_MS) == 5, "a turn without traffic lies between"


def test_topics_without_combined_batches_rotate_alone(slab: Slab, turns: BrokerTurns) -> None:
    topic = a_topic(slab, turns, rule=UNBATCHED)
    turns.record_routed(100, 0)
    chosen = [choose(topic, 0, generation=chunk) for chunk in range(PARTITIONS)]
    assert sorted(chosen) == list(range(PARTITIONS))


def test_a_backlog_is_shared_by_all_partitions(slab: Slab, turns: BrokerTurns) -> None:
    topic = a_topic(slab, turns)
    turns.record_routed(100, 0)
    chosen = []
    for portion in range(PARTITIONS):
        topic.advance_partition()
        chosen.append(choose(topic, 0, generation=portion))
    assert sorted(chosen) == list(range(PARTITIONS))
    assert choose(topic, 0, generation=8) == choose(topic, 0, generation=9), "the turn goes on behind it"


@pytest.mark.parametrize(("batch_ms", "turn_ms"), [(None, TURN_MS), (BATCH_MS, TURN_MS), (2000, 2000)])
def test_a_turn_is_at_least_as_long_as_a_batch(batch_ms: int | None, turn_ms: int) -> None:
    turns = BrokerTurns(config(batch_ms=batch_ms), random.Random(1))
    assert turns.turn_ms == turn_ms


@pytest.mark.parametrize(("batch_ms", "requests"), [(1, 5), (SHORTEST_BATCH_MS, 5), (BATCH_MS, 2.5), (2000, 1)])
def test_small_traffic_has_at_most_ten_requests_a_second(batch_ms: int, requests: float) -> None:
    turns = BrokerTurns(config(batch_ms=batch_ms), random.Random(1))
    turns.record_routed(int(requests * REQUEST) - 1, 0)
    assert turns.current_turn == 0
    turns.record_routed(1, 0)
    assert turns.current_turn is None


def test_new_metadata_change_the_order_within_a_turn() -> None:
    counts = ((1, 1), (2, 1))
    changed = 0
    for seed in range(20):
        turns = BrokerTurns(config(), random.Random(seed))
        turns.apply_view(a_view(4, 2))  # topics have two successive leaders, so the common order decides
        before = turns.order_of(counts)
        turns.apply_view(a_view(4, 3))  # the weights decide
        changed += turns.order_of(counts) != before
    assert 0 < changed < 20


def test_separate_requests_for_each_message_leave_no_turns() -> None:
    turns = BrokerTurns(config(limit=0), random.Random(1))
    turns.record_routed(0, 0)
    assert turns.current_turn is None
