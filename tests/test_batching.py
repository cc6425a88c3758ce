"""The flush rules of a batch, against a model that looks at one message at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bruce_mp.batching import BatchBuilder
from bruce_mp.config.sections import BatchLimits
from bruce_mp.slab.runs import segment_records
from support.examples import examples
from support.slabs import Input, datagram, new_slab

if TYPE_CHECKING:
    from bruce_mp.slab.file import Slab
    from bruce_mp.slab.runs import Segment

STEP_MS: Final = 10

Batch = list[int]
"""Sizes of messages, which tell them apart well enough: order is what matters."""


class Model:
    """The rules of the reference, word by word; an age counts from the arrival of the first message."""

    def __init__(self, limits: BatchLimits) -> None:
        self.limits = limits
        self.batch: Batch = []
        self.due_ms: int | None = None

    def add(self, size: int, now_ms: int) -> list[Batch]:
        most = self.limits.bytes
        done: list[Batch] = []
        if most is not None and self.batch and (size >= most or sum(self.batch) + size > most):
            done.append(self.flush())
        if not self.batch and self.limits.time_ms is not None:
            self.due_ms = now_ms + self.limits.time_ms
        self.batch.append(size)
        full = self.limits.messages is not None and len(self.batch) >= self.limits.messages
        if full or (most is not None and sum(self.batch) >= most):
            done.append(self.flush())
        return done

    def flush(self) -> Batch:
        batch, self.batch, self.due_ms = self.batch, [], None
        return batch


def sizes_of(slab: Slab, segments: list[Segment]) -> Batch:
    return [
        record.key_length + record.value_length for segment in segments for _, record in segment_records(slab, segment)
    ]


runs = st.lists(st.lists(st.integers(1, 60), min_size=1, max_size=8), max_size=6)
limits = st.builds(
    BatchLimits,
    time_ms=st.none() | st.integers(1, 40),
    messages=st.none() | st.integers(1, 10),
    bytes=st.none() | st.integers(1, 150),
)


@examples(100)
@given(runs=runs, limits=limits)
def test_batches_are_those_of_the_rules(runs: list[list[int]], limits: BatchLimits) -> None:
    with new_slab() as slab:
        source, model, builder = Input(slab), Model(limits), BatchBuilder(slab, limits)
        now_ms = 0
        for run in runs:
            now_ms += STEP_MS
            source.receive([datagram(b"t1", b"v" * size) for size in run])
            found = [sizes_of(slab, batch) for segment in source.close_all() for batch in builder.add(segment, now_ms)]
            assert found == [batch for size in run for batch in model.add(size, now_ms)]
            assert builder.due_ms == model.due_ms
        assert sizes_of(slab, builder.flush()) == model.flush()
        assert builder.due_ms is None


@pytest.mark.parametrize("limits", [BatchLimits(bytes=10), BatchLimits(messages=10)])
def test_empty_messages_fill_a_batch_too(limits: BatchLimits) -> None:
    """An empty message counts one byte: a flood of them must not wait for ever."""
    with new_slab() as slab:
        source, builder = Input(slab), BatchBuilder(slab, limits)
        source.receive([datagram(b"t1")] * 12)
        (segment,) = source.close_all()
        assert [sizes_of(slab, batch) for batch in builder.add(segment, 0)] == [[0] * 10]
        assert sizes_of(slab, builder.flush()) == [0, 0]


def test_a_batch_is_due_by_the_age_of_its_oldest_message() -> None:
    with new_slab() as slab:
        source, builder = Input(slab), BatchBuilder(slab, BatchLimits(time_ms=100))
        for now_ms in (1000, 1050):
            source.receive([datagram(b"t1", b"v")])
            for segment in source.close_all():
                assert builder.add(segment, now_ms) == []
        assert builder.due_ms == 1100
