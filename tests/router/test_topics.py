"""Which partition AnyPartition messages go to: an even spread, and chunks that belong to one partition."""

from __future__ import annotations

import random
from collections import Counter as Tally
from collections import defaultdict
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from bruce_mp.config.sections import BatchLimits
from bruce_mp.config.topics import UNBATCHED, BatchingKind, TopicBatching
from bruce_mp.kernels import ChunkPool, Lanes
from bruce_mp.router.cluster import TopicView
from bruce_mp.router.topics import PORTION_BYTES, Topic, portions_of
from bruce_mp.slab import layout as lay
from bruce_mp.slab.file import Geometry
from bruce_mp.slab.runs import Segment
from bruce_mp.slab.tables import TopicTable
from support.slabs import INPUT_ROW, datagram, new_slab

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from bruce_mp.slab.file import Slab

COMBINED = TopicBatching(BatchingKind.COMBINED, BatchLimits(time_ms=100))
PARTITIONS = 6


@pytest.fixture
def slab() -> Iterator[Slab]:
    with new_slab(Geometry(chunks=512, topics=16, partitions=16, landing_slots=16, landing_slot_size=4096)) as made:
        TopicTable(made).add(b"t1", PARTITIONS)
        yield made


def a_topic(slab: Slab, rule: TopicBatching = UNBATCHED, seed: int = 5) -> Topic:
    topic = Topic(slab, 1, b"t1", rule, random.Random(seed))
    topic.update_view(TopicView(tuple(range(PARTITIONS)), {number: number % 2 for number in range(PARTITIONS)}))
    return topic


class Input:
    """An input with one message in each run.  `row` distinguishes inputs."""

    def __init__(self, slab: Slab, row: int = INPUT_ROW) -> None:
        self._pool = ChunkPool(slab, row)
        self._lanes = Lanes(slab, self._pool, TopicTable(slab), lambda _: 0)

    def run(self, size: int) -> Segment:
        message = datagram(b"t1", bytes(size))
        assert not self._lanes.ingest(memoryview(message), [(0, len(message))], 0, 0).no_room
        [segment] = self._lanes.drain_closed()
        return segment


def bound(topic: Topic, segments: Iterable[Segment], closed: frozenset[int] = frozenset()) -> list[int]:
    """The partition that each of the segments goes to."""
    chosen = [topic.next_partition([segment], lambda _, number: number not in closed, 0) for segment in segments]
    return [partition for partition in chosen if partition is not None]


def test_a_chunk_belongs_to_one_partition(slab: Slab) -> None:
    sender = Input(slab)
    segments = [sender.run(200) for _ in range(1000)]
    found = defaultdict(set)
    for segment, partition in zip(segments, bound(a_topic(slab), segments), strict=True):
        found[segment.chunk].add(partition)
    assert all(len(partitions) == 1 for partitions in found.values())
    assert len(found) > 3 * PARTITIONS


def test_all_partitions_get_equal_shares(slab: Slab) -> None:
    sender = Input(slab)
    segments = [sender.run(200) for _ in range(6000)]
    shares = Tally(bound(a_topic(slab), segments))
    assert set(shares) == set(range(PARTITIONS))
    assert max(shares.values()) - min(shares.values()) <= 8192 // 200


def test_large_messages_between_small_ones_are_spread(slab: Slab) -> None:
    sender = Input(slab)
    sizes = [100, 9000] * 80
    segments = [sender.run(size) for size in sizes]
    large = Tally(
        partition for partition, size in zip(bound(a_topic(slab), segments), sizes, strict=True) if size > 100
    )
    assert set(large) == set(range(PARTITIONS))
    assert max(large.values()) <= 80 / PARTITIONS * 2


def test_a_closed_partition_loses_the_rest_of_its_chunk(slab: Slab) -> None:
    sender = Input(slab)
    topic = a_topic(slab)
    [first] = bound(topic, [sender.run(10)])
    rest = bound(topic, [sender.run(10) for _ in range(20)], closed=frozenset({first}))
    assert len(rest) == 20
    assert len(set(rest)) == 1
    assert first not in rest
    assert bound(topic, [sender.run(10)]) == rest[:1]


def test_closed_partitions_get_nothing_and_the_others_equal_shares(slab: Slab) -> None:
    sender = Input(slab)
    shares = Tally(bound(a_topic(slab), [sender.run(2500) for _ in range(600)], closed=frozenset({0, 3})))
    assert set(shares) == set(range(PARTITIONS)) - {0, 3}
    assert max(shares.values()) < 1.5 * min(shares.values())


def test_a_changed_view_shuffles_the_rotation_at_once(slab: Slab) -> None:
    """Otherwise all hosts that get the same metadata would send to the same partitions in turn."""
    sender, first = Input(slab), set()
    for seed in range(20):
        topic = a_topic(slab, COMBINED, seed)
        assert topic.next_partition([sender.run(20_000)], lambda *_: True, 0) is not None
        topic.update_view(TopicView(tuple(range(PARTITIONS)), dict.fromkeys(range(PARTITIONS), 1)))
        first.add(topic.next_partition([sender.run(20_000)], lambda *_: True, 50))
    assert len(first) > 2


def test_no_partition_is_chosen_when_all_are_closed(slab: Slab) -> None:
    assert bound(a_topic(slab), [Input(slab).run(10)], closed=frozenset(range(PARTITIONS))) == []


@pytest.mark.parametrize("rule", [UNBATCHED, COMBINED])
def test_messages_of_a_slow_topic_are_spread_evenly(slab: Slab, rule: TopicBatching) -> None:
    """One chunk holds all messages, which arrive every 110 ms."""
    sender, topic = Input(slab), a_topic(slab, rule)
    segments = [sender.run(40) for _ in range(30)]
    assert len({segment.chunk for segment in segments}) == 1
    chosen = [topic.next_partition([segment], lambda *_: True, at * 110) for at, segment in enumerate(segments)]
    assert Tally(chosen) == dict.fromkeys(range(PARTITIONS), 30 // PARTITIONS)
    assert sum(before != after for before, after in pairwise(chosen)) == 30 // 5 - 1  # 5 messages a turn


def test_a_turn_is_as_long_as_a_batch(slab: Slab) -> None:
    sender, topic = Input(slab), a_topic(slab, TopicBatching(BatchingKind.COMBINED, BatchLimits(time_ms=2000)))
    segments = [sender.run(40) for _ in range(40)]
    chosen = [topic.next_partition([segment], lambda *_: True, at * 100) for at, segment in enumerate(segments)]
    assert [len(set(chosen[at : at + 20])) for at in (0, 20)] == [1, 1]
    assert chosen[19] != chosen[20]


def test_a_turn_in_a_span_is_longer_by_its_chunks(slab: Slab) -> None:
    sender, topic = Input(slab), a_topic(slab)
    segment = sender.run(20_000)
    chosen = [topic.next_partition([segment], lambda *_: True, now_ms) for now_ms in (0, 1499, 1500)]
    assert chosen[0] == chosen[1] != chosen[2]


def test_each_large_batch_moves_to_the_next_partition(slab: Slab) -> None:
    sender, topic = Input(slab), a_topic(slab)
    batches = [[sender.run(500) for _ in range(30)] for _ in range(PARTITIONS)]
    chosen = [topic.next_partition(batch, lambda *_: True, 0) for batch in batches]
    assert sorted(chosen, key=str) == list(range(PARTITIONS))


def test_combined_topics_keep_a_partition_for_the_batch_time(slab: Slab) -> None:
    sender, topic = Input(slab), a_topic(slab, COMBINED)
    large = [sender.run(5000) for _ in range(30)]  # each in a separate chunk
    chosen = [topic.next_partition([segment], lambda *_: True, at * 20) for at, segment in enumerate(large)]
    assert [len(set(chosen[at : at + 5])) for at in range(0, 30, 5)] == [1] * 6
    assert len(set(chosen)) == PARTITIONS


def test_chunks_of_each_input_are_bound_separately(slab: Slab) -> None:
    """The chunks of two inputs take turns in the router, and still belong to one partition each."""
    sender = Input(slab)
    segments = [sender.run(200) for _ in range(300)]
    middle = segments[150].chunk
    first = [segment for segment in segments[:150] if segment.chunk != middle]
    second = [segment for segment in segments[150:] if segment.chunk != middle]
    for segment in second:  # as if another input had filled them
        slab.view[slab.chunk_at(segment.chunk) + lay.CHUNK_OWNER] = INPUT_ROW + 1
    both = [segment for pair in zip(first, second, strict=False) for segment in pair]
    found = defaultdict(set)
    for segment, partition in zip(both, bound(a_topic(slab), both), strict=True):
        found[segment.chunk].add(partition)
    assert len(found) > PARTITIONS
    assert all(len(partitions) == 1 for partitions in found.values())


def test_a_portion_ends_with_the_segment_that_completes_it() -> None:
    half = PORTION_BYTES // 2
    segments = [Segment(1, 1, 0, 0, 1, size) for size in (PORTION_BYTES, half, half, half - 1, half, PORTION_BYTES, 1)]
    portions = [[segment.payload for segment in portion] for portion in portions_of(segments)]
    assert portions == [[PORTION_BYTES], [half, half], [half - 1, half, PORTION_BYTES], [1]]
