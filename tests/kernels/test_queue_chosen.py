"""Runs that are queued because nothing is left to decide, and runs that are returned to the router."""

from __future__ import annotations

import random
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pytest

from bruce_mp.kernels import CHOICE, ChosenPartition, RunQueue, queue_chosen
from bruce_mp.slab import layout as lay
from bruce_mp.slab.file import Geometry
from support.examples import seeds
from support.slabs import Input, datagram, new_slab

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from bruce_mp.slab.file import Slab
    from bruce_mp.slab.runs import Segment

GEOMETRY: Final = Geometry(chunks=64, topics=16, partitions=16, landing_slots=16, landing_slot_size=4096)
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

    def run(self, *datagrams: bytes, is_numbered: bool = True) -> Segment:
        (self.sender.receive if is_numbered else self.sender.receive_unnumbered)(datagrams)
        [segment] = self.sender.close_all()
        return segment

    def damage(self, segment: Segment, field: int, bits: int = 1) -> None:
        """Change bits of a field in the header of a segment's run."""
        self.slab.words[(self.slab.chunk_at(segment.chunk) + segment.run + field) >> 2] ^= bits

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
    with new_slab(GEOMETRY) as slab:
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


def test_no_run_is_queued_behind_a_run_whose_number_is_not_in_use(rig: Rig) -> None:
    """Its topic may have lost this number, and have another one now."""
    rig.choices[TOPIC] = rig.choice
    segments = [rig.run(datagram(b"t2")), rig.run(datagram(b"t1"))]
    others, count = queue_chosen(rig.slab, segments, rig.choices, lambda _: None, LARGEST, known={TOPIC: None})
    assert ([segment for segment, _ in others], count) == (segments, 0)


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


@pytest.mark.parametrize(
    ("field", "bits"),
    [(lay.RUN_MAGIC_AT, 1), (lay.RUN_GENERATION, 1), (lay.RUN_SIZE, 1), (lay.RUN_SIZE, 1 << 31), (lay.RUN_WORD, 0xFF)],
)
def test_a_damaged_run_is_returned_without_a_header(rig: Rig, field: int, bits: int) -> None:
    rig.choices[TOPIC] = rig.choice
    segments = [rig.run(datagram(b"t1")) for _ in range(3)]
    rig.damage(segments[1], field, bits)
    others, _ = queue_chosen(rig.slab, segments, rig.choices, lambda _: None, LARGEST, known=KNOWN)
    assert others == [(segments[1], None)]
    assert rig.queue.segments == [segments[0], segments[2]]


@pytest.mark.parametrize(
    "fields", [{"chunk": 2**32 - 1}, {"chunk": 63}, {"generation": 99}, {"run": 2**32 - 8}, {"run": 8}, {"first": 0}]
)
def test_a_segment_that_disagrees_with_the_headers_is_returned_without_one(rig: Rig, fields: dict[str, int]) -> None:
    rig.choices[TOPIC] = rig.choice
    segment = rig.run(datagram(b"t1"))
    damaged = segment._replace(**fields)
    others, count = queue_chosen(rig.slab, [damaged, segment], rig.choices, lambda _: None, LARGEST, known=KNOWN)
    assert (others, count) == ([(damaged, None)], 1)
    assert rig.queue.segments == [segment]


class Run(NamedTuple):
    """A run of one message; `topic` is its topic even if the run has no number."""

    topic: bytes
    is_plain: bool
    """True if the run is neither damaged nor has partition keys."""
    segment: Segment


def random_run(rig: Rig, rng: random.Random) -> Run:
    topic = rng.choice((b"t1", b"t2"))
    key = rng.choice((None, None, None, 5))
    size = rng.choice((0, 1, 1, LARGEST + 1))
    segment = rig.run(datagram(topic, bytes(size), partition_key=key), is_numbered=rng.random() < 0.85)
    is_damaged = rng.random() < 0.1
    if is_damaged:
        rig.damage(segment, rng.choice((lay.RUN_MAGIC_AT, lay.RUN_GENERATION)))
    elif rng.random() < 0.1:
        rig.slab.words[(rig.slab.chunk_at(segment.chunk) + lay.CHUNK_SPAN) >> 2] = 2
    return Run(topic, key is None and not is_damaged, segment)


@pytest.mark.parametrize("seed", seeds(30))
def test_no_run_overtakes_another_of_its_topic(rig: Rig, seed: int) -> None:
    rng = random.Random(seed)
    runs = [random_run(rig, rng) for _ in range(10)]
    rig.choices.update((topic, rig.choice) for topic in KNOWN if rng.random() < 0.6)
    returned = rig.queue_all([run.segment for run in runs], lambda _: rng.choice((None, rig.choice)))
    for topic in (b"t1", b"t2"):
        places = [place for place, run in zip(returned, runs, strict=True) if run.is_plain and run.topic == topic]
        assert places == sorted(places), "a run is queued although an earlier one of the topic was returned"


@pytest.mark.skipif(not CHOICE.compiled, reason=CHOICE.sentence)
@pytest.mark.parametrize("seed", seeds(20))
def test_both_variants_queue_the_same_runs(rig: Rig, seed: int) -> None:
    rng = random.Random(seed)
    segments = [random_run(rig, rng).segment for _ in range(10)]
    chosen = [topic for topic in range(3) if rng.random() < 0.4]
    found = []
    for variant in ("pure", "compiled"):
        queue_runs = import_module(f"bruce_mp.kernels.{variant}.inspect").queue_chosen
        found.append(_queue_with(queue_runs, rig.slab, segments, chosen, random.Random(seed)))
    assert found[0] == found[1]


def _queue_with(
    queue_runs: Callable[..., object], slab: Slab, segments: list[Segment], chosen: list[int], rng: random.Random
) -> tuple[Any, ...]:
    """Return all that a variant does to a frame; half of the other topics get a choice when it asks."""
    queue, asked = RunQueue(7, [], [], []), []
    choices = {topic: ChosenPartition(topic, queue) for topic in chosen}

    def choose(topic: int) -> ChosenPartition | None:
        asked.append(topic)
        return rng.choice((None, ChosenPartition(9, queue)))

    return queue_runs(slab, segments, choices, choose, LARGEST, known=KNOWN), queue, choices, asked
