"""The books balance for all paths of messages, and a reading marks possible inconsistency."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bruce_mp.errors import DiscardReason
from bruce_mp.pipeline.stage_counts import count_books
from bruce_mp.slab import layout as lay
from bruce_mp.slab.layout import RunState, state_word
from bruce_mp.slab.rows import ProcessRow
from bruce_mp.slab.runs import split_run
from bruce_mp.telemetry.books import counter_total, read_books
from bruce_mp.telemetry.counters import Counter, discarded
from bruce_mp.telemetry.held import held_by_topic
from bruce_mp.telemetry.stages import SPILLED, STAGE_OF_STATE
from support.crash_images import crash_images
from support.examples import examples
from support.slabs import DISPATCHER_ROW, INPUT_ROW, Input, datagram, new_slab, put_in_landing_zone, set_state

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bruce_mp.slab.file import Slab
    from bruce_mp.slab.runs import Segment

pytestmark = pytest.mark.usefixtures("pure_kernels")

TOPICS = [(b"t1", 3), (b"t2", 1)]


@pytest.fixture
def slab() -> Iterator[Slab]:
    with new_slab() as made:
        yield made


def test_every_state_that_holds_records_has_a_stage() -> None:
    assert set(STAGE_OF_STATE) == set(RunState) - lay.SETTLED - {RunState.SPLIT}


def test_books_of_an_empty_slab_are_zero_and_balanced(slab: Slab) -> None:
    books = count_books(slab)
    assert (books.received, books.delivered, books.discarded, books.possible_duplicates) == (0, 0, {}, 0)
    assert books.held == {"input": 0, "router": 0, "queued": 0, "in_flight": 0, "spill": 0}
    assert books.consistent
    assert books.balanced


@examples(30)
@given(
    sizes=st.lists(st.lists(st.sampled_from([0, 10, 3000]), min_size=1, max_size=8), max_size=6),
    fates=st.lists(
        st.tuples(st.sampled_from([*STAGE_OF_STATE, RunState.DELIVERED, RunState.DISCARDED]), st.booleans()),
        min_size=48,
        max_size=48,
    ),
)
def test_received_is_delivered_discarded_or_held(sizes: list[list[int]], fates: list[tuple[RunState, bool]]) -> None:
    with new_slab() as slab:
        sender = Input(slab, topics=TOPICS)
        segments: list[Segment] = []
        for batch in sizes:
            sender.receive([datagram(b"t1" if size else b"new", bytes(size)) for size in batch] + [b"malformed"])
            segments += sender.close_all()
        settler = ProcessRow(slab, DISPATCHER_ROW)
        expected = {**dict.fromkeys(STAGE_OF_STATE.values(), 0), SPILLED: 0}
        for segment, (state, cut) in zip(segments, fates, strict=False):
            if cut:
                split_run(slab, segment.chunk, segment.run)
            if state in lay.SETTLED:
                counter = Counter.MsgDelivered if state is RunState.DELIVERED else discarded(DiscardReason.BAD_TOPIC)
                settler.settle([segment], state, 0, {counter: segment.records})
            else:
                set_state(slab, [segment], state_word(state, 1))
                expected[STAGE_OF_STATE[state]] += segment.records
        books = count_books(slab)
        assert books.consistent
        assert books.balanced
        assert books.held == expected
        assert books.received == sum(map(len, sizes)) + len(sizes)
        assert books.discarded.get("MALFORMED", 0) == len(sizes)


def test_held_by_topic_names_topics_without_a_number(slab: Slab) -> None:
    sender = Input(slab, topics=TOPICS)
    sender.receive([datagram(b"t2"), datagram(b"new"), datagram(b"new"), datagram(b"t2")])
    assert held_by_topic(slab) == {2: 2, b"new": 2}


def test_a_counter_is_the_sum_over_all_processes(slab: Slab) -> None:
    ProcessRow(slab, 0).add(Counter.MsgReceived, 1)
    ProcessRow(slab, slab.geometry.rows - 1).add(Counter.MsgReceived, 5)
    ProcessRow(slab, 7).add(Counter.MsgDelivered, 2**40)
    assert counter_total(slab, Counter.MsgReceived) == 6
    assert counter_total(slab, Counter.MsgDelivered) == 2**40


def test_an_inconsistent_reading_is_marked_and_a_consistent_one_balances(slab: Slab) -> None:
    """This holds at every store while an input appends a batch, and while a transaction settles it."""
    sender = Input(slab, topics=TOPICS)
    sender.receive([datagram(b"t1", b"a")])
    geometry = slab.geometry
    regions = [range(geometry.rows_at, geometry.landing_slots_at), range(geometry.chunks_at, geometry.file_size)]
    put_in_landing_zone(slab, [datagram(b"t1", b"b"), datagram(b"new", b"c"), b"malformed"])
    settler = ProcessRow(slab, DISPATCHER_ROW)

    def work() -> None:
        sender.admit()
        segments = sender.close_all()
        settler.settle(segments, RunState.DELIVERED, 0, {Counter.MsgDelivered: sum(s.records for s in segments)})

    consistent = []
    for _ in crash_images(slab, regions, work):
        books = count_books(slab)
        consistent.append(books.consistent)
        assert books.balanced or not books.consistent
    assert consistent.count(True) > 5
    assert consistent.count(False) > 5
    assert consistent[0]
    assert consistent[-1]
    assert count_books(slab).delivered == 3


def test_books_stay_inconsistent_until_the_batch_of_a_dead_input_is_recovered(slab: Slab) -> None:
    ProcessRow(slab, INPUT_ROW).begin_batch()
    put_in_landing_zone(slab, [datagram(b"t1")])
    assert not count_books(slab).consistent
    ProcessRow.recover(slab, INPUT_ROW)
    assert not count_books(slab).consistent
    Input(slab, topics=TOPICS)
    books = count_books(slab)
    assert books.consistent
    assert books.received == 1


@pytest.mark.exhaustive
def test_rows_and_words_agree_after_a_kill_of_an_input_at_any_store(slab: Slab) -> None:
    sender = Input(slab, topics=TOPICS)
    sender.receive([datagram(b"t1", b"a")])
    put_in_landing_zone(slab, [datagram(b"t1", b"b"), datagram(b"new", b"c"), b"malformed"])
    geometry = slab.geometry
    area = [range(geometry.rows_at, geometry.landing_slots_at), range(geometry.chunks_at, geometry.file_size)]

    def work() -> None:
        sender.admit()
        sender.close_all()

    for _ in crash_images(slab, area, work):
        Input(slab, topics=TOPICS).receive([datagram(b"t1")] * 4)  # held messages: a lost count shows below 4
        rows, words = read_books(slab), count_books(slab)
        assert rows.balanced
        assert rows.held == words.held
        assert rows.held["input"] >= 4
