"""Which stores of a test's processes are checked as changes of a state."""

from __future__ import annotations

import pytest

from bruce_mp.slab import layout as lay
from bruce_mp.slab.layout import RunState
from bruce_mp.slab.runs import split_run
from bruce_mp.slab.states import Role
from support.checked_words import CheckedWords, checked_slab
from support.slabs import Input, datagram, set_state
from support.variants import kernels


def split_after(leftover_at: int) -> CheckedWords:
    """Let the router split a run of two records, with the magic of a run this far behind the start of the last."""
    with kernels("pure"), checked_slab() as (slab, words):
        sender = Input(slab, linger_ms=0, topics=[(b"t1", 1)])
        sender.receive([datagram(), datagram()])
        [segment] = sender.close_all()
        last_at = slab.chunk_at(segment.chunk) + segment.first + lay.RECORD_HEADER
        words[(last_at + leftover_at) >> 2] = lay.RUN_MAGIC
        with words.acting(Role.ROUTER):
            set_state(slab, [segment], RunState.ROUTED)
            split_run(slab, segment.chunk, segment.run)
        return words


def test_the_stores_of_a_split_are_checked() -> None:
    transitions = {(RunState.OPEN, RunState.FILLED), (RunState.FILLED, RunState.ROUTED)}
    assert split_after(200).stored == transitions | {(RunState.ROUTED, RunState.SPLIT)}


def test_a_record_in_front_of_the_bytes_of_an_earlier_run_is_no_run() -> None:
    split_after(lay.RUN_MAGIC_AT)


def test_a_change_by_another_process_than_the_owner_is_found() -> None:
    with kernels("pure"), checked_slab() as (slab, words):
        sender = Input(slab, linger_ms=0, topics=[(b"t1", 1)])
        sender.receive([datagram()])
        segments = sender.close_all()
        with words.acting(Role.DISPATCHER), pytest.raises(AssertionError, match="FILLED -> ROUTED was stored by the"):
            set_state(slab, segments, RunState.ROUTED)
