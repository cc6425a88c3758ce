"""Counts of outcomes against a plain reading of the records, each run counted once; damage ends the count."""

from __future__ import annotations

import random
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Final

import pytest

from bruce_mp.errors import DiscardReason
from bruce_mp.kernels import CHOICE, CountedPosition, count_outcomes
from bruce_mp.slab import layout as lay
from bruce_mp.slab.chunks import chunk_headers
from bruce_mp.slab.file import Geometry
from bruce_mp.slab.layout import RunState
from bruce_mp.slab.runs import records_of, runs_of, split_run
from support.slabs import datagram, new_slab
from support.streams import StreamInput

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bruce_mp.slab.file import Slab
    from bruce_mp.slab.runs import Run

GEOMETRY: Final = Geometry(chunks=64, topics=16, partitions=16, landing_slots=8, landing_slot_size=16384)
OUTCOMES: Final = (RunState.DELIVERED, RunState.DISCARDED, RunState.IN_FLIGHT)


def fill(slab: Slab, rng: random.Random) -> None:
    """Fill runs of several clients, whole and split, some settled."""
    worker = StreamInput(slab, topics=[(b"t1", 2), (b"t2", 1)], linger_ms=0)
    clients = [worker.connect() for _ in range(5)]
    for _ in range(60):
        topic = rng.choice([b"t1", b"t2", b"unknown"])
        worker.feed((rng.choice(clients), datagram(topic, rng.randbytes(rng.randrange(300))) * rng.randrange(1, 5)))
    worker.close_runs()
    for chunk in chunks_of(slab):
        for offset, run in list(runs_of(slab, chunk)):
            at = slab.chunk_at(chunk) + offset
            slab.view[at + lay.RUN_REASON] = rng.choice(list(DiscardReason))
            slab.words[at >> 2] = RunState.DELIVERED if rng.random() < 0.7 else rng.choice(OUTCOMES)
            if rng.random() < 0.4:
                split_run(slab, chunk, offset)
                for record, _ in records_of(slab, chunk, offset, run):
                    word = slab.chunk_at(chunk) + record
                    slab.view[word + lay.RECORD_REASON] = rng.choice(list(DiscardReason))
                    slab.words[word >> 2] = rng.choices(OUTCOMES, (50, 50, 1))[0]


def chunks_of(slab: Slab) -> list[int]:
    return [chunk for chunk, state, _, _ in chunk_headers(slab) if state]


def plain(slab: Slab, chunk: int, number: int) -> tuple[CountedPosition, dict[tuple[int, int, int], int]]:
    """Return the same counts by a reading of headers."""
    counts: dict[tuple[int, int, int], int] = {}
    at = lay.CHUNK_HEADER
    for index, (offset, run) in enumerate(runs_of(slab, chunk)):
        at = offset
        found = []
        for _, record in records_of(slab, chunk, offset, run):
            is_split = run.state is RunState.SPLIT
            word, reason = (record.word, record.reason) if is_split else (run.word, run.reason)
            found.append((record.arrival & (lay.ARRIVAL_SOURCES - 1), word & 0xFF, reason))
        if not all(state in lay.SETTLED for _, state, _ in found):
            return CountedPosition(index, at), counts
        at += run.size
        for item in found if index >= number else ():
            counts[item] = counts.get(item, 0) + 1
    return CountedPosition(slab.words[(slab.chunk_at(chunk) + lay.CHUNK_RUNS) >> 2], at), counts


@contextmanager
def settled_run() -> Iterator[tuple[Slab, int, int, Run]]:
    """Create a slab whose only run is delivered, and yield the slab, the chunk, the run's offset and the run."""
    with new_slab(GEOMETRY) as slab:
        worker = StreamInput(slab, topics=[(b"t1", 1)], linger_ms=0)
        worker.feed((worker.connect(), datagram(b"t1", b"value")))
        worker.close_runs()
        [chunk] = chunks_of(slab)
        [(offset, run)] = runs_of(slab, chunk)
        slab.words[(slab.chunk_at(chunk) + offset) >> 2] = RunState.DELIVERED
        yield slab, chunk, offset, run


@pytest.mark.parametrize("seed", range(8))
def test_count_outcomes_matches_the_run_headers(seed: int) -> None:
    with new_slab(GEOMETRY) as slab:
        fill(slab, random.Random(seed))
        for chunk in chunks_of(slab):
            found = count_outcomes(slab, chunk, CountedPosition())
            assert found == plain(slab, chunk, 0)
            assert count_outcomes(slab, chunk, found.position) == (found.position, {})


@pytest.mark.parametrize("seed", range(20))
def test_damage_stops_the_count_without_an_error(seed: int) -> None:
    rng = random.Random(seed)
    with new_slab(GEOMETRY) as slab:
        fill(slab, rng)
        chunk = rng.choice(chunks_of(slab))
        start = slab.chunk_at(chunk)
        for _ in range(rng.randrange(1, 30)):
            slab.view[start + rng.randrange(lay.CHUNK_BYTES)] = rng.choice([0, 1, 0x7F, 0xFF])
        count_outcomes(slab, chunk, CountedPosition())


@pytest.mark.parametrize("field", [lay.RECORD_KEY_LENGTH, lay.RECORD_VALUE_LENGTH])
@pytest.mark.parametrize("is_split", [False, True])
def test_a_last_record_that_goes_past_its_run_is_not_counted(field: int, is_split: bool) -> None:
    with settled_run() as (slab, chunk, offset, run):
        at = slab.chunk_at(chunk) + offset
        if is_split:
            split_run(slab, chunk, offset)
        slab.words[(at + run.body_offset + field) >> 2] = 1000
        assert count_outcomes(slab, chunk, CountedPosition()) == (CountedPosition(), {})


@pytest.mark.parametrize("span", [0, 65, 0xFFFFFFFF])
def test_a_chunk_with_a_damaged_span_is_not_counted(span: int) -> None:
    with settled_run() as (slab, chunk, _, _):
        slab.words[(slab.chunk_at(chunk) + lay.CHUNK_SPAN) >> 2] = span
        assert count_outcomes(slab, chunk, CountedPosition()) == (CountedPosition(), {})


@pytest.mark.parametrize(("state", "is_counted"), [(RunState.SPLIT - 1, True), (RunState.SPLIT, False), (0xFF, False)])
def test_a_record_with_an_invalid_state_is_not_counted(state: int, is_counted: bool) -> None:
    with settled_run() as (slab, chunk, offset, run):
        slab.view[slab.chunk_at(chunk) + offset + run.body_offset] = state
        assert bool(count_outcomes(slab, chunk, CountedPosition()).counts) is is_counted


@pytest.mark.skipif(not CHOICE.compiled, reason=CHOICE.sentence)
@pytest.mark.parametrize("seed", range(10))
def test_both_variants_count_the_same_despite_damage(seed: int) -> None:
    rng = random.Random(seed)
    pure, compiled = (import_module(f"bruce_mp.kernels.{package}.counts") for package in ("pure", "compiled"))
    with new_slab(GEOMETRY) as slab:
        fill(slab, rng)
        chunk = rng.choice(chunks_of(slab))
        offsets = [offset for offset, _ in runs_of(slab, chunk)]
        for _ in range(100):
            start = slab.chunk_at(chunk) + rng.choice([0, rng.choice(offsets)])
            at = (start >> 2) + rng.randrange((lay.RUN_HEADER + lay.RECORD_HEADER) >> 2)
            intact_word = slab.words[at]
            slab.words[at] = rng.choice([0, 1, 12, 0xFFFF, 0xFFFFFFFF, rng.randrange(300)])
            results = [each.count_outcomes(slab, chunk, CountedPosition()) for each in (pure, compiled)]
            assert results[0] == results[1]
            slab.words[at] = intact_word
