"""Unique attempts: the daemon completes one attempt of a name, and answers inquiries, also after a crash."""

from __future__ import annotations

import errno
import os
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from bruce_mp.errors import DiscardReason
from bruce_mp.input.unique_attempts import SettlementTimer
from bruce_mp.ipc.loop import Loop
from bruce_mp.pipeline.stage_counts import count_books
from bruce_mp.protocol.client.fence import EndReason, decode_ended, encode_begin, encode_end
from bruce_mp.protocol.client.inquiry import AttemptOutcome, InquiryAnswer, encode_inquiry
from bruce_mp.slab import attempt_registry, fences
from bruce_mp.slab import layout as lay
from bruce_mp.slab.attempt_registry import AttemptRegistry
from bruce_mp.slab.file import Geometry
from bruce_mp.slab.layout import RunState
from bruce_mp.slab.recovery import sweep
from bruce_mp.slab.rows import ProcessRow
from bruce_mp.slab.spill import SpillDirectory
from bruce_mp.supervisor.slab.slab_setup import recover_inputs
from bruce_mp.telemetry.counters import Counter, discarded
from support.slabs import DISPATCHER_ROW, SMALL, contents, datagram, new_slab
from support.spill_images import spill_images
from support.streams import StreamInput
from support.variants import kernels

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    from bruce_mp.input.stream_client import StreamClientState
    from bruce_mp.input.unique_attempts import NamedAttempt
    from bruce_mp.slab.file import Slab

GEOMETRY: Final = Geometry(chunks=64, topics=16, partitions=16, landing_slots=8, landing_slot_size=16384)
BEGIN, END = encode_begin("query/1/2", is_unique=True), encode_end()
TOKEN: Final = b"01234567"
INQUIRY: Final = encode_inquiry(TOKEN, b"query/1/2")
MUCH: Final = 1 << 30


@pytest.fixture
def slab() -> Iterator[Slab]:
    with new_slab(GEOMETRY) as found:
        yield found


def worker_of(slab: Slab, row: int = lay.ROW_FIRST_INPUT + 1) -> StreamInput:
    return StreamInput(slab, topics=[(b"t1", 2)], max_attempt=4, max_spill=MUCH, row=row)


def messages(first: int, count: int, size: int = 0) -> bytes:
    return b"".join(datagram(b"t1", b"%d:" % number + bytes(size)) for number in range(first, first + count))


def settle(slab: Slab, state: RunState = RunState.DELIVERED, reason: int = 0) -> list[int]:
    """Settle all messages that are handed over; return their numbers."""
    found = [each.value for each in contents(slab) if each.state is RunState.FILLED]
    counter = Counter.MsgDelivered if state is RunState.DELIVERED else discarded(DiscardReason(reason))
    for each in sweep(slab, {RunState.FILLED}):
        ProcessRow(slab, DISPATCHER_ROW).settle([each.segment], state, reason, {counter: each.segment.records})
    return sorted(int(value.split(b":")[0]) for value in found)


def ask(worker: StreamInput, client: StreamClientState | None = None, frame: bytes = INQUIRY) -> InquiryAnswer:
    worker.feed((client or worker.connect(), frame))
    return worker.inquiries[-1]


def test_an_inquiry_returns_the_limits_and_the_state_of_an_attempt(slab: Slab) -> None:
    worker = worker_of(slab)
    limits = ask(worker, frame=encode_inquiry(TOKEN))
    assert (limits.token, limits.outcome) == (TOKEN, AttemptOutcome.NONE)
    assert (limits.largest_message, limits.largest_payload) == (2_000_000, 900_000)
    assert {"headers", "unique"} <= limits.features
    client = worker.connect()
    worker.feed((client, messages(100, 2) + BEGIN + messages(0, 3)))
    assert ask(worker).outcome is AttemptOutcome.NONE
    worker.feed((client, END + messages(200, 2)))
    worker.close_runs()
    pending = ask(worker)
    assert (pending.outcome, pending.received) == (AttemptOutcome.PENDING, 3)
    assert settle(slab) == [0, 1, 2, 100, 101, 200, 201]
    assert worker.unique.settle_finished()
    assert not worker.unique.must_poll
    settled = ask(worker)
    assert (settled.outcome, settled.received, settled.delivered) == (AttemptOutcome.SETTLED, 3, 3)


def test_the_outcome_names_the_discards(slab: Slab) -> None:
    worker = worker_of(slab)
    worker.feed((worker.connect(), BEGIN + messages(0, 3) + END))
    settle(slab, RunState.DISCARDED, DiscardReason.KAFKA_ERROR_ACK)
    worker.unique.settle_finished()
    settled = ask(worker)
    assert (settled.delivered, settled.reasons) == (0, {DiscardReason.KAFKA_ERROR_ACK: 3})


def test_an_attempt_without_messages_leaves_its_name_to_others(slab: Slab) -> None:
    worker = worker_of(slab)
    first, second = worker.connect(), worker.connect()
    worker.feed((first, BEGIN + END))
    assert ask(worker).outcome is AttemptOutcome.NONE
    worker.feed((second, BEGIN + messages(0, 1) + END))
    assert not second.must_close
    assert settle(slab) == [0]


def test_a_second_attempt_of_a_name_is_discarded_and_told_why(slab: Slab) -> None:
    one, two = worker_of(slab), worker_of(slab, lay.ROW_FIRST_INPUT + 2)
    first, second = one.connect(), two.connect()
    one.feed((first, BEGIN + messages(0, 3)))
    two.feed((second, BEGIN + messages(0, 3)))
    one.feed((first, END))
    two.feed((second, END))
    assert settle(slab) == [0, 1, 2]
    assert second.must_close
    reason, text = decode_ended(second.final_frame)
    assert reason is EndReason.NAME_IN_USE
    assert "an earlier attempt of this name with 3 messages is complete" in text
    books = count_books(slab)
    assert books.balanced
    assert books.discarded == {"ABANDONED_ATTEMPT": 3}


def test_a_name_is_free_for_other_users_and_after_an_abandoned_attempt(slab: Slab) -> None:
    worker = worker_of(slab)
    gone = worker.connect()
    worker.feed((gone, BEGIN + messages(0, 3)))
    worker.admission.on_disconnect(gone)
    for user in (1, 2):
        worker.feed((worker.connect(user=user), BEGIN + messages(10 * user, 1) + END))
    assert settle(slab) == [10, 20]
    assert ask(worker).outcome is AttemptOutcome.NONE
    assert ask(worker, worker.connect(user=2)).outcome is AttemptOutcome.PENDING


def test_an_unwritable_registry_ends_the_attempt_and_keeps_the_limits(slab: Slab) -> None:
    worker = worker_of(slab)
    place = Path(f"{slab.path}.spill")
    place.write_text("not a directory")
    try:
        client = worker.connect()
        worker.feed((client, BEGIN + messages(0, 3) + END))
        assert decode_ended(client.final_frame)[0] is EndReason.SPILL_FAILED
        answer = ask(worker)
        assert (answer.outcome, answer.largest_message) == (AttemptOutcome.UNAVAILABLE, 2_000_000)
    finally:
        place.unlink()
    assert settle(slab) == []


def test_a_successor_knows_the_attempts_of_a_dead_worker(slab: Slab) -> None:
    worker = worker_of(slab)
    worker.feed((worker.connect(), BEGIN + messages(0, 3) + END))
    successor = worker_of(slab)
    assert ask(successor).outcome is AttemptOutcome.UNCOUNTED
    successor.feed((successor.connect(), BEGIN + messages(0, 3) + END))
    assert settle(slab) == [0, 1, 2]


@contextmanager
def full_disk() -> Iterator[None]:
    """Refuse the entries of all registries."""

    def append(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(AttemptRegistry, "_append", append)
        yield


@contextmanager
def full_disk_after_prepare(worker: StreamInput) -> Iterator[None]:
    """Let the worker store that an attempt is prepared, and refuse its later entries."""
    with pytest.MonkeyPatch.context() as patch, ExitStack() as disk:
        prepare = worker.unique.prepare

        def prepare_then_fill(client: StreamClientState, attempt: NamedAttempt) -> tuple[EndReason, str] | None:
            refusal = prepare(client, attempt)
            disk.enter_context(full_disk())
            return refusal

        patch.setattr(worker.unique, "prepare", prepare_then_fill)
        yield


PLAIN: Final = encode_begin("plain") + messages(10, 1) + END
OTHER: Final = encode_begin("other", is_unique=True) + messages(20, 1) + END


def test_a_complete_attempt_is_stored_before_another_one_completes(slab: Slab) -> None:
    """Recovery finds only the number of the worker's last attempt in its row."""
    worker = worker_of(slab)
    other = worker.connect()
    with full_disk_after_prepare(worker):
        worker.feed((worker.connect(), BEGIN + messages(0, 3) + END), (other, PLAIN))
    reason, text = decode_ended(other.final_frame)
    assert reason is EndReason.SPILL_FAILED
    assert "the registry of unique attempts cannot be written: [Errno 28] No space left on device" in text
    worker.feed((worker.connect(), PLAIN))
    successor = worker_of(slab)
    assert ask(successor).outcome is AttemptOutcome.UNCOUNTED
    successor.feed((successor.connect(), BEGIN + messages(0, 3) + END))
    assert settle(slab) == [0, 1, 2, 10]


def test_a_poll_stores_a_complete_attempt_after_a_full_disk(slab: Slab) -> None:
    worker = worker_of(slab)
    with full_disk_after_prepare(worker):
        worker.feed((worker.connect(), BEGIN + messages(0, 3) + END))
        settle(slab)
        assert not worker.unique.settle_finished()
    assert worker.unique.settle_finished()
    assert not worker.unique.must_poll
    worker.feed((worker.connect(), PLAIN))
    assert ask(worker).outcome is AttemptOutcome.SETTLED


class KilledError(Exception):
    """A worker dies."""


@pytest.mark.parametrize("death", ["prepared", "complete", "stored"])
def test_a_full_disk_at_a_recovery_confuses_no_attempts(
    slab: Slab, monkeypatch: pytest.MonkeyPatch, death: str
) -> None:
    """The attempts of the next worker have the numbers of the dead worker's attempts."""
    worker = worker_of(slab)
    with monkeypatch.context() as patch:
        if death == "prepared":
            patch.setattr(fences, "complete_attempt", kill)
        elif death == "complete":
            patch.setattr(worker.unique, "on_completed", kill)
        with suppress(KilledError):
            worker.feed((worker.connect(), BEGIN + messages(0, 3) + END))
    with full_disk():
        worker = worker_of(slab)
        refused = worker.connect()
        worker.feed((refused, PLAIN))
        assert decode_ended(refused.final_frame)[0] is EndReason.SPILL_FAILED
        assert [worker.unique.settle_finished(), worker.unique.must_poll] == [False, True]
    worker.unique.settle_finished()
    assert not worker.unique.must_poll
    expected = AttemptOutcome.NONE if death == "prepared" else AttemptOutcome.UNCOUNTED
    assert ask(worker).outcome is expected
    worker.feed((worker.connect(), PLAIN), (worker.connect(), OTHER))
    assert settle(slab) == ([10, 20] if death == "prepared" else [0, 1, 2, 10, 20])
    worker.unique.settle_finished()
    worker = worker_of(slab)
    assert ask(worker).outcome is expected
    assert ask(worker, frame=encode_inquiry(TOKEN, b"other")).outcome is AttemptOutcome.SETTLED


@pytest.mark.parametrize("begin", [encode_begin("plain"), BEGIN])
def test_a_worker_resolves_the_attempts_of_its_predecessor_before_it_completes_one(
    slab: Slab, monkeypatch: pytest.MonkeyPatch, begin: bytes
) -> None:
    worker = worker_of(slab)
    worker.feed((worker.connect(), OTHER))
    with full_disk():
        worker = worker_of(slab)
    monkeypatch.setattr(fences, "complete_attempt", kill)
    with pytest.raises(KilledError):
        worker.feed((worker.connect(), begin + messages(0, 3) + END))
    worker = worker_of(slab)
    assert ask(worker).outcome is AttemptOutcome.NONE
    assert ask(worker, frame=encode_inquiry(TOKEN, b"other")).outcome is AttemptOutcome.UNCOUNTED


@contextmanager
def read_only_disk() -> Iterator[None]:
    """Refuse to open the registry's files for writing."""
    open_file = os.open

    def refuse(path: str | Path, flags: int, mode: int = 0o777) -> int:
        if Path(path).name.startswith("attempts.") and flags & (os.O_RDWR | os.O_WRONLY):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        return open_file(path, flags, mode)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "open", refuse)
        yield


@contextmanager
def full_disk_a_day_later() -> Iterator[None]:
    """Let all registries be old, and refuse the entries of new ones."""
    with pytest.MonkeyPatch.context() as patch, full_disk():
        patch.setattr(attempt_registry, "MAX_FILE_AGE_MS", 0)
        yield


@pytest.mark.parametrize("failing_disk", [read_only_disk, full_disk_a_day_later])
@pytest.mark.parametrize("is_successor", [False, True])
def test_a_plain_attempt_needs_no_registry_that_lacks_nothing(
    slab: Slab, failing_disk: Callable[[], AbstractContextManager[None]], *, is_successor: bool
) -> None:
    worker = worker_of(slab)
    worker.feed((worker.connect(), OTHER))
    assert settle(slab) == [20]
    worker.unique.settle_finished()
    worker = worker_of(slab)
    with failing_disk():
        worker = worker_of(slab) if is_successor else worker
        client = worker.connect()
        worker.feed((client, PLAIN))
        assert not client.must_close
        assert not worker.unique.must_poll
    assert settle(slab) == [10]


@pytest.mark.parametrize("failing_disk", [read_only_disk, full_disk_a_day_later])
def test_an_attempt_waits_for_a_registry_that_lacks_an_outcome(
    slab: Slab, failing_disk: Callable[[], AbstractContextManager[None]]
) -> None:
    worker = worker_of(slab)
    worker.feed((worker.connect(), OTHER))
    with failing_disk():
        worker = worker_of(slab)
        refused = worker.connect()
        worker.feed((refused, PLAIN))
        assert decode_ended(refused.final_frame)[0] is EndReason.SPILL_FAILED
    worker.feed((worker.connect(), PLAIN))
    assert settle(slab) == [10, 20]


def test_a_later_start_resolves_the_attempts_of_a_worker_without_successor(
    slab: Slab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A smaller `input.streams.workers` is in force, and the disk is full at the first start after the kill."""
    first, last = lay.STREAM_ROWS[:2]
    worker = worker_of(slab, last)
    with monkeypatch.context() as patch:
        patch.setattr(fences, "complete_attempt", kill)
        with pytest.raises(KilledError):
            worker.feed((worker.connect(), BEGIN + messages(0, 3) + END))
    with full_disk():
        recover_inputs(slab, (first,), SpillDirectory.for_slab(slab, worker.spill_directory.path))
    assert ask(worker_of(slab, first)).outcome is AttemptOutcome.PENDING
    with full_disk_a_day_later():
        recover_inputs(slab, (first,), SpillDirectory.for_slab(slab, worker.spill_directory.path))
    recover_inputs(slab, (first,), SpillDirectory.for_slab(slab, worker.spill_directory.path))
    worker = worker_of(slab, first)
    assert ask(worker).outcome is AttemptOutcome.NONE
    worker.feed((worker.connect(), BEGIN + messages(0, 3) + END))
    assert settle(slab) == [0, 1, 2]


def test_the_timer_polls_from_the_start_until_the_disk_has_room(slab: Slab, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = worker_of(slab)
    worker.feed((worker.connect(), BEGIN + messages(0, 3) + END))
    loop, polls = Loop(), deque[Callable[[], None]]()
    monkeypatch.setattr(loop, "call_later", lambda _, poll: polls.append(poll))
    with full_disk():
        worker = worker_of(slab)
        SettlementTimer(loop, worker.unique).start()
        for _ in range(3):
            polls.popleft()()
        assert ask(worker).outcome is AttemptOutcome.PENDING
    polls.popleft()()
    assert not polls
    assert ask(worker).outcome is AttemptOutcome.UNCOUNTED


def kill(*_: object) -> None:
    raise KilledError


@pytest.mark.exhaustive
@pytest.mark.parametrize("size", [0, 600])
def test_a_repetition_after_a_death_at_any_store_doubles_and_loses_nothing(size: int) -> None:
    """The client repeats its attempt after the crash if the daemon does not know it; a large one has a spill file."""
    with kernels("pure"), new_slab(SMALL) as slab:
        worker = StreamInput(slab, topics=[(b"t1", 2)], max_attempt=2, max_spill=MUCH)
        client = worker.connect()
        worker.feed((worker.connect(), INQUIRY))

        def work() -> None:
            worker.feed((client, BEGIN + messages(0, 5, size) + END))

        seen = set()
        for _ in spill_images(slab, work, [range(slab.geometry.file_size)]):
            successor = StreamInput(slab, topics=[(b"t1", 2)], max_attempt=2, max_spill=MUCH)
            outcome = ask(successor).outcome
            seen.add(outcome)
            if outcome is AttemptOutcome.NONE:
                successor.feed((successor.connect(), BEGIN + messages(0, 5, size) + END))
            delivered = []
            for _ in range(10):
                successor.now_ms += 1000
                successor.spill_feed.feed(successor.now_ms)
                successor.close_runs()
                delivered += settle(slab)
            assert sorted(delivered) == list(range(5))
            assert count_books(slab).balanced
        assert seen == {AttemptOutcome.NONE, AttemptOutcome.UNCOUNTED}
