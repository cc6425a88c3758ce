"""The slab file: complete or absent, locked, and refused with damage."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bruce_mp.errors import SlabError
from bruce_mp.slab import landing_zone
from bruce_mp.slab import layout as lay
from bruce_mp.slab.chunks import chunk_headers
from bruce_mp.slab.file import Geometry, Slab, create_slab, lock_exclusive
from bruce_mp.slab.layout import ChunkState
from bruce_mp.slab.rows import ProcessRow
from support.doc_pages import ROOT
from support.examples import examples
from support.slabs import SMALL, datagram, put_in_landing_zone


def test_a_new_slab_is_empty(tmp_path: Path) -> None:
    path = tmp_path / "slab"
    create_slab(path, SMALL, now_ms=12345)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.stat().st_blocks * 512 >= SMALL.file_size
    assert [entry.name for entry in tmp_path.iterdir()] == ["slab"]
    slab = Slab(path)
    assert slab.geometry == SMALL
    assert slab.read_signed(lay.SUPER_PRODUCER_ID) == -1
    assert slab.read_signed(lay.SUPER_CREATED_MS) == 12345
    assert landing_zone.landed_lengths(slab) == []
    assert {state for _, state, _, _ in chunk_headers(slab)} == {ChunkState.FREE}
    slab.close()


def test_an_existing_file_is_never_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "slab"
    path.write_bytes(b"precious")
    with pytest.raises(SlabError, match="; the daemon does not overwrite it"):
        create_slab(path, SMALL, now_ms=0)
    assert path.read_bytes() == b"precious"
    assert [entry.name for entry in tmp_path.iterdir()] == ["slab"]


def test_a_full_file_system_is_reported_at_creation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_room(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", no_room)
    with pytest.raises(SlabError, match=r"needs \d+ MiB, but its file system has only \d+ MiB free; reduce slab.size"):
        create_slab(tmp_path / "slab", SMALL, now_ms=0)
    assert list(tmp_path.iterdir()) == []


def test_an_incomplete_slab_has_no_name_that_a_kill_would_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    link, seen = os.link, []
    with TemporaryDirectory(dir="/dev/shm") as directory:

        def look_and_link(*arguments: Any, **named: Any) -> None:
            seen.append([entry.name for entry in Path(directory).iterdir()])
            link(*arguments, **named)
            seen.append([entry.name for entry in Path(directory).iterdir()])

        monkeypatch.setattr(os, "link", look_and_link)
        create_slab(Path(directory) / "slab", SMALL, now_ms=0)
    assert seen == [[], ["slab"]]


def test_a_slab_is_created_in_a_file_system_without_unnamed_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    really_open = os.open

    def open_named(path: Path, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
        return really_open(path, flags, mode)

    monkeypatch.setattr(os, "open", open_named)
    create_slab(tmp_path / "slab", SMALL, now_ms=0)
    assert [entry.name for entry in tmp_path.iterdir()] == ["slab"]
    assert Slab(tmp_path / "slab").geometry == SMALL
    with pytest.raises(SlabError, match="exists already"):
        create_slab(tmp_path / "slab", SMALL, now_ms=0)
    assert [entry.name for entry in tmp_path.iterdir()] == ["slab"]


def test_a_missing_directory_is_reported(tmp_path: Path) -> None:
    with pytest.raises(SlabError, match="cannot be created: No such file"):
        create_slab(tmp_path / "missing" / "slab", SMALL, now_ms=0)
    with pytest.raises(SlabError, match="cannot be opened: No such file"):
        Slab(tmp_path / "missing")


@pytest.mark.parametrize(
    ("at", "data", "text"),
    [
        (0, b"X", "is not a slab"),
        (8, b"\x63", "layout version 99"),
        (12, b"\1", "damaged"),
        (24, b"\xff", "damaged"),
        (36, b"\x01", "damaged"),
    ],
)
def test_an_invalid_superblock_is_refused(tmp_path: Path, at: int, data: bytes, text: str) -> None:
    path = tmp_path / "slab"
    create_slab(path, SMALL, now_ms=0)
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)
    with pytest.raises(SlabError, match=text):
        Slab(path)


def test_the_page_in_the_error_message_lists_the_releases_of_the_layout_versions() -> None:
    page = (ROOT / "docs" / "slab.md").read_text()
    assert lay.READABLE_VERSIONS == (1, 2)
    assert "up to 1.0.0 releases read and create version 1; later ones create 2 and read both." in page


@pytest.mark.parametrize("size", [0, 8, 4096, SMALL.file_size - 1, SMALL.file_size + 1])
def test_a_file_of_the_wrong_size_is_refused(tmp_path: Path, size: int) -> None:
    path = tmp_path / "slab"
    create_slab(path, SMALL, now_ms=0)
    os.truncate(path, size)
    with pytest.raises(SlabError, match="slab"):
        Slab(path)


def test_a_lock_lasts_while_any_copy_is_open(tmp_path: Path) -> None:
    path = tmp_path / "slab"
    create_slab(path, SMALL, now_ms=0)
    first = lock_exclusive(path)
    inherited = os.dup(first)
    os.close(first)
    with pytest.raises(SlabError, match="belongs to a daemon that is running"):
        lock_exclusive(path)
    os.close(inherited)
    os.close(lock_exclusive(path))


def test_two_mappings_share_the_memory(tmp_path: Path) -> None:
    path = tmp_path / "slab"
    create_slab(path, SMALL, now_ms=0)
    one, other = Slab(path), Slab(path)
    one.store_signed(lay.SUPER_PRODUCER_ID, -(2**63))
    assert other.read_signed(lay.SUPER_PRODUCER_ID) == -(2**63)
    one.words[lay.SUPER_IDEMPOTENCE >> 2] = 2
    assert other.view[lay.SUPER_IDEMPOTENCE] == 2
    one.close()
    other.close()


def test_close_tolerates_an_open_view(tmp_path: Path) -> None:
    path = tmp_path / "slab"
    create_slab(path, SMALL, now_ms=0)
    slab = Slab(path)
    row = ProcessRow(slab, 0)
    slab.close()
    assert row.counters[0] == 0


def test_a_chunk_number_out_of_range_is_refused(slab: Slab) -> None:
    for chunk in (-1, SMALL.chunks, 2**32):
        with pytest.raises(SlabError, match="There is no chunk"):
            slab.chunk_at(chunk)


@examples(50)
@given(size=st.integers(0, 1 << 40), largest=st.integers(0, 16 << 20))
def test_parts_of_the_file_do_not_overlap(size: int, largest: int) -> None:
    geometry = Geometry.for_size(size, largest)
    parts = [
        (0, lay.PAGE),
        (geometry.topics_at, geometry.topics * lay.TOPIC_ENTRY),
        (geometry.partitions_at, geometry.partitions * lay.PARTITION_ENTRY),
        (geometry.rows_at, geometry.rows * lay.ROW_BYTES),
        (geometry.landing_at, lay.LANDING_HEADERS + geometry.landing_slots * lay.MMSGHDR_BYTES),
        (geometry.landing_iovecs_at, geometry.landing_slots * lay.IOVEC_BYTES),
        (geometry.landing_slots_at, geometry.landing_slots * geometry.landing_slot_size),
        (geometry.chunks_at, geometry.chunks * lay.CHUNK_BYTES),
    ]
    end = 0
    for at, length in parts:
        assert at >= end
        assert at % 8 == 0
        end = at + length
    assert end == geometry.file_size
    assert geometry.landing_slot_size >= largest


def test_landed_extents_contain_the_landed_datagrams(slab: Slab) -> None:
    data = [datagram(value=b"x"), b"", b"yy"]
    put_in_landing_zone(slab, data)
    assert landing_zone.landed_lengths(slab) == [len(some) for some in data]
    extents = landing_zone.landed_extents(slab)
    assert [bytes(slab.view[at : at + length]) for at, length in extents] == data
    assert [at for at, _ in extents] == [landing_zone.slot_at(slab, slot) for slot in range(3)]
    landing_zone.empty_slots(slab, 3)
    assert landing_zone.landed_extents(slab) == []
    put_in_landing_zone(slab, [b"z"] * SMALL.landing_slots)
    assert landing_zone.landed_lengths(slab) == [1] * SMALL.landing_slots
    landing_zone.empty_slots(slab, SMALL.landing_slots)
    assert landing_zone.landed_lengths(slab) == []
