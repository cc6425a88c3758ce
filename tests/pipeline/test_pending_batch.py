"""The flush rules of a batch, against a model that handles one message at a time.

The model is the table of the C++ daemon. S, N: limits of bytes and messages; m: the next message; bytes: of the batch.

    1  S on, size(m) >= S               send the batch, then m alone
    2  S on, bytes + size(m) > S        send the batch; then send m alone if N <= 1, else begin a batch with m
    3  otherwise                        add m; then send the batch if it is due, or has N messages or S bytes

A batch is due by the arrival of its first message, so the m of row 2 is never due at once.  Messages that arrive
together are checked once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bruce_mp.config.sections import BatchLimits
from bruce_mp.pipeline.pending_batch import UNLIMITED, PendingBatch
from bruce_mp.slab.runs import segment_records
from support.examples import examples
from support.put_records import as_claimed
from support.slabs import Input, datagram, new_slab

if TYPE_CHECKING:
    from bruce_mp.kernels import ClaimedRun
    from bruce_mp.slab.file import Slab
    from bruce_mp.slab.runs import Segment

Batch = list[int]
"""Sizes of messages, which identify them well enough for tests of the order."""


class Model:
    """T ms, N messages, S bytes; each may be off."""

    def __init__(self, limits: BatchLimits) -> None:
        self.limits = limits
        self.batch: Batch = []
        self.due_ms: int | None = None

    def add_all(self, sizes: Batch, now_ms: int) -> list[Batch]:
        """Messages that come together."""
        done = [batch for size in sizes for batch in self.add(size, now_ms)]
        of_age = self.due_ms is not None and now_ms >= self.due_ms
        return [*done, self.flush()] if of_age else done

    def add(self, size: int, now_ms: int) -> list[Batch]:
        most = self.limits.bytes
        if most is not None and size >= most:
            return [*self._flush_if_any(), [size]]
        if most is not None and sum(self.batch) + size > most:
            done = self._flush_if_any()
            if (self.limits.messages or 2) <= 1:
                return [*done, [size]]
            self._join(size, now_ms)
            return done
        self._join(size, now_ms)
        return self._flush_if_any() if self._is_full() else []

    def _join(self, size: int, now_ms: int) -> None:
        if not self.batch and self.limits.time_ms is not None:
            self.due_ms = now_ms + self.limits.time_ms
        self.batch.append(size)

    def _is_full(self) -> bool:
        many = self.limits.messages is not None and len(self.batch) >= self.limits.messages
        large = self.limits.bytes is not None and sum(self.batch) >= self.limits.bytes
        return many or large

    def _flush_if_any(self) -> list[Batch]:
        return [self.flush()] if self.batch else []

    def flush(self) -> Batch:
        batch, self.batch, self.due_ms = self.batch, [], None
        return batch


def segments_of(runs: list[ClaimedRun]) -> list[Segment]:
    return [run[0] for run in runs]


def sizes_of(slab: Slab, segments: list[Segment]) -> Batch:
    return [
        record.key_length + record.value_length for segment in segments for _, record in segment_records(slab, segment)
    ]


runs = st.lists(
    st.tuples(st.sampled_from([0, 1, 9, 10, 40]), st.lists(st.integers(1, 60), min_size=1, max_size=8)), max_size=6
)
limits = st.builds(
    BatchLimits,
    time_ms=st.none() | st.integers(1, 40),
    messages=st.none() | st.integers(1, 10),
    bytes=st.none() | st.integers(1, 150),
)


@examples(40)
@given(runs=runs, limits=limits)
def test_batches_follow_the_configured_limits(runs: list[tuple[int, list[int]]], limits: BatchLimits) -> None:
    with new_slab() as slab:
        source, model, builder = Input(slab), Model(limits), PendingBatch["Segment"](slab, limits)
        now_ms = 0
        for later_ms, run in runs:
            now_ms += later_ms
            source.now_ms = now_ms
            source.receive([datagram(b"t1", b"v" * size) for size in run])
            found = [sizes_of(slab, batch) for segment in source.close_all() for batch in builder.add(segment, now_ms)]
            assert found == model.add_all(run, now_ms)
            assert builder.due_ms == model.due_ms
        assert sizes_of(slab, builder.flush()) == model.flush()
        assert builder.due_ms is None


@pytest.mark.parametrize("limits", [BatchLimits(bytes=10), BatchLimits(messages=10)])
def test_empty_messages_count_towards_batch_limits(limits: BatchLimits) -> None:
    """An empty message counts one byte: a flood of them must not wait without limit."""
    with new_slab() as slab:
        source, builder = Input(slab), PendingBatch["Segment"](slab, limits)
        source.receive([datagram(b"t1")] * 12)
        (segment,) = source.close_all()
        assert [sizes_of(slab, batch) for batch in builder.add(segment, 0)] == [[0] * 10]
        assert sizes_of(slab, builder.flush()) == [0, 0]


def test_a_batch_is_due_by_the_age_of_its_oldest_message() -> None:
    with new_slab() as slab:
        source, builder = Input(slab), PendingBatch["Segment"](slab, BatchLimits(time_ms=100))
        for now_ms in (1000, 1050):
            source.now_ms = now_ms - 10
            source.receive([datagram(b"t1", b"v")])
            for segment in source.close_all():
                assert builder.add(segment, now_ms) == []
        assert builder.due_ms == 990 + 100


@pytest.mark.parametrize("has_old_run", [False, True])
def test_an_arrival_time_in_the_future_is_replaced_by_now(*, has_old_run: bool) -> None:
    with new_slab() as slab:
        source, builder = Input(slab), PendingBatch["ClaimedRun"](slab, BatchLimits(time_ms=100))
        source.receive([datagram(b"t1", b"v")])
        [run] = as_claimed(slab, source.close_all())
        old = [(*run[:-1], 900)] if has_old_run else []  # completes a batch
        assert builder.add_whole([*old, (*run[:-1], 5_000)], 1_000) == old
        assert builder.due_ms == 1_000 + 100


@pytest.mark.parametrize(("is_cut", "batches"), [(False, [[300] * 4]), (True, [[300] * 3])])
def test_a_completing_run_is_split_only_when_required(*, is_cut: bool, batches: list[Batch]) -> None:
    with new_slab() as slab:
        source, limits = Input(slab), BatchLimits(bytes=1000)
        cutting, keeping = PendingBatch["Segment"](slab, limits), PendingBatch["ClaimedRun"](slab, limits)
        found: list[Batch] = []
        for _ in range(2):
            source.receive([datagram(b"t1", b"v" * 300)] * 2)
            segments = source.close_all()
            done = [batch for segment in segments for batch in cutting.add(segment, 0)] if is_cut else []
            whole = [] if is_cut else segments_of(keeping.add_whole(as_claimed(slab, segments), 0))
            found += [sizes_of(slab, batch) for batch in [*done, whole] if batch]
        assert found == batches
        assert len(sizes_of(slab, [*cutting.flush(), *segments_of(keeping.flush())])) == 4 - len(batches[0])


@examples(60)
@given(runs=runs, limits=limits, frame_ms=st.integers(0, 60))
def test_a_batch_that_keeps_runs_whole_is_complete_at_the_same_limits(
    runs: list[tuple[int, list[int]]], limits: BatchLimits, frame_ms: int
) -> None:
    """A frame has the runs of `frame_ms`, and has the effect of a frame for each run."""
    with new_slab() as slab:
        source, builder = Input(slab), PendingBatch["ClaimedRun"](slab, limits)
        now_ms, batch, due_ms, start_ms = 0, Batch(), UNLIMITED, 0
        frame: list[tuple[int, Batch]] = []
        for later_ms, run in [*runs, (1000, [])]:
            now_ms += later_ms
            if frame and now_ms > start_ms + frame_ms:
                end_ms = frame[-1][0]
                expected: Batch = []
                for arrival_ms, sizes in frame:
                    batch += sizes
                    due_ms = min(due_ms, UNLIMITED if limits.time_ms is None else arrival_ms + limits.time_ms)
                    many = limits.messages is not None and len(batch) >= limits.messages
                    large = limits.bytes is not None and sum(batch) >= limits.bytes
                    if many or large or end_ms >= due_ms:
                        expected, batch, due_ms = expected + batch, [], UNLIMITED
                completed = builder.add_whole(as_claimed(slab, source.close_all()), end_ms)
                assert sizes_of(slab, segments_of(completed)) == expected
                assert builder.due_ms == (due_ms if due_ms < UNLIMITED else None)
                frame = []
            start_ms = start_ms if frame else now_ms
            source.now_ms = now_ms
            source.receive([datagram(b"t1", b"v" * size) for size in run])
            source.lanes.close_all()
            frame.append((now_ms, run))
