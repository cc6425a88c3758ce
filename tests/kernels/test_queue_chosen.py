"""Runs that are queued because nothing is left to decide, and runs that are returned to the router."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

from bruce_mp.kernels import ChosenPartition, RunQueue, queue_chosen
from bruce_mp.slab import layout as lay
from support.slabs import SMALL, Input, datagram, new_slab

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from bruce_mp.slab.file import Slab
    from bruce_mp.slab.runs import Segment

LARGEST: Final = 100
TOPIC: Final = 1
KNOWN: Final = {1: None, 2: None}


class Rig:
    """An input with two numbered topics, and a queue."""

    def __init__(self, slab: Slab) -> None:
        self.slab = slab
        self.sender = Input(slab, topics=[(b"t1", 4), (b"t2", 4)])
        self.queue = RunQueue(7, [], [], [])
        self.choice = ChosenPartition(3, self.queue)
        self.choices: dict[int, ChosenPartition] = {}
        self.asked: list[int] = []

    def run(self, *datagrams: bytes) -> Segment:
        self.sender.receive(datagrams)
        self.sender.lanes.close_runs()
        [segment] = self.sender.lanes.drain_closed()
        return segment

    def queue_all(
        self, segments: list[Segment], choose: Callable[[int], ChosenPartition | None] = lambda _: None
    ) -> list[bool]:
        """Queue segments; return for each one if it was returned, after a check of its place."""

        def ask(topic: int) -> ChosenPartition | None:
            self.asked.append(topic)
            return choose(topic)

        others, record_count = queue_chosen(self.slab, segments, self.choices, ask, LARGEST, known=KNOWN)
        assert record_count == sum(segment.records for segment in self.queue.segments)
        returned = [segment for segment, _ in others]
        assert [*self.queue.segments, *returned] == sorted(segments, key=returned.__contains__)
        return [segment in returned for segment in segments]


@pytest.fixture
def rig() -> Iterator[Rig]:
    with new_slab(SMALL) as slab:
        yield Rig(slab)


def test_runs_of_a_topic_with_a_choice_are_queued_for_its_partition(rig: Rig) -> None:
    rig.choices[TOPIC] = rig.choice
    segments = [rig.run(datagram(b"t1"), datagram(b"t1")), rig.run(datagram(b"t2")), rig.run(datagram(b"t1"))]
    assert rig.queue_all(segments) == [False, True, False]
    assert rig.queue.partitions == [3, 3]
    assert rig.asked == [2]


@pytest.mark.parametrize("size", [1, LARGEST + 1])
def test_no_run_is_queued_behind_a_run_whose_topic_has_no_number_yet(rig: Rig, size: int) -> None:
    """The name in such a run may be that of a topic with a choice: here its number came after the run."""
    rig.choices[TOPIC] = rig.choice
    unnumbered = rig.run(datagram(b"new", bytes(size)))
    segments = [rig.run(datagram(b"t1")), unnumbered, rig.run(datagram(b"t1")), rig.run(datagram(b"t2"))]
    assert rig.queue_all(segments, lambda _: rig.choice) == [False, True, True, True]
    assert not rig.asked


def test_a_returned_run_has_its_header(rig: Rig) -> None:
    segment = rig.run(datagram(b"t1", b"12345"))
    [(returned, header)], _ = queue_chosen(rig.slab, [segment], {}, lambda _: None, LARGEST, known=KNOWN)
    assert returned == segment
    assert header is not None
    assert (header.topic, header.flags, header.largest_payload) == (TOPIC, 0, 5)


def test_runs_with_partition_keys_are_returned(rig: Rig) -> None:
    rig.choices[TOPIC] = rig.choice
    segments = [rig.run(datagram(b"t1", partition_key=1)), rig.run(datagram(b"t1"))]
    assert rig.queue_all(segments) == [True, False]


def test_the_partition_of_a_topic_without_a_choice_is_asked_for(rig: Rig) -> None:
    segments = [rig.run(datagram(b"t1")), rig.run(datagram(b"t2"))]
    assert rig.queue_all(segments, {2: rig.choice}.get) == [True, False]
    assert rig.asked == [1, 2]


def test_runs_behind_a_returned_run_of_their_topic_are_returned(rig: Rig) -> None:
    segments = [rig.run(datagram(b"t1")) for _ in range(3)]
    answers = iter([None, rig.choice])
    assert rig.queue_all(segments, lambda _: next(answers)) == [True, True, True]
    assert rig.asked == [TOPIC]


def test_a_message_over_the_limit_ends_the_choice(rig: Rig) -> None:
    rig.choices.update({TOPIC: rig.choice, 2: rig.choice})
    sizes = (LARGEST, LARGEST + 1, 1)
    segments = [*(rig.run(datagram(b"t1", bytes(size))) for size in sizes), rig.run(datagram(b"t2"))]
    assert rig.queue_all(segments, lambda _: rig.choice) == [False, True, True, False]
    assert rig.choices.keys() == {2}


def test_the_partition_of_a_run_in_a_span_is_not_asked_for(rig: Rig) -> None:
    segments = [rig.run(datagram(b"t1", b"v"))]
    rig.slab.words[(rig.slab.chunk_at(segments[0].chunk) + lay.CHUNK_SPAN) >> 2] = 2
    assert rig.queue_all(segments, lambda _: rig.choice) == [True]
    rig.choices[TOPIC] = rig.choice
    assert rig.queue_all(segments) == [False]
    assert not rig.asked


def test_a_damaged_run_is_returned_without_a_header(rig: Rig) -> None:
    rig.choices[TOPIC] = rig.choice
    segments = [rig.run(datagram(b"t1")) for _ in range(2)]
    at = rig.slab.chunk_at(segments[0].chunk) + segments[0].run
    rig.slab.words[(at + lay.RUN_MAGIC_AT) >> 2] ^= 1
    others, _ = queue_chosen(rig.slab, segments, rig.choices, lambda _: None, LARGEST, known=KNOWN)
    assert others == [(segments[0], None)]
    assert rig.queue.segments == segments[1:]
