"""Fenced attempts that are larger than their part of the slab, and than the slab: spilled, fed back, or discarded."""

from __future__ import annotations

import errno
import os
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bruce_mp.errors import SlabError
from bruce_mp.input.spill_feed import SpillPump
from bruce_mp.ipc.loop import Loop, Timer
from bruce_mp.kernels import split_stream
from bruce_mp.pipeline.stage_counts import count_books
from bruce_mp.protocol.client.barrier import BarrierStatus, Level, encode_barrier
from bruce_mp.protocol.client.fence import EndReason, decode_ended, encode_begin, encode_end
from bruce_mp.slab import layout as lay
from bruce_mp.slab.file import Geometry
from bruce_mp.slab.layout import RunState
from bruce_mp.slab.private_directory import LINK
from bruce_mp.slab.recovery import sweep
from bruce_mp.slab.rows import ProcessRow
from bruce_mp.slab.spill import SpillDirectory, SpillFile
from bruce_mp.supervisor.slab.slab_setup import recover_inputs
from bruce_mp.telemetry.books import spilled_total
from bruce_mp.telemetry.counters import Counter
from support.as_user import denied_connections
from support.examples import examples
from support.slabs import DISPATCHER_ROW, SMALL, datagram, new_slab
from support.spill_images import spill_images
from support.streams import WORKER_ROW, StreamInput, assert_books, balanced_books
from support.variants import kernels

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from bruce_mp.input.stream_client import StreamClientState
    from bruce_mp.slab.file import Slab

pytestmark = pytest.mark.usefixtures("variant")

GEOMETRY: Final = Geometry(chunks=64, topics=16, partitions=16, landing_slots=8, landing_slot_size=16384)
TOPICS: Final = [(b"t1", 2), (b"t2", 1)]
BEGIN, END = encode_begin("query/1/2/3"), encode_end()
BARRIER: Final = encode_barrier(b"01234567", Level.DELIVERED, 1000)
MUCH: Final = 1 << 30
ACTIONS: Final = ("begin", "end", "send", "send", "leave", "feed", "kill")


@pytest.fixture
def slab() -> Iterator[Slab]:
    with new_slab(GEOMETRY) as found:
        yield found


def worker_of(slab: Slab, max_spill: int = MUCH, max_attempt: int = 4) -> StreamInput:
    return StreamInput(slab, topics=TOPICS, max_attempt=max_attempt, max_spill=max_spill)


def message(number: int, size: int = 0) -> bytes:
    topic = (b"t1", b"t2", b"new")[number % 3]
    return datagram(topic, b"%d:" % number + bytes(size), partition_key=number if number % 2 else None)


def messages(numbers: range, size: int = 900) -> bytes:
    return b"".join(message(number, size) for number in numbers)


def files_of(slab: Slab) -> list[Path]:
    directory = Path(f"{slab.path}.spill")
    return sorted(path for path in directory.iterdir() if path.name != LINK) if directory.exists() else []


class Sink:
    """A router, dispatchers and brokers in one, which delivers the inputs' messages and keeps them in order."""

    def __init__(self, slab: Slab) -> None:
        self._slab = slab
        self._row = ProcessRow(slab, DISPATCHER_ROW)
        self.numbers: list[int] = []

    def deliver(self) -> int:
        """Deliver everything that is handed over; how many messages."""
        from bruce_mp import kernels as chosen  # noqa: PLC0415 - the variant of the test

        found = sweep(self._slab, {RunState.FILLED})
        for each in found:
            values = [one.value for one in chosen.messages(self._slab, each.segment, b"", None)]
            self.numbers += [int(value.split(b":")[0]) for value in values]
            self._row.settle([each.segment], RunState.DELIVERED, 0, {Counter.MsgDelivered: each.segment.records})
        return sum(each.segment.records for each in found)


def drain(worker: StreamInput, sink: Sink) -> None:
    """Feed and deliver until nothing is left."""
    for _ in range(10_000):
        worker.now_ms += 1000
        is_fed = worker.spill_feed.feed(worker.now_ms)
        worker.close_runs()
        if not sink.deliver() and not is_fed and not len(worker.spill_feed):
            return
        worker.pool.reclaim(worker.pool.capacity)
    raise AssertionError("The spill files are not fed.")


def assert_in_order(numbers: list[int]) -> None:
    """Within each topic and partition key the messages are in the order in which they were sent."""
    for topic in range(3):
        for keyed in (False, True):
            mine = [number for number in numbers if number % 3 == topic and number % 2 == keyed]
            by_key = [[n for n in mine if n % 4 == rest] for rest in (1, 3)] if keyed else [mine]
            assert all(some == sorted(some) for some in by_key)


def test_an_attempt_larger_than_the_slab_is_delivered_once_and_in_order(slab: Slab) -> None:
    worker, sink = worker_of(slab), Sink(slab)
    client = worker.connect()
    worker.feed((client, BEGIN))
    for start in range(0, 2000, 50):
        worker.feed((client, messages(range(start, start + 50))))
    books = count_books(slab)
    assert books.balanced
    assert books.held["spill"] > 1900
    assert sink.deliver() == 0
    worker.feed((client, END + BARRIER))
    drain(worker, sink)
    assert sorted(sink.numbers) == list(range(2000))
    assert_in_order(sink.numbers)
    assert_books(slab, 2000)
    assert files_of(slab) == []
    worker.waiting.answer_finished(worker.now_ms)
    assert [(answer.status, answer.delivered) for _, answer in worker.answers] == [(BarrierStatus.DONE, 2000)]


def test_messages_that_the_intake_found_no_room_for_are_spilled(slab: Slab) -> None:
    worker, sink = worker_of(slab), Sink(slab)
    client = worker.connect()
    worker.feed((client, BEGIN))
    assert client.attempt is not None
    assert worker.admission.is_plain(client)
    data = memoryview(messages(range(100)))
    extents = split_stream(data, 0, len(data), len(data)).extents
    worker.row.begin_batch()
    sources = [client.flush_group.number] * len(extents)
    ingested = client.attempt.lanes.ingest(data, extents, worker.row.counted, worker.now_ms, sources=sources)
    assert ingested.no_room
    worker.admission.count_intake_batch(data, [(client, extents)], ingested, worker.now_ms)
    assert not worker.admission.is_plain(client), "later messages must not overtake the spilled ones"
    worker.feed((client, messages(range(100, 200)) + END))
    drain(worker, sink)
    assert sorted(sink.numbers) == list(range(200))
    assert_in_order(sink.numbers)
    assert_books(slab, 200)


def test_messages_after_an_attempt_wait_until_its_spill_file_is_fed_back(slab: Slab) -> None:
    worker, sink = worker_of(slab), Sink(slab)
    client, other = worker.connect(), worker.connect()
    worker.feed((client, BEGIN + messages(range(300))))
    worker.feed((client, END + messages(range(300, 303)) + BEGIN + messages(range(303, 600)) + END))
    assert client.unprocessed
    worker.feed((other, messages(range(1000, 1010))))
    assert count_books(slab).received == 310
    while client.is_paused:
        drain(worker, sink)
        worker.feed((client, b""))
    drain(worker, sink)
    assert sorted(sink.numbers) == [*range(600), *range(1000, 1010)]
    assert_in_order([number for number in sink.numbers if number < 1000])
    assert_books(slab, 610)


def test_a_disconnect_removes_the_clients_spill_file(slab: Slab) -> None:
    worker, sink = worker_of(slab), Sink(slab)
    client = worker.connect()
    worker.feed((client, BEGIN + messages(range(500))))
    assert [path.stat().st_mode & 0o777 for path in files_of(slab)] == [0o600]
    worker.admission.on_disconnect(client)
    drain(worker, sink)
    assert sink.numbers == []
    assert files_of(slab) == []
    assert_books(slab, 500, ABANDONED_ATTEMPT=500)
    worker.outcomes.count_outcomes()
    assert client.flush_group.outstanding_count == 0
    assert sum(event.count for event in worker.reported()) == 500


def test_bad_messages_of_a_spilled_attempt_are_discarded_when_fed_back(slab: Slab) -> None:
    worker, sink = worker_of(slab), Sink(slab)
    client = worker.connect()
    worker.feed((client, BEGIN + messages(range(200)) + b"\0\0\0\4" * 10 + messages(range(200, 220)) + END))
    drain(worker, sink)
    assert sorted(sink.numbers) == list(range(220))
    assert_books(slab, 230, MALFORMED=10)


def test_an_attempt_over_the_spill_limit_is_ended_with_a_reason(slab: Slab) -> None:
    worker = worker_of(slab, max_spill=1 << 20)
    client = worker.connect()
    worker.feed((client, BEGIN))
    for start in range(0, 3000, 50):
        if not client.must_close:
            worker.feed((client, messages(range(start, start + 50))))
    assert client.must_close
    reason, text = decode_ended(client.final_frame)
    assert reason is EndReason.TOO_LARGE
    assert "query/1/2/3" in text
    assert "input.streams.max_spill_size" in text
    books = count_books(slab)
    assert books.balanced
    assert books.discarded == {"ABANDONED_ATTEMPT": books.received}
    assert files_of(slab) == []


def test_the_reserved_bytes_are_those_of_the_files(slab: Slab) -> None:
    """Each file has a header, also the files that a worker removes while another one is open."""
    worker = worker_of(slab)
    worker.feed((worker.connect(), BEGIN + messages(range(100))))
    for _ in range(3):
        client = worker.connect()
        worker.feed((client, BEGIN + messages(range(100))))
        assert worker.spills.reserved_bytes == sum(path.stat().st_size for path in files_of(slab))
        worker.admission.on_disconnect(client)
    (path,) = files_of(slab)
    assert worker.spills.reserved_bytes == path.stat().st_size


def test_an_attempt_alone_over_the_spill_limit_does_not_wait(slab: Slab) -> None:
    worker = worker_of(slab, max_spill=3 << 19)
    client = worker.connect()
    worker.feed((client, BEGIN + messages(range(1000))))
    worker.feed((client, messages(range(600))))
    while not client.must_close:
        assert not client.is_paused
        worker.feed((client, messages(range(1))))
    assert decode_ended(client.final_frame)[0] is EndReason.TOO_LARGE
    assert worker.spills.reserved_bytes == 0


def test_the_files_of_a_worker_without_successor_are_no_longer_reserved(slab: Slab) -> None:
    worker = worker_of(slab)
    worker.feed((worker.connect(), BEGIN + messages(range(100))))
    recover_inputs(slab, (lay.ROW_FIRST_INPUT,), worker.spill_directory)
    assert files_of(slab) == []
    assert worker.spills.reserved_bytes == 0


def test_an_attempt_waits_for_room_that_another_gives_back(slab: Slab) -> None:
    worker, sink = worker_of(slab, max_spill=3 << 20), Sink(slab)
    first, second = worker.connect(), worker.connect()
    worker.feed((first, BEGIN), (second, BEGIN))
    for start in range(0, 1500, 50):
        worker.feed((first, messages(range(start, start + 50))), (second, messages(range(2000 + start, 2050 + start))))
    assert first.is_paused or second.is_paused
    assert worker.row.counters[Counter.StreamInputSpillFull] > 0
    waiting, done = (first, second) if first.is_paused else (second, first)
    worker.feed((done, END))
    drain(worker, sink)
    worker.feed((waiting, END))
    assert not waiting.is_paused
    drain(worker, sink)
    assert sorted(sink.numbers) == [*range(1500), *range(2000, 3500)]
    assert_books(slab, 3000)


def test_the_youngest_of_deadlocked_attempts_is_ended(slab: Slab) -> None:
    worker, sink = worker_of(slab, max_spill=2 << 20), Sink(slab)
    old, young = worker.connect(), worker.connect()
    worker.feed((old, BEGIN))
    worker.now_ms += 10
    worker.feed((young, BEGIN))
    number = 0
    while not (old.is_paused and young.is_paused):
        worker.feed((old, messages(range(number, number + 40))), (young, messages(range(9000, 9040))))
        number += 40
    worker.now_ms += 40_000
    worker.feed((old, b""))
    assert not old.must_close
    worker.feed((young, b""))
    assert decode_ended(young.final_frame)[0] is EndReason.NO_ROOM
    worker.feed((old, END))
    drain(worker, sink)
    assert sorted(sink.numbers) == list(range(number))


def test_a_failed_spill_file_ends_the_attempt_with_a_reason(slab: Slab) -> None:
    Path(f"{slab.path}.spill").write_text("somebody's")
    worker = worker_of(slab)
    client = worker.connect()
    worker.feed((client, BEGIN + messages(range(500))))
    assert client.must_close
    reason, text = decode_ended(client.final_frame)
    assert reason is EndReason.SPILL_FAILED
    assert "input.streams.spill_dir" in text
    books = count_books(slab)
    assert books.balanced
    assert books.discarded == {"ABANDONED_ATTEMPT": books.received}


@contextmanager
def failing_disk(*, may_seal: bool = False) -> Iterator[None]:
    """No header can be written, and no file removed; with `may_seal`, an attempt comes to its commit point."""
    store = SpillFile._store

    def fail(file: SpillFile, at: int, data: bytes) -> None:
        if not (may_seal and at == 64 and data[0] == 0):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        store(file, at, data)

    def fail_to_remove(path: Path, *_: object, **__: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SpillFile, "_store", fail)
        patch.setattr(Path, "unlink", fail_to_remove)
        yield


def test_an_attempt_whose_end_the_disk_refuses_ends_with_a_reason(slab: Slab) -> None:
    worker = worker_of(slab)
    client = worker.connect()
    worker.feed((client, BEGIN + messages(range(500))))
    with failing_disk():
        worker.feed((client, END))
    assert decode_ended(client.final_frame)[0] is EndReason.SPILL_FAILED
    assert_books(slab, 500, ABANDONED_ATTEMPT=500)
    sink = Sink(slab)
    drain(worker_of(slab), sink)
    assert sink.numbers == []
    assert files_of(slab) == []


@pytest.mark.parametrize("fails_at", ["end", "feed", "last feed"])
@pytest.mark.parametrize("deaths", [0, 2])
def test_a_failing_disk_loses_and_doubles_no_message_of_a_complete_attempt(
    slab: Slab, fails_at: str, deaths: int, caplog: pytest.LogCaptureFixture
) -> None:
    worker, sink = worker_of(slab), Sink(slab)
    client = worker.connect()
    worker.feed((client, BEGIN + messages(range(500))))
    if fails_at != "end":
        worker.feed((client, END))
    while fails_at == "last feed" and worker.spills.completed[0].file.remaining_count > 200:
        worker.spill_feed.feed(1)
        worker.close_runs()
        sink.deliver()
        worker.pool.reclaim(worker.pool.capacity)
    number = 500
    with failing_disk(may_seal=True):
        if fails_at == "end":
            worker.feed((client, END))
        for death in range(deaths + 1):
            if death:
                worker = worker_of(slab)
            for _ in range(5):
                worker.now_ms += 1000
                worker.spill_feed.feed(worker.now_ms)
                worker.feed((worker.connect(), message(number)))  # other clients go on
                number += 1
                worker.close_runs()
                sink.deliver()
                worker.pool.reclaim(worker.pool.capacity)
            assert spilled_total(slab) or files_of(slab)
    assert "cannot be read, written or removed: No space left" in caplog.text
    drain(worker, sink)
    assert sorted(sink.numbers) == list(range(number))
    assert_books(slab, number)
    assert files_of(slab) == []


def test_a_file_that_cannot_be_removed_does_not_delay_the_others(
    slab: Slab, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    worker, sink = worker_of(slab), Sink(slab)
    for numbers in (range(150), range(150, 1000)):
        worker.feed((worker.connect(), BEGIN + messages(numbers) + END))
    first, remove = worker.spills.completed[0].file, SpillFile.remove

    def remove_other(file: SpillFile) -> None:
        if file is first:
            raise PermissionError(errno.EACCES, "Permission denied")
        remove(file)

    with monkeypatch.context() as patch:
        patch.setattr(SpillFile, "remove", remove_other)
        for _ in range(100):
            worker.spill_feed.feed(worker.now_ms)  # no time passes
            worker.close_runs()
            sink.deliver()
            worker.pool.reclaim(worker.pool.capacity)
        assert sorted(sink.numbers) == list(range(1000))
        assert files_of(slab) == [first.path]
    assert "cannot be read, written or removed: Permission denied" in caplog.text
    drain(worker, sink)
    assert files_of(slab) == []
    assert_books(slab, 1000)


def test_a_directory_that_others_can_write_to_is_refused(slab: Slab) -> None:
    directory = Path(f"{slab.path}.spill")
    directory.mkdir(0o700)
    directory.chmod(0o770)
    worker = worker_of(slab)
    client = worker.connect()
    worker.feed((client, BEGIN + messages(range(500))))
    assert decode_ended(client.final_frame)[0] is EndReason.SPILL_FAILED


def completed(slab: Slab) -> StreamInput:
    worker = worker_of(slab)
    client = worker.connect()
    worker.feed((client, BEGIN + messages(range(500)) + END))
    return worker


def test_a_missing_file_of_a_complete_attempt_is_an_error_with_counts(
    slab: Slab, caplog: pytest.LogCaptureFixture
) -> None:
    completed(slab)
    gone = spilled_total(slab)
    for path in files_of(slab):
        path.unlink()
    worker, sink = worker_of(slab), Sink(slab)
    drain(worker, sink)
    assert len(sink.numbers) == 500 - gone
    assert_books(slab, 500, SPILL_LOST=gone)
    assert f"{gone} messages of complete fenced attempts are lost" in caplog.text


def test_a_damaged_file_of_a_complete_attempt_is_an_error_with_counts(
    slab: Slab, caplog: pytest.LogCaptureFixture
) -> None:
    worker, sink = completed(slab), Sink(slab)
    gone = spilled_total(slab)
    (path,) = files_of(slab)
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * 100)
    drain(worker, sink)
    assert_books(slab, 500, SPILL_LOST=gone)
    assert "is damaged" in caplog.text
    assert files_of(slab) == []


def test_messages_in_a_directory_without_permission_are_not_lost(slab: Slab) -> None:
    completed(slab)
    spilled_count = spilled_total(slab)
    with denied_connections(Path(f"{slab.path}.spill")):
        for _ in range(2):
            with pytest.raises(
                SlabError, match=r"cannot be read: Permission denied.* write permission for .*\.spill\. Then"
            ):
                worker_of(slab)
        assert (spilled_total(slab), count_books(slab).discarded) == (spilled_count, {})
    sink = Sink(slab)
    drain(worker_of(slab), sink)
    assert sorted(sink.numbers) == list(range(500))
    assert_books(slab, 500)


@pytest.mark.parametrize("are_moved", [True, False])
def test_messages_in_another_directory_are_not_lost(slab: Slab, are_moved: bool) -> None:
    """The operator moves the files to the new directory, or sets the old one again."""
    earlier, other = (SpillDirectory.for_slab(slab, f"{slab.path}.{name}") for name in ("spill", "other"))
    rows = range(WORKER_ROW, WORKER_ROW + 1)
    recover_inputs(slab, rows, earlier)
    completed(slab)
    spilled_count = spilled_total(slab)
    for _ in range(2):
        with pytest.raises(
            SlabError, match=rf"in {earlier.path}, but .* Set input.streams.spill_dir to {slab.path.parent}"
        ):
            recover_inputs(slab, rows, other)
    assert (spilled_total(slab), count_books(slab).discarded) == (spilled_count, {})
    if are_moved:
        earlier.path.rename(other.path)
        recover_inputs(slab, rows, other)
        other.path.rename(earlier.path)
    sink = Sink(slab)
    drain(worker_of(slab), sink)
    assert sorted(sink.numbers) == list(range(500))
    assert_books(slab, 500)
    recover_inputs(slab, rows, other)  # the slab has no messages in files


def test_a_fed_file_in_a_directory_without_permission_is_not_fed_again(
    slab: Slab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kill after the count of the last messages leaves their file, and the file lacks the progress."""
    worker = worker_of(slab, max_attempt=2)
    worker.feed((worker.connect(), BEGIN + messages(range(20), 1500) + END))

    def kill(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(SpillFile, "advance_to", kill)
        with pytest.raises(KeyboardInterrupt):
            worker.spill_feed.feed(worker.now_ms)
    assert spilled_total(slab) == 0
    with denied_connections(Path(f"{slab.path}.spill")), pytest.raises(SlabError, match="Permission denied"):
        worker_of(slab, max_attempt=2)
    sink = Sink(slab)
    drain(worker_of(slab, max_attempt=2), sink)
    assert sorted(sink.numbers) == list(range(20))
    assert_books(slab, 20)


def test_a_directory_without_permission_stops_no_worker_after_the_removal_of_its_files(slab: Slab) -> None:
    worker, sink = completed(slab), Sink(slab)
    worker.feed((worker.connect(), BEGIN + messages(range(500, 900)) + END))
    drain(worker, sink)
    assert sorted(sink.numbers) == list(range(900))
    assert files_of(slab) == []
    with denied_connections(Path(f"{slab.path}.spill")):
        worker_of(slab)


def test_a_directory_without_permission_and_without_messages_stops_no_worker(slab: Slab) -> None:
    directory = Path(f"{slab.path}.spill")
    directory.mkdir(0o700)
    with denied_connections(directory):
        assert worker_of(slab).spill_directory.remove_outdated() == 0
        SpillDirectory.for_slab(slab, directory).remove(slab)


def test_files_of_another_slab_are_removed(slab: Slab) -> None:
    completed(slab)
    gone = spilled_total(slab)
    other = SpillDirectory(Path(f"{slab.path}.spill"), slab_id=123, slab_path=slab.path)
    assert other.files(WORKER_ROW) == {}
    assert other.remove_outdated() == gone
    assert files_of(slab) == []


def outdated_files(slab: Slab) -> SpillDirectory:
    """Leave files of an earlier slab: `1.1.spill` and `2.1.spill`, each with 7 messages of a complete attempt."""
    earlier = SpillDirectory(Path(f"{slab.path}.spill"), slab_id=123, slab_path=slab.path)
    for row in (1, 2):
        file = earlier.create(row, 1, keeps_timestamps=False)
        file.append(b"bytes", 7, arrived_ms=1)
        file.complete()
        file.close()
    return SpillDirectory.for_slab(slab, earlier.path)


@contextmanager
def unreadable_file(name: str) -> Iterator[None]:
    open_file = SpillFile.open

    def deny(path: Path) -> SpillFile:
        if path.name == name:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return open_file(path)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SpillFile, "open", deny)
        yield


def test_an_unreadable_file_keeps_no_other_outdated_file(slab: Slab, caplog: pytest.LogCaptureFixture) -> None:
    directory = outdated_files(slab)
    with unreadable_file("1.1.spill"):
        assert directory.remove_outdated() == 7
    assert [path.name for path in files_of(slab)] == ["1.1.spill"]
    assert "1.1.spill cannot be read or removed: Permission denied" in caplog.text
    directory.create(2, 1, keeps_timestamps=False).close()
    with unreadable_file("1.1.spill"):
        assert set(directory.files(2, are_needed=False)) == {1}
        directory.remove(slab)
    assert [path.name for path in files_of(slab)] == ["1.1.spill"]


def test_a_new_file_replaces_one_of_another_slab(slab: Slab, caplog: pytest.LogCaptureFixture) -> None:
    """The file was unreadable at the start."""
    directory = outdated_files(slab)
    directory.create(1, 1, keeps_timestamps=False).close()
    assert "7 messages of a complete fenced attempt are lost" in caplog.text
    assert list(directory.files(1)) == [1]
    with pytest.raises(FileExistsError):
        directory.create(1, 1, keeps_timestamps=False)


@pytest.mark.exhaustive
def test_a_death_at_any_step_keeps_a_spilled_attempt_atomic() -> None:
    """At each store to the slab and each act on a file of sending, completing, feeding and leaving."""
    with kernels("pure"), new_slab(SMALL) as slab:
        worker = worker_of(slab, max_attempt=2)
        done, gone = worker.connect(), worker.connect()

        def work() -> None:
            worker.feed((done, BEGIN + messages(range(16), 1500)))
            worker.feed((gone, BEGIN + messages(range(100, 103), 4000)))
            worker.feed((done, messages(range(16, 19), 1500) + END))
            worker.spill_feed.feed(5)
            worker.lanes.drain_closed()
            worker.admission.on_disconnect(gone)

        seen = set()
        for _ in spill_images(slab, work):
            sink = Sink(slab)
            drain(worker_of(slab, max_attempt=2), sink)
            assert sorted(sink.numbers) in ([], list(range(19)))
            assert_in_order(sink.numbers)
            books = balanced_books(slab)
            assert books.received == len(sink.numbers) + books.discarded.get("ABANDONED_ATTEMPT", 0)
            assert books.discarded.keys() <= {"ABANDONED_ATTEMPT"}
            assert files_of(slab) == []
            seen.add(len(sink.numbers))
        assert seen == {0, 19}


def test_an_attempt_with_the_number_of_one_that_was_fed_is_delivered_after_another_death(slab: Slab) -> None:
    """A worker numbers its attempts from 1 again after a death, and the row still knew the progress of the old one."""
    model = Model(slab)
    for count in (5, 6):
        model.begin(0, 0)
        model.send(0, count)
        model.end(0, 0)
        if count == 5:
            model.feed(0, 0)
        model.kill(0, 0)
    drain(model.worker, model.sink)
    assert sorted(model.sink.numbers) == model.due == list(range(11))
    assert_books(slab, 11)


class Model:
    """Clients of a worker, and which of their messages are due in Kafka: see the test below."""

    def __init__(self, slab: Slab) -> None:
        self.slab, self.sink = slab, Sink(slab)
        self.fenced: dict[int, list[int]] = {}
        self.due: list[int] = []
        self.number = 0
        self.kill(0, 0)

    def kill(self, _who: int, _count: int) -> None:
        self.worker, self.fenced = worker_of(self.slab), {}
        self.clients: list[StreamClientState] = [self.worker.connect() for _ in range(3)]

    def send(self, who: int, count: int) -> None:
        sent = range(self.number, self.number + count)
        self.number += count
        self.worker.feed((self.clients[who], messages(sent, 700)))
        self.fenced.get(who, self.due).extend(sent)

    def begin(self, who: int, _count: int) -> None:
        if who not in self.fenced:
            self.worker.feed((self.clients[who], BEGIN))
            self.fenced[who] = []

    def end(self, who: int, _count: int) -> None:
        if who in self.fenced:
            self.worker.feed((self.clients[who], END))
            self.due += self.fenced.pop(who)

    def leave(self, who: int, _count: int) -> None:
        self.worker.admission.on_disconnect(self.clients[who])
        self.clients[who] = self.worker.connect()
        self.fenced.pop(who, None)

    def feed(self, _who: int, _count: int) -> None:
        self.worker.spill_feed.feed(self.worker.now_ms)
        self.worker.lanes.drain_closed()

    def settle(self) -> None:
        """Wait until all that was sent is taken in."""
        while any(client.is_paused for client in self.clients):
            drain(self.worker, self.sink)
            self.worker.feed(*((client, b"") for client in self.clients if client.is_paused))


@pytest.mark.exhaustive
@examples(40)
@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from(["begin", "end", "send", "send", "leave", "feed", "kill"]),
            st.integers(0, 2),
            st.integers(1, 60),
        ),
        max_size=40,
    )
)
def test_any_order_of_frames_feeds_and_deaths_keeps_the_books(steps: list[tuple[str, int, int]]) -> None:
    """The daemon delivers the messages between a begin and its end, or outside of both."""
    with new_slab(GEOMETRY) as slab:
        model = Model(slab)
        for what, who, count in steps:
            getattr(model, what)(who, count)
            model.settle()
            balanced_books(slab)
        for who in range(3):
            model.leave(who, 0)
        drain(model.worker, model.sink)
        assert sorted(model.sink.numbers) == sorted(model.due)
        assert files_of(slab) == []


class FakeLoop(Loop):
    """A loop that records the delay of each timer, and runs none."""

    def __init__(self) -> None:
        super().__init__()
        self.delays_s: list[float] = []
        self.callbacks: list[Callable[[], None]] = []

    def call_later(self, delay: float, callback: Callable[[], None]) -> Timer:
        self.delays_s.append(delay)
        self.callbacks.append(callback)
        return Timer(callback)


def test_a_waiting_feed_is_retried_ever_more_rarely(slab: Slab) -> None:
    worker, loop = worker_of(slab, max_attempt=1), FakeLoop()
    client = worker.connect()
    worker.feed((client, BEGIN + messages(range(2000)) + END))
    pump = SpillPump(loop, worker.spill_feed, worker.close_runs)  # nothing delivers, so the slab fills up
    pump.start()
    while loop.callbacks and len(loop.delays_s) < 200:
        loop.callbacks.pop()()
    waits_s = [each for each in loop.delays_s if each]
    assert len(worker.spill_feed) == 1
    assert waits_s[:5] == [0.003, 0.006, 0.012, 0.024, 0.048]
    assert set(waits_s[5:]) == {0.05}
    Sink(slab).deliver()
    worker.pool.reclaim(worker.pool.capacity)
    loop.callbacks.pop()()
    assert loop.delays_s[-1] in {0, 0.003}, "after a success the interval begins anew"
