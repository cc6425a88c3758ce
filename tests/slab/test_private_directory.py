"""The directories of a slab's files on disk."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from bruce_mp.errors import SlabError
from bruce_mp.journal.recorder import JournalRecorder
from bruce_mp.slab.file import Geometry, Slab, create_slab
from bruce_mp.slab.private_directory import LINK, check_owner, create_private_directory
from bruce_mp.slab.spill import SpillDirectory
from bruce_mp.supervisor.slab.journal_setup import JournalSetup
from support.full_disk import files_end_at

if TYPE_CHECKING:
    from pathlib import Path


def slab_in(directory: Path) -> Slab:
    directory.mkdir()
    create_slab(directory / "x.slab", Geometry.for_size(1 << 20, 4096), 1)
    return Slab(directory / "x.slab")


def test_a_directory_belongs_to_the_slab_that_created_it(tmp_path: Path) -> None:
    path, slab = tmp_path / "x.slab.spill", tmp_path / "a" / "x.slab"
    for _ in range(2):
        create_private_directory(path, "some.setting", slab)
    with pytest.raises(SlabError, match=r"belongs to the slab .*/a/x\.slab, which has the same name as .*/b/x\.slab"):
        create_private_directory(path, "some.setting", tmp_path / "b" / "x.slab")
    with pytest.raises(SlabError, match=r"Set some\.setting to another directory"):
        check_owner(path, "some.setting", tmp_path / "b" / "x.slab")
    (tmp_path / "link").symlink_to(tmp_path / "a", target_is_directory=True)
    check_owner(path, "some.setting", tmp_path / "link" / "x.slab")


def test_a_directory_of_an_earlier_version_belongs_to_its_first_slab(tmp_path: Path) -> None:
    path = tmp_path / "x.slab.spill"
    path.mkdir(0o700)
    check_owner(path, "some.setting", tmp_path / "b" / "x.slab")
    create_private_directory(path, "some.setting", tmp_path / "b" / "x.slab")
    with pytest.raises(SlabError):
        check_owner(path, "some.setting", tmp_path / "a" / "x.slab")


def test_a_slab_leaves_the_spill_files_of_another_slab(tmp_path: Path) -> None:
    slabs = [slab_in(tmp_path / name) for name in "ab"]
    ours, theirs = (SpillDirectory.for_slab(slab, tmp_path / "spill") for slab in slabs)
    file = ours.create(3, 1, keeps_timestamps=False)
    with pytest.raises(SlabError):
        theirs.create(3, 1, keeps_timestamps=False)
    theirs.remove(slabs[1])
    assert file.path.exists()
    file.close()
    ours.remove(slabs[0])
    assert not (tmp_path / "spill").exists()


def test_a_spill_file_without_room_for_its_header_is_removed(tmp_path: Path) -> None:
    directory = SpillDirectory.for_slab(slab_in(tmp_path / "a"), tmp_path / "spill")
    with files_end_at(1000), pytest.raises(OSError, match="File too large"):
        directory.create(3, 1, keeps_timestamps=False)
    directory.create(3, 1, keeps_timestamps=False).remove()
    assert [path.name for path in (tmp_path / "spill").iterdir()] == [LINK]


@pytest.mark.parametrize("size", [0, 4096])
def test_a_file_that_a_killed_worker_left_without_a_header_is_replaced(tmp_path: Path, size: int) -> None:
    directory = SpillDirectory.for_slab(slab_in(tmp_path / "a"), tmp_path / "spill")
    directory.ensure()
    (directory.path / "3.1.spill").write_bytes(bytes(size))
    file = directory.create(3, 1, keeps_timestamps=False)
    with pytest.raises(FileExistsError):
        directory.create(3, 1, keeps_timestamps=False)
    assert [(found.number, found.message_count) for found in directory.files(3).values()] == [(1, 0)]
    file.close()


def test_a_slab_leaves_the_journal_of_another_slab(tmp_path: Path) -> None:
    ours, theirs = slab_in(tmp_path / "a"), slab_in(tmp_path / "b")
    path = tmp_path / "journal"
    JournalRecorder(ours, path).record()
    with pytest.raises(SlabError):
        JournalRecorder(theirs, path).record()
    JournalSetup.remove(path, theirs.path)
    assert sorted(each.name for each in path.iterdir()) == ["journal", LINK]
    JournalSetup.remove(path, ours.path)
    assert not path.exists()
