from __future__ import annotations

import errno
import gc
import logging
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from bruce_mp.errors import SlabError, StartError
from bruce_mp.kernels import ChunkPool
from bruce_mp.pipeline.stage_counts import count_books
from bruce_mp.slab import layout as lay
from bruce_mp.slab.attempt_registry import AttemptState, RememberedAttempt
from bruce_mp.slab.chunks import used_chunk_headers
from bruce_mp.slab.file import Geometry, Slab, create_slab
from bruce_mp.slab.file import lock_exclusive as take_lock
from bruce_mp.slab.handover_tickets import HandoverTickets
from bruce_mp.slab.layout import RunState
from bruce_mp.slab.rows import ProcessRow
from bruce_mp.slab.runs import runs_of
from bruce_mp.slab.spill import SpillDirectory
from bruce_mp.supervisor.slab import lock_retry
from bruce_mp.supervisor.slab.backlog import count_held_by_topic
from bruce_mp.supervisor.slab.journal_setup import JournalSetup
from bruce_mp.supervisor.slab.slab_setup import acquire_slab, recover_after_upgrade, recover_inputs, warn_of_other_size
from bruce_mp.telemetry.books import counter_total
from bruce_mp.telemetry.counters import Counter
from bruce_mp.telemetry.logs import NOTICE
from support.filled_slab import FilledSlab
from support.slabs import datagram, new_slab
from support.streams import WORKER_ROW, StreamInput

if TYPE_CHECKING:
    from collections.abc import Iterator

SIZE = 1 << 20
DATAGRAM = 1024


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(lock_retry, "TIMEOUT_S", 0.0)
    return tmp_path / "slab"


def acquire(path: Path, size: int = SIZE, largest_datagram: int = DATAGRAM) -> tuple[Slab, int]:
    """Acquire the slab as a daemon without a journal does."""
    journal = JournalSetup(path.with_name("journal"), is_kept=False)
    return acquire_slab(path, size, largest_datagram, journal, path.with_name("spill"))


def take(path: Path) -> Slab:
    """Acquire the slab and release it at once, as a killed daemon does."""
    slab, lock = acquire(path)
    os.close(lock)
    return slab


def others(path: Path) -> Iterator[str]:
    return (file.name for file in path.parent.iterdir() if file != path)


def test_a_new_slab_has_the_configured_size_and_is_locked(path: Path) -> None:
    slab, lock = acquire(path)
    assert slab.geometry == Geometry.for_size(SIZE, DATAGRAM)
    with pytest.raises(SlabError, match="belongs to a daemon that is running"):
        acquire(path)
    os.close(lock)


def test_only_a_held_lock_is_waited_for(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tries: list[Path] = []

    def refuse(path: Path) -> int:
        tries.append(path)
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(lock_retry, "TIMEOUT_S", 0.2)
    monkeypatch.setattr("bruce_mp.supervisor.slab.slab_setup.lock_exclusive", refuse)
    with pytest.raises(StartError, match="cannot be opened: Permission denied"):
        acquire(path)
    assert tries == [path]


def test_a_slab_with_messages_is_adopted_at_any_size(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    filled = FilledSlab(path, known=(b"clicks",))
    filled.receive(b"clicks", 3)
    filled.receive(b"unknown", 2)
    filled.close()
    slab = take(path)
    assert count_held_by_topic(slab) == {"clicks": 3, "unknown": 2}
    assert slab.geometry != Geometry.for_size(SIZE, DATAGRAM)
    assert "keeps its old size until it is empty" in caplog.text
    assert not list(others(path))


def test_the_limits_of_an_older_release_are_no_change_of_the_size(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The operator has changed no setting, and reads a notice at most."""
    caplog.set_level(NOTICE)
    wanted = Geometry.for_size(SIZE, DATAGRAM)
    create_slab(path, replace(wanted, topics=4096, partitions=32768, rows=96), 0)
    slab = Slab(path)
    warn_of_other_size(slab, wanted)
    [notice] = caplog.records
    assert notice.levelno == NOTICE
    assert "has the limits of an older release for topics, partitions and brokers" in notice.getMessage()
    warn_of_other_size(slab, replace(wanted, chunks=wanted.chunks + 1))
    assert [record.levelno for record in caplog.records] == [NOTICE, logging.WARNING]
    slab.close()


def test_an_empty_slab_of_the_configured_size_keeps_its_counters(path: Path) -> None:
    ProcessRow(take(path), lay.ROW_ROUTER).add(Counter.GetMetadataSuccess)
    assert ProcessRow(take(path), lay.ROW_ROUTER).counters[Counter.GetMetadataSuccess] == 1


def test_an_empty_slab_of_another_size_is_replaced(path: Path) -> None:
    create_slab(path, Geometry(chunks=16), 0)
    assert take(path).geometry == Geometry.for_size(SIZE, DATAGRAM)
    assert not list(others(path))


def test_the_attempts_of_a_replaced_slab_are_not_lost(path: Path) -> None:
    spills = path.with_name("spill")
    create_slab(path, Geometry.for_size(8 << 20, 2000), now_ms=1)
    attempt = RememberedAttempt("name", (1, WORKER_ROW, 1), AttemptState.PREPARED, 3)
    old = SpillDirectory(spills, 1, path).registry
    old.prepare(attempt)
    old.store(attempt.id, AttemptState.COMPLETED)
    slab, lock = acquire(path, 16 << 20, 2000)
    new = SpillDirectory.for_slab(slab, spills).registry
    found = new.find("name")
    os.close(lock)
    slab.close()
    assert found is not None
    assert (found.state, new.is_lost(found)) == (AttemptState.UNCOUNTED, False)


def test_landed_datagrams_count_as_held(path: Path) -> None:
    filled = FilledSlab(path)
    geometry = filled.slab.geometry
    filled.slab.words[(geometry.landing_at + lay.LANDING_HEADERS + lay.MMSGHDR_LENGTH) >> 2] = 100
    filled.close()
    assert count_held_by_topic(take(path)) == {"(not yet examined)": 1}


def test_an_unfinished_transaction_is_completed(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    filled = FilledSlab(path, known=(b"clicks",))
    segments = filled.receive(b"clicks", 3)
    row = ProcessRow(filled.slab, lay.ROW_FIRST_DISPATCHER)
    row.begin(4711, 0)
    row._apply_redo = lambda: None  # type: ignore[method-assign]  # it dies when the record is valid
    row.settle(segments, RunState.DELIVERED, 0, {Counter.MsgDelivered: 3})
    row.counters.release()
    filled.close()
    slab = take(path)
    assert count_held_by_topic(slab) == {}
    assert ProcessRow(slab, lay.ROW_FIRST_DISPATCHER).pid == 0


def damage_magic(path: Path) -> None:
    with path.open("r+b") as file:
        file.write(b"XXXX")


def damage_size(path: Path) -> None:
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - 1)


def damage_run(path: Path) -> None:
    slab = Slab(path)
    offset, _ = next(runs_of(slab, 0))
    slab.words[(slab.chunk_at(0) + offset + lay.RUN_MAGIC_AT) >> 2] = 0
    slab.close()


def damage_state(path: Path) -> None:
    slab = Slab(path)
    offset, _ = next(runs_of(slab, 0))
    slab.words[(slab.chunk_at(0) + offset) >> 2] = 99
    slab.close()


def damage_redo(path: Path) -> None:
    slab = Slab(path)
    at = slab.geometry.rows_at + lay.ROW_REDO
    slab.words[at >> 2] = 1
    slab.words[(at >> 2) + 1] = 99
    slab.words[(at >> 2) + 4] = 1
    slab.close()


@pytest.mark.parametrize("damage", [damage_size, damage_run, damage_state, damage_redo])
def test_a_damaged_slab_keeps_its_bytes_under_another_name(
    path: Path, caplog: pytest.LogCaptureFixture, damage: object
) -> None:
    filled = FilledSlab(path, known=(b"clicks",))
    filled.receive(b"clicks", 3)
    filled.close()
    assert callable(damage)
    damage(path)
    before = path.read_bytes()
    assert count_held_by_topic(take(path)) == {}
    (aside,) = others(path)
    assert aside.startswith("slab.damaged-")
    assert len((path.parent / aside).read_bytes()) == len(before)
    assert aside in caplog.text


def test_a_file_that_is_not_a_slab_is_not_touched(path: Path) -> None:
    path.write_text("[kafka]\n")
    with pytest.raises(StartError, match="is not a slab; the daemon has not changed it"):
        take(path)
    assert path.read_text() == "[kafka]\n"
    assert not list(others(path))


def test_a_slab_of_another_layout_is_kept_under_its_version(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    FilledSlab(path).close()
    version = lay.LAYOUT_VERSION + 1
    with path.open("r+b") as file:
        file.seek(len(lay.SUPER_MAGIC))
        file.write(version.to_bytes(4, "little"))
    caplog.set_level(logging.ERROR)
    take(path)
    (aside,) = others(path)
    assert aside.startswith(f"slab.version-{version}-")
    assert aside in caplog.text
    assert "a new slab is created; messages in the old one are not delivered." in caplog.text


def test_an_unreadable_slab_of_a_running_daemon_is_not_touched(path: Path) -> None:
    FilledSlab(path).close()
    lock = take_lock(path)
    damage_magic(path)
    with pytest.raises(SlabError, match="belongs to a daemon that is running"):
        take(path)
    assert not list(others(path))
    os.close(lock)


def test_a_lock_on_a_removed_file_is_not_accepted(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    FilledSlab(path).close()

    def lock_after_removal(place: Path) -> int:
        monkeypatch.undo()
        descriptor = take_lock(place)
        place.unlink()
        return descriptor

    monkeypatch.setattr("bruce_mp.supervisor.slab.slab_setup.lock_exclusive", lock_after_removal)
    slab = take(path)
    assert slab.geometry == Geometry.for_size(SIZE, DATAGRAM)
    assert path.exists()


def test_a_directory_in_place_of_the_slab_is_not_touched(path: Path) -> None:
    path.mkdir()
    with pytest.raises(StartError, match="is not a file"):
        take(path)


def test_a_symbolic_link_in_place_of_the_slab_is_not_followed(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = path.with_name("target")
    FilledSlab(target).close()
    path.symlink_to(target)
    before = target.read_bytes()
    with pytest.raises(StartError, match="is not a file"):
        take(path)
    monkeypatch.setattr("bruce_mp.supervisor.slab.slab_setup._check_path", lambda _: None)  # the link comes later
    with pytest.raises(StartError, match="cannot be opened: Too many levels of symbolic links"):
        take(path)
    assert target.read_bytes() == before


@pytest.mark.parametrize("mode", [0o620, 0o602])
def test_a_slab_is_refused_when_others_can_write_to_it(path: Path, mode: int) -> None:
    FilledSlab(path).close()
    path.chmod(mode)
    with pytest.raises(
        StartError, match=rf"has mode {mode:04o}: others can change its messages. Forbid that \(chmod 0600"
    ):
        take(path)


def test_a_slab_of_another_user_is_refused_when_it_appears_after_the_first_check(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    FilledSlab(path).close()
    monkeypatch.setattr("bruce_mp.supervisor.slab.slab_setup._check_path", lambda _: None)
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    with pytest.raises(StartError, match=r"belongs to user \d+, and the daemon runs as user 4711"):
        take(path)


def test_a_slab_of_another_user_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    FilledSlab(path).close()
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    with pytest.raises(StartError, match=r"belongs to user \d+, and the daemon runs as user 4711"):
        take(path)


def test_a_missing_slab_directory_is_reported(path: Path) -> None:
    with pytest.raises(SlabError, match="cannot be created"):
        take(path.parent / "nowhere" / "slab")


def test_messages_of_a_former_worker_are_counted_once() -> None:
    """There were two workers, and the second had received more; now there is one."""
    with new_slab(Geometry(chunks=64, topics=16, partitions=16, landing_slots=8, landing_slot_size=4096)) as slab:
        for row, messages in ((WORKER_ROW, 1), (WORKER_ROW + 1, 5)):
            worker = StreamInput(slab, row=row)
            worker.feed((worker.connect(), datagram() * messages))
        recover_inputs(slab, (WORKER_ROW,), SpillDirectory.for_slab(slab, f"{slab.path}.spill"))
        for _ in range(2):
            StreamInput(slab)
        books = count_books(slab)
        assert (books.received, books.balanced) == (6, True)


@pytest.mark.parametrize("moved_chunks", [0, 1, 2])
def test_messages_of_a_former_worker_are_counted_once_after_a_kill(
    monkeypatch: pytest.MonkeyPatch, moved_chunks: int
) -> None:
    """The kill comes when so many chunks of the former worker have the remaining one as their owner."""
    with new_slab(Geometry(chunks=64, topics=16, partitions=16, landing_slots=8, landing_slot_size=4096)) as slab:
        for row, messages in ((WORKER_ROW, 1), (WORKER_ROW + 1, 5)):
            worker = StreamInput(slab, row=row, topics=[(b"t1", 1), (b"t2", 1)])
            worker.feed((worker.connect(), (datagram(b"t1") + datagram(b"t2")) * messages))
        spills = SpillDirectory.for_slab(slab, f"{slab.path}.spill")

        def kill_if_due(*arguments: Any) -> HandoverTickets:
            owners = [slab.owner_of(chunk) for chunk, *_ in used_chunk_headers(slab)]
            if owners.count(WORKER_ROW + 1) == 2 - moved_chunks:
                pytest.fail("killed")
            return HandoverTickets(*arguments)

        monkeypatch.setattr("bruce_mp.supervisor.slab.slab_setup.HandoverTickets", kill_if_due)
        monkeypatch.setattr("bruce_mp.supervisor.slab.slab_setup.rebuild_table", kill_if_due)
        with pytest.raises(pytest.fail.Exception):
            recover_inputs(slab, (WORKER_ROW,), spills)
        monkeypatch.undo()
        recover_inputs(slab, (WORKER_ROW,), spills)
        books = count_books(slab)
        assert (books.received, books.balanced) == (12, True)


def touched_bytes(path: Path) -> int:
    """Return the bytes of a slab that this process has touched through its mappings."""
    regions = Path("/proc/self/smaps").read_text().split("VmFlags:")
    return sum(int(region.split("Rss:")[1].split()[0]) << 10 for region in regions if f" {path}\n" in region)


def test_copies_that_an_old_status_process_wrote_after_an_upgrade_are_not_lost(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with new_slab() as slab:
        ProcessRow(slab, lay.ROW_FIRST_DISPATCHER).add(Counter.DiscardCopyQueued, 5)
        lost = []
        for written in (0, 3):  # the upgrade counts all copies as lost, and the old process then writes three of them
            ProcessRow(slab, lay.ROW_STATUS).add(Counter.DiscardCopySettled, written)
            recover_after_upgrade(slab, [lay.ROW_FIRST_INPUT], SpillDirectory.for_slab(slab, f"{path}.spill"))
            lost.append(counter_total(slab, Counter.MsgCopyLost))
    assert lost == [5, 2]
    assert [record.getMessage() for record in caplog.records if "lacks -" in record.getMessage()] == []


def test_a_start_touches_only_claimed_shares_of_a_large_slab(path: Path) -> None:
    large = Geometry(chunks=1 << 15)
    create_slab(path, large, 0)
    slab = Slab(path)
    worker = StreamInput(slab)
    worker.feed((worker.connect(), datagram() * 3))
    slab.close()
    del worker, slab
    gc.collect()
    assert touched_bytes(path) == 0
    adopted = take(path)
    recover_inputs(adopted, (lay.ROW_FIRST_INPUT, WORKER_ROW), SpillDirectory.for_slab(adopted, f"{path}.spill"))
    ChunkPool(adopted, WORKER_ROW, (lay.ROW_FIRST_INPUT, WORKER_ROW))
    assert sum(count_held_by_topic(adopted).values()) == 3
    assert 0 < touched_bytes(path) < large.file_size // 16
