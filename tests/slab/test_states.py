"""The state machine of runs and records: processes hand records over and die; no record is lost or held twice.

The model has only the holder of each record, by arrival number.  A crash discards a process' memory, and the process
must find its records in the slab.
"""

from __future__ import annotations

from collections import Counter

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from bruce_mp import kernels
from bruce_mp.slab import layout as lay
from bruce_mp.slab.file import Slab
from bruce_mp.slab.layout import RunState, state_word
from bruce_mp.slab.recovery import inspect_segment, rebuild_batches, sweep
from bruce_mp.slab.rows import ProcessRow
from bruce_mp.slab.runs import Segment, is_current, segment_records, write_placement
from bruce_mp.slab.states import TRANSITIONS, Role
from support.examples import examples
from support.slabs import DISPATCHER_ROW, SMALL, Input, contents, datagram, slab_file

SLOTS = 2
HELD = [state for state in RunState if state not in {RunState.OPEN, RunState.SPLIT, *lay.SETTLED}]


def test_every_state_has_its_row_and_one_owner() -> None:
    assert set(TRANSITIONS) == set(RunState)
    assert all(len(set(following.values())) <= 1 for following in TRANSITIONS.values())


def test_every_state_is_on_a_way_from_open_to_settled() -> None:
    ends = {state for state, following in TRANSITIONS.items() if not following}
    assert ends == {*lay.SETTLED, RunState.SPLIT}
    reached = {RunState.OPEN}
    while more := {after for before in reached for after in TRANSITIONS[before]} - reached:
        reached |= more
    assert reached == set(RunState)
    alive = set(HELD)
    while done := {
        state for state in alive if set(TRANSITIONS[state]) & (lay.SETTLED | (set(RunState) - alive - ends))
    }:
        alive -= done
    assert not alive


class Machine(RuleBasedStateMachine):
    """An input, a router and two dispatchers, with only the transitions of the table."""

    @initialize()
    def start(self) -> None:
        self.file = slab_file()
        self.path = self.file.__enter__()
        self.slab = Slab(self.path)
        self.input = Input(self.slab, topics=[(b"t1", 3), (b"t2", 1)])
        self.settled_by = ProcessRow(self.slab, DISPATCHER_ROW)
        self.states: dict[int, tuple[RunState, int]] = {}
        self.incarnation = 1
        self.sequence = 0
        self.segments: list[Segment] = []  # held by the processes, each record in one segment
        self.stale: list[tuple[Segment, int]] = []

    def teardown(self) -> None:
        if hasattr(self, "slab"):
            self.slab.close()
            self.file.__exit__(None, None, None)

    def arrivals(self, segment: Segment) -> list[int]:
        return [record.arrival for _, record in segment_records(self.slab, segment)]

    def state_of(self, segment: Segment) -> tuple[RunState, int]:
        return self.states[self.arrivals(segment)[0]]

    def pick(self, data: st.DataObject, *states: RunState) -> Segment | None:
        of_state = [segment for segment in self.segments if self.state_of(segment)[0] in states]
        return data.draw(st.sampled_from(of_state)) if of_state else None

    def move(self, segment: Segment, after: RunState, holder: int) -> None:
        before, held_by = self.state_of(segment)
        assert after in TRANSITIONS[before]
        arrivals = self.arrivals(segment)
        if after in lay.SETTLED:
            self.settled_by.settle([segment], after, 14 if after is RunState.DISCARDED else 0, {1: segment.records})
        else:
            taken = kernels.claim(self.slab, [segment], state_word(before, held_by), state_word(after, holder))
            assert taken == [segment]
        for arrival in arrivals:
            assert self.states[arrival] == (before, held_by)
            self.states[arrival] = after, holder
        again = state_word(before, held_by)
        if state_word(after, holder) != again:
            assert kernels.claim(self.slab, [segment], again, again) == []  # a doorbell that rings twice

    # --- work of the processes
    # -----------------------------------------------------------------------------------------

    @rule(
        messages=st.lists(
            st.tuples(st.sampled_from([b"t1", b"t2", b"new"]), st.integers(0, 900), st.none() | st.integers(0, 9)),
            min_size=1,
            max_size=SMALL.landing_slots,
        )
    )
    def messages_come(self, messages: list[tuple[bytes, int, int | None]]) -> None:
        base = self.input.base
        before = {content.arrival for content in contents(self.slab)}
        self.input.receive([datagram(topic, bytes(size), b"", key) for topic, size, key in messages])
        new = {content.arrival: content.state for content in contents(self.slab) if content.arrival not in before}
        assert set(new) <= set(range(base, base + len(messages)))
        self.states.update((arrival, (state, 0)) for arrival, state in new.items())

    @rule()
    def runs_close(self) -> None:
        closed = self.input.close_all()
        for segment in closed:
            for arrival in self.arrivals(segment):
                assert self.states[arrival][0] in {
                    RunState.OPEN,
                    RunState.FILLED,
                }  # a full chunk's runs close by themselves
                self.states[arrival] = RunState.FILLED, 0
        self.segments += closed

    @rule(data=st.data(), after=st.sampled_from(HELD))
    def hand_over(self, data: st.DataObject, after: RunState) -> None:
        befores = [before for before in HELD if after in TRANSITIONS[before] and before is not after]
        segment = self.pick(data, *befores)
        if segment is None:
            return
        before, held_by = self.state_of(segment)
        if before is RunState.QUEUED and after is RunState.IN_FLIGHT:
            write_placement(self.slab, segment, 2, self.sequence, 7, opens_batch=True)
            self.sequence += segment.records
        if TRANSITIONS[before][after] is Role.ROUTER:
            to_dispatcher = after in {RunState.ASSIGNED, RunState.ASSIGNED_SENT}
            holder = data.draw(st.integers(0, SLOTS - 1)) if to_dispatcher else self.incarnation
        else:
            holder = held_by
        self.move(segment, after, holder)

    @rule(data=st.data(), after=st.sampled_from(sorted(lay.SETTLED)))
    def settle(self, data: st.DataObject, after: RunState) -> None:
        befores = [before for before in HELD if after in TRANSITIONS[before]]
        segment = self.pick(data, *befores)
        if segment is not None:
            old = state_word(*self.state_of(segment))
            self.segments.remove(segment)
            self.move(segment, after, 0)
            self.stale.append((segment, old))

    @rule(data=st.data(), how=st.sampled_from(["count", "size", "bytes", "partition"]), number=st.integers(0, 20))
    def cut(self, data: st.DataObject, how: str, number: int) -> None:
        segment = self.pick(data, *(before for before in HELD if RunState.SPLIT in TRANSITIONS[before]))
        if segment is None:
            return
        before = self.arrivals(segment)
        parts: list[Segment | None]
        if how == "count":
            parts = [*kernels.split_at(self.slab, segment, number, 1 << 40)]
        elif how == "size":
            parts = [*kernels.split_at(self.slab, segment, 1 << 40, number * 100)]
        elif how == "bytes":
            parts = [part for _, part in kernels.split_by_size(self.slab, segment, number * 50)]
        else:
            parts = [part for _, part in kernels.split_by_partition(self.slab, segment, [5, 6, 7, 6])]
        self.segments.remove(segment)
        self.segments += [part for part in parts if part]
        assert [arrival for part in parts if part for arrival in self.arrivals(part)] == before
        assert sum(part.payload for part in parts if part) == segment.payload

    # --- crashes -------------------------------------------------------------------------------------------------

    @rule()
    def everybody_dies(self) -> None:
        """Discard all Python objects and find the segments in the slab again."""
        self.slab.close()
        self.slab = Slab(self.path)
        self.input = Input(self.slab)
        self.settled_by = ProcessRow(self.slab, DISPATCHER_ROW)
        for arrival, (state, _) in self.states.items():
            if state is RunState.OPEN:
                self.states[arrival] = RunState.FILLED, 0
        before = sorted(arrival for segment in self.segments for arrival in self.arrivals(segment))
        found = sweep(self.slab, HELD)
        self.segments = [item.segment for item in found]
        after = sorted(arrival for segment in self.segments for arrival in self.arrivals(segment))
        assert set(before) <= set(after)
        assert after == sorted(arrival for arrival, (state, _) in self.states.items() if state not in lay.SETTLED)
        for item in found:
            assert (item.state, item.holder) == self.state_of(item.segment)
            assert inspect_segment(self.slab, item.segment) == item

    @rule()
    def router_restarts(self) -> None:
        """Claim the records of the previous incarnation."""
        self.incarnation += 1
        for state in (RunState.ROUTED, RunState.ROUTED_SENT):
            for segment in [some for some in self.segments if self.state_of(some)[0] is state]:
                self.move(segment, state, self.incarnation)

    # --- invariants
    # ----------------------------------------------------------------------------------------------------

    @invariant()
    def slab_and_model_agree(self) -> None:
        if not hasattr(self, "slab"):
            return
        here = contents(self.slab)
        assert all(count == 1 for count in Counter(content.arrival for content in here).values())
        states = {content.arrival: (content.state, content.holder) for content in here}
        for arrival, expected in self.states.items():
            if arrival in states and expected[0] is RunState.OPEN:
                assert states[arrival][0] in {RunState.OPEN, RunState.FILLED}
            elif arrival in states:
                assert states[arrival] == expected
            else:
                assert expected[0] in lay.SETTLED  # only settled records may be reclaimed
        held = sum(state not in lay.SETTLED for state, _ in states.values())
        settled = sum(state in lay.SETTLED for state, _ in self.states.values())
        assert held + settled == len(self.states)
        assert self.settled_by.counters[1] == settled

    @invariant()
    def batches_keep_their_place(self) -> None:
        if not hasattr(self, "slab"):
            return
        for batch in rebuild_batches(sweep(self.slab, [RunState.IN_FLIGHT, RunState.RETURNED_SENT])):
            assert (batch.partition, batch.epoch) == (2, 7)
            assert batch.base_sequence >= 0

    @precondition(lambda self: self.stale)
    @rule(data=st.data())
    def a_stale_doorbell_rings(self, data: st.DataObject) -> None:
        segment, old = data.draw(st.sampled_from(self.stale))
        assert kernels.claim(self.slab, [segment], old, old) == []
        if not is_current(self.slab, segment):
            for state in RunState:
                assert kernels.claim(self.slab, [segment], state_word(state), state_word(state)) == []


Machine.TestCase.settings = examples(25, steps=60)
TestStates = Machine.TestCase
