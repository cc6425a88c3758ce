"""The journal at a start: it replaces a lost slab, and only that."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Final, cast

import pytest

from bruce_mp.errors import StartError
from bruce_mp.journal.journal_file import AttemptKey, Journal, JournaledRun, RunKey, read_journal
from bruce_mp.journal.recorder import JOURNAL, JournalRecorder
from bruce_mp.slab import layout as lay
from bruce_mp.slab.producer_id import cluster_of, store_cluster
from bruce_mp.supervisor.slab.backlog import count_held_by_topic
from bruce_mp.supervisor.slab.journal_setup import JournalSetup
from bruce_mp.supervisor.slab.slab_setup import acquire_slab
from support.journals import as_of_an_earlier_boot
from support.slabs import Input, datagram

if TYPE_CHECKING:
    from bruce_mp.journal.journal_file import _EntryKind
    from bruce_mp.slab.file import Slab

SIZE: Final = 1 << 20
LARGEST: Final = 4096


class Start:
    """A daemon's start on the slab and the journal in a directory."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "slab"
        self.journal = directory / "slab.journal"

    def __call__(self, *, size: int = SIZE, is_kept: bool = True, journal: Path | None = None) -> Slab:
        setup = JournalSetup(journal or self.journal, is_kept=is_kept)
        slab, lock = acquire_slab(self.path, size, LARGEST, setup, self.path.with_name("spill"))
        os.close(lock)
        setup.apply(slab, is_empty=not count_held_by_topic(slab), partitioners=None)
        return slab


@pytest.fixture
def start(tmp_path: Path) -> Start:
    return Start(tmp_path)


def hold(slab: Slab, count: int) -> None:
    source = Input(slab, topics=[(b"t", 1)])
    source.receive([datagram(b"t") for _ in range(count)])
    source.close_all()


def held(slab: Slab) -> int:
    return sum(count_held_by_topic(slab).values())


def record(start: Start, slab: Slab) -> None:
    JournalRecorder(slab, start.journal).record()


def test_a_first_start_begins_an_empty_journal(start: Start) -> None:
    slab = start()
    content = read_journal(start.journal / JOURNAL)
    assert content is not None
    assert (content.slab_id, content.message_count) == (slab.read_signed(lay.SUPER_CREATED_MS), 0)


@pytest.mark.parametrize("messages", [0, 3])
def test_a_restored_slab_keeps_the_cluster(start: Start, messages: int) -> None:
    slab = start()
    store_cluster(slab, "cluster-a")
    hold(slab, messages)
    record(start, slab)
    start.path.unlink()
    as_of_an_earlier_boot(start.journal / JOURNAL)
    again = start()
    assert (held(again), cluster_of(again)) == (messages, "cluster-a")
    content = read_journal(start.journal / JOURNAL)
    assert content is not None
    assert content.cluster_id == "cluster-a"


def test_a_killed_start_that_restores_is_repeated_with_all_messages(start: Start) -> None:
    slab = start()
    hold(slab, 3)
    record(start, slab)
    start.path.unlink()
    as_of_an_earlier_boot(start.journal / JOURNAL)
    journal = (start.journal / JOURNAL).read_bytes()
    half = start()
    assert held(half) == 3
    half.words[lay.SUPER_RESTORING >> 2] = 1
    (start.journal / JOURNAL).write_bytes(journal)
    again = start()
    assert held(again) == 3
    assert not list(start.path.parent.glob("slab.journal.*"))
    assert again.words[lay.SUPER_RESTORING >> 2] == 0
    content = read_journal(start.journal / JOURNAL)
    assert content is not None
    assert (content.slab_id, content.message_count) == (again.read_signed(lay.SUPER_CREATED_MS), 3)


def test_messages_of_half_an_attempt_are_counted_in_the_log(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    slab = start()
    hold(slab, 3)
    record(start, slab)
    journal = Journal.open(start.journal / JOURNAL)
    journal.add_run(RunKey(9, 1, 64), JournaledRun(b"t", 2, b"", AttemptKey(3, 1)))
    journal.sync()
    start.path.unlink()
    assert held(start()) == 3
    assert "incomplete fenced attempts; 2 messages of them will not be delivered" in caplog.text


def test_a_restart_of_the_machine_after_a_begin_restores(start: Start) -> None:
    """A start marks the journal as older than the slab before the daemon changes the slab."""
    slab = start()
    hold(slab, 3)
    JournalSetup.close(slab, start.journal)
    as_of_an_earlier_boot(start.journal / JOURNAL)
    start()
    as_of_an_earlier_boot(start.journal / JOURNAL)
    slab.view[slab.geometry.chunks_at :] = bytes(slab.geometry.file_size - slab.geometry.chunks_at)
    assert held(start()) == 3


def test_a_restart_of_the_machine_restores_when_the_slab_lost_its_first_page(start: Start) -> None:
    slab = start()
    hold(slab, 3)
    record(start, slab)
    slab.view[: lay.PAGE] = bytes(lay.PAGE)
    as_of_an_earlier_boot(start.journal / JOURNAL)
    assert held(start()) == 3


def test_an_empty_first_page_is_refused_while_the_machine_runs(start: Start) -> None:
    slab = start()
    hold(slab, 3)
    record(start, slab)
    slab.view[: lay.PAGE] = bytes(lay.PAGE)
    with pytest.raises(StartError, match="is not a slab; the daemon has not changed it"):
        start()


def test_a_restart_of_the_machine_replaces_no_file_that_is_not_a_slab(start: Start) -> None:
    slab = start()
    hold(slab, 3)
    record(start, slab)
    as_of_an_earlier_boot(start.journal / JOURNAL)
    start.path.unlink()
    start.path.write_text("[kafka]\n")
    start.path.chmod(0o600)
    with pytest.raises(StartError, match="is not a slab; the daemon has not changed it"):
        start()
    assert start.path.read_text() == "[kafka]\n"


def test_the_journal_of_an_empty_slab_is_ignored(start: Start) -> None:
    """The daemon was killed before the journal knew that all was delivered; the new size replaces the slab."""
    slab = start()
    hold(slab, 3)
    record(start, slab)
    slab.view[slab.geometry.chunks_at :] = bytes(slab.geometry.file_size - slab.geometry.chunks_at)
    assert held(start(size=2 * SIZE)) == 0


def test_a_start_that_is_killed_before_the_slab_of_a_new_size_restores_no_delivered_messages(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    slab = start()
    hold(slab, 3)
    record(start, slab)
    slab.view[slab.geometry.chunks_at :] = bytes(slab.geometry.file_size - slab.geometry.chunks_at)
    monkeypatch.setattr("bruce_mp.supervisor.slab.slab_setup.create_slab", lambda *_: pytest.fail("killed"))
    with pytest.raises(pytest.fail.Exception):
        start(size=2 * SIZE)
    monkeypatch.undo()
    assert not start.path.exists()
    assert held(start(size=2 * SIZE)) == 0


@pytest.fixture
def read_only_journal(start: Start, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Make the removal of the journal fail, until the `undo` of the returned object."""
    unlink = Path.unlink

    def refuse(path: Path, *, missing_ok: bool = False) -> None:
        if path == start.journal / JOURNAL:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))
        unlink(path, missing_ok=missing_ok)

    monkeypatch.setattr(Path, "unlink", refuse)
    return monkeypatch


def test_an_empty_slab_keeps_its_size_while_its_journal_cannot_be_removed(
    start: Start, read_only_journal: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    slab = start()
    hold(slab, 3)
    record(start, slab)
    slab.view[slab.geometry.chunks_at :] = bytes(slab.geometry.file_size - slab.geometry.chunks_at)
    kept = start(size=2 * SIZE)
    assert (held(kept), kept.geometry) == (0, slab.geometry)
    assert f"The journal {start.journal / JOURNAL} cannot be removed: Read-only file system. Remove it" in caplog.text
    read_only_journal.undo()
    replaced = start(size=2 * SIZE)
    assert held(replaced) == 0
    assert replaced.geometry != slab.geometry


@pytest.mark.usefixtures("read_only_journal")
@pytest.mark.parametrize("has_directory", [False, True])
def test_a_missing_journal_counts_as_removed(
    start: Start, caplog: pytest.LogCaptureFixture, *, has_directory: bool
) -> None:
    if has_directory:
        start.journal.mkdir(0o700)
    assert JournalSetup.remove(start.journal, start.path)
    assert caplog.text == ""


def test_the_journal_of_another_slab_outlives_an_empty_slab_of_another_size(start: Start, tmp_path: Path) -> None:
    slab = start()
    hold(slab, 3)
    record(start, slab)
    start.path.unlink()
    start.journal.rename(tmp_path / "kept")
    start()
    start.journal.rename(tmp_path / "newer")
    (tmp_path / "kept").rename(start.journal)
    assert held(start(size=2 * SIZE)) == 3


def test_the_journal_has_messages_of_a_slab_of_another_layout(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    slab = start()
    hold(slab, 3)
    JournalSetup.close(slab, start.journal)
    slab.words[lay.SUPER_VERSION >> 2] = lay.LAYOUT_VERSION + 1
    slab.close()
    assert held(start()) == 3
    assert "of the messages in the old one, those in the journal are delivered." in caplog.text
    assert "not delivered" not in caplog.text


def test_a_journal_for_1_0_0_names_no_cluster(start: Start) -> None:
    """1.0.0 does not know this entry, and would not start."""
    slab = start()
    hold(slab, 3)
    store_cluster(slab, "the cluster")
    found = []
    for for_1_0_0 in (False, True):
        JournalSetup.close(slab, start.journal, for_1_0_0=for_1_0_0)
        content = read_journal(start.journal / JOURNAL)
        assert content is not None
        found.append((content.cluster_id, content.is_clean, len(content.runs)))
    assert found == [("the cluster", True, 1), ("", True, 1)]


def test_the_journal_of_another_slab_is_moved_aside(
    start: Start, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    slab = start()
    hold(slab, 3)
    record(start, slab)
    start.path.unlink()
    start.journal.rename(tmp_path / "kept")
    other = start()
    hold(other, 2)
    start.journal.rename(tmp_path / "newer")
    (tmp_path / "kept").rename(start.journal)
    assert held(start()) == 2
    assert "belongs to another slab" in caplog.text
    [aside] = tmp_path.glob("slab.journal.foreign-*")
    content = read_journal(aside / JOURNAL)
    assert content is not None
    assert content.message_count == 3


def test_the_journal_of_a_newer_version_ends_the_start(start: Start) -> None:
    slab = start()
    hold(slab, 3)
    record(start, slab)
    newer = Journal.open(start.journal / JOURNAL)
    newer._add(cast("_EntryKind", 99), b"")
    newer.sync()
    with pytest.raises(StartError, match=f"{start.journal / JOURNAL} .*newer version of bruce.* Start that version"):
        start()


def test_a_journal_in_another_directory_is_removed_before_it_gets_old(start: Start, tmp_path: Path) -> None:
    slab = start()
    hold(slab, 3)
    record(start, slab)
    other = tmp_path / "other"
    start(journal=other)
    assert not start.journal.exists()
    hold(slab, 2)
    as_of_an_earlier_boot(other / JOURNAL)
    assert held(start()) == 5
    assert not other.exists()


def test_a_killed_start_without_sync_keeps_the_restored_messages(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kill comes after the removal of the journal."""
    slab = start()
    hold(slab, 3)
    record(start, slab)
    start.path.unlink()
    monkeypatch.setattr("bruce_mp.supervisor.slab.journal_setup.sync_directory", lambda _: pytest.fail("killed"))
    with pytest.raises(pytest.fail.Exception):
        start(is_kept=False)
    monkeypatch.undo()
    assert not (start.journal / JOURNAL).exists()
    assert held(start(is_kept=False)) == 3


def test_the_same_directory_under_another_name_keeps_its_journal(start: Start, tmp_path: Path) -> None:
    slab = start()
    hold(slab, 3)
    record(start, slab)
    (tmp_path / "link").symlink_to(start.journal)
    JournalSetup.change_directory(slab, tmp_path / "link")
    assert (start.journal / JOURNAL).exists()


def test_without_sync_the_messages_are_restored_and_the_journal_removed(start: Start) -> None:
    slab = start()
    hold(slab, 3)
    record(start, slab)
    start.path.unlink()
    assert held(start(is_kept=False)) == 3
    assert not start.journal.exists()


def test_a_journal_that_cannot_be_written_is_refused_with_the_remedy(start: Start) -> None:
    start.journal.mkdir(0o755)
    with pytest.raises(StartError, match=r"not a directory .* slab\.journal_dir"):
        start()


@pytest.mark.parametrize("free", [0, 1 << 30])
def test_a_replaced_slab_is_kept_if_the_disk_has_room(start: Start, monkeypatch: pytest.MonkeyPatch, free: int) -> None:
    slab = start()
    hold(slab, 3)
    record(start, slab)
    as_of_an_earlier_boot(start.journal / JOURNAL)
    whole = slab.path.read_bytes()
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=free))
    assert held(start()) == 3
    copies = list(start.path.parent.glob("slab.unsynced-*"))
    assert [copy.read_bytes() for copy in copies] == ([whole] if free else [])


def test_a_replaced_slab_leaves_earlier_copies_while_the_disk_has_room(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    slab = start()
    hold(slab, 3)
    record(start, slab)
    size = slab.path.stat().st_size
    for room, copies in ((2, 1), (3, 2), (3, 2), (4, 3)):  # the third copy needs more room
        as_of_an_earlier_boot(start.journal / JOURNAL)
        monkeypatch.setattr("shutil.disk_usage", lambda _, free=room * size: SimpleNamespace(free=free))
        assert held(start()) == 3
        assert len(list(start.path.parent.glob("slab.unsynced-*"))) == copies
