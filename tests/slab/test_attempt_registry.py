"""The registry of named attempts: states, other processes, broken lines, replaced files and lost slabs."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, Final

import pytest

from bruce_mp.errors import DiscardReason
from bruce_mp.slab import attempt_registry
from bruce_mp.slab import layout as lay
from bruce_mp.slab.attempt_registry import AttemptRegistry, AttemptState, RememberedAttempt
from bruce_mp.slab.private_directory import LINK
from bruce_mp.slab.spill import SpillDirectory
from support.full_disk import files_end_at
from support.slabs import new_slab

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from bruce_mp.slab.file import Slab

SLAB: Final = 1_700_000_000_000
ROW: Final = 5


@pytest.fixture
def slab() -> Iterator[Slab]:
    with new_slab() as found:
        yield found


@pytest.fixture
def directory(tmp_path: Path) -> SpillDirectory:
    return SpillDirectory(tmp_path / "spill", SLAB, tmp_path / "slab")


def registry_in(directory: SpillDirectory, clock_ms: Callable[[], int] | None = None) -> AttemptRegistry:
    return AttemptRegistry(directory.path, directory.slab_id, directory.ensure, clock_ms)


def prepared(name: str, number: int, messages: int = 3, slab: int = SLAB) -> RememberedAttempt:
    return RememberedAttempt(name, (slab, ROW, number), AttemptState.PREPARED, messages)


def state_of(registry: AttemptRegistry, name: str) -> AttemptState | None:
    found = registry.find(name)
    return None if found is None else found.state


def test_a_registry_shows_each_state_to_other_processes(directory: SpillDirectory) -> None:
    writer, reader = registry_in(directory), registry_in(directory)
    assert reader.find("a") is None
    assert writer.prepare(prepared("a", 1)) is None
    assert state_of(reader, "a") is AttemptState.PREPARED
    writer.store((SLAB, ROW, 1), AttemptState.COMPLETED)
    assert state_of(reader, "a") is AttemptState.COMPLETED
    writer.store((SLAB, ROW, 1), AttemptState.SETTLED, 2, {DiscardReason.BAD_TOPIC: 1})
    found = reader.find("a")
    assert found is not None
    assert (found.message_count, found.delivered, found.discards) == (3, 2, {DiscardReason.BAD_TOPIC: 1})
    assert registry_in(directory).find("a") == found


def test_a_name_is_prepared_once_by_all_workers(directory: SpillDirectory) -> None:
    one, two = registry_in(directory), registry_in(directory)
    assert one.prepare(prepared("a", 1)) is None
    earlier = two.prepare(prepared("a", 2))
    assert earlier is not None
    assert earlier.id == (SLAB, ROW, 1)
    one.store((SLAB, ROW, 1), AttemptState.CANCELLED)
    assert two.prepare(prepared("a", 2)) is None


@pytest.mark.parametrize(("completed", "states"), [(0, (None, "u")), (2, ("u", "u")), (1, (None, "u"))])
def test_the_recovery_decides_by_the_last_completion(
    directory: SpillDirectory, completed: int, states: tuple[str | None, str]
) -> None:
    registry = registry_in(directory)
    registry.prepare(prepared("earlier", 1))
    registry.store((SLAB, ROW, 1), AttemptState.COMPLETED)
    registry.prepare(prepared("last", 2))
    registry.prepare(RememberedAttempt("other", (SLAB, ROW + 1, 2), AttemptState.PREPARED, 1))
    for _ in range(2):  # the recovery may run twice
        registry_in(directory).resolve(ROW, completed)
        completed = 0
    found = [state_of(registry, name) for name in ("last", "earlier")]
    assert found == [AttemptState.UNCOUNTED if state else None for state in states]
    assert state_of(registry, "other") is AttemptState.PREPARED


def test_a_partial_line_of_a_killed_process_hides_no_other_entry(directory: SpillDirectory) -> None:
    registry = registry_in(directory)
    registry.prepare(prepared("a", 1))
    with (directory.path / "attempts.journal").open("ab") as file:
        file.write(b'\n["prepared", 17000')
    assert registry_in(directory).prepare(prepared("b", 2)) is None
    assert [state_of(registry, name) for name in "ab"] == [AttemptState.PREPARED] * 2


@pytest.mark.parametrize("is_replaced", [False, True])
def test_an_entry_that_lacks_only_its_last_byte_never_becomes_valid(
    directory: SpillDirectory, *, is_replaced: bool
) -> None:
    """The worker has ended the attempt because the write failed, so its repetition must be accepted."""
    now = [1_000_000]
    worker, other, successor = (registry_in(directory, lambda: now[0]) for _ in range(3))
    assert worker.prepare(prepared("a", 1)) is None
    path = directory.path / "attempts.journal"
    size = path.stat().st_size
    worker.prepare(prepared("b", 2))
    entry_size = path.stat().st_size - size
    with files_end_at(size + 2 * entry_size - 1), pytest.raises(OSError, match="full"):
        worker.prepare(prepared("c", 3))
    assert state_of(other, "c") is None
    if is_replaced:
        now[0] += attempt_registry.MAX_FILE_AGE_MS
    worker.store((SLAB, ROW, 2), AttemptState.COMPLETED)
    for registry in (worker, other, successor):
        assert state_of(registry, "b") is AttemptState.COMPLETED
        assert state_of(registry, "c") is None
    assert other.prepare(prepared("c", 4)) is None


def test_an_attempt_of_a_lost_slab_is_lost_unless_settled(tmp_path: Path, slab: Slab) -> None:
    before, gone, now = (SpillDirectory(tmp_path / "spill", SLAB + number, tmp_path / "slab") for number in range(3))
    for directory, name in ((before, "before"), (gone, "gone"), (gone, "settled")):
        attempt = prepared(name, hash(name), slab=directory.slab_id)
        directory.registry.prepare(attempt)
        state = AttemptState.SETTLED if name == "settled" else AttemptState.UNCOUNTED
        directory.registry.store(attempt.id, state)
    before.remove(slab)  # the daemon had delivered everything, and removed its slab
    found = {name: now.registry.find(name) for name in ("before", "gone", "settled")}
    lost = {name: each is not None and now.registry.is_lost(each) for name, each in found.items()}
    assert lost == {"before": False, "gone": True, "settled": False}
    accepted = {name: now.registry.prepare(prepared(name, 1, slab=now.slab_id)) is None for name in found}
    assert accepted == lost  # a client that sends a lost attempt again decides to do so
    assert now.registry.prepare(prepared("gone", 2, slab=now.slab_id)) is not None


def test_an_attempt_after_the_end_of_a_slab_that_stays_is_lost_with_it(tmp_path: Path, slab: Slab) -> None:
    """The daemon is killed before it removes the slab, and the next start adopts it."""
    gone, now = (SpillDirectory(tmp_path / "spill", SLAB + number, tmp_path / "slab") for number in range(2))
    names = "before", "renewed", "after"
    gone.registry.prepare(prepared("before", 1))
    gone.registry.prepare(prepared("renewed", 2))
    gone.registry.store((SLAB, ROW, 2), AttemptState.CANCELLED)
    gone.remove(slab)
    for number, name in enumerate(names[1:], 1):
        gone.registry.prepare(prepared(name, number))
        gone.registry.store((SLAB, ROW, number), AttemptState.COMPLETED)
    found = [now.registry.find(name) for name in names]
    assert [each is not None and now.registry.is_lost(each) for each in found] == [False, True, True]
    gone.remove(slab)
    found = [now.registry.find(name) for name in names]
    assert [each is not None and now.registry.is_lost(each) for each in found] == [False, False, False]


def test_an_attempt_without_counts_is_uncounted_after_the_end_of_its_slab(tmp_path: Path, slab: Slab) -> None:
    """Only a prepared attempt that the slab does not name as completed was never delivered."""
    ended, now = (SpillDirectory(tmp_path / "spill", SLAB + number, tmp_path / "slab") for number in range(2))
    names = "prepared", "last completed", "released", "cancelled", "settled"
    for number, name in enumerate(names, 1):
        ended.registry.prepare(prepared(name, number))
        if number > 2:
            ended.registry.store((SLAB, ROW, number), AttemptState(name))
    slab.words[(slab.row_at(ROW) + lay.ROW_LAST_COMPLETED) >> 2] = 2
    ended.remove(slab)  # the dispatchers delivered the rest after the workers had ended
    states = {name: state_of(now.registry, name) for name in names}
    uncounted = AttemptState.UNCOUNTED
    assert states == {
        "prepared": None, "last completed": uncounted, "released": uncounted, "cancelled": None,
        "settled": AttemptState.SETTLED,
    }  # fmt: skip


def test_a_registry_remembers_for_a_day_and_is_bounded(
    directory: SpillDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [attempt_registry._boot_time_ms() + 1000]
    writer, other = (registry_in(directory, lambda: now[0]) for _ in range(2))
    began = now[0]
    for hours in range(0, 73, 3):
        now[0] = began + hours * 3_600_000
        assert writer.prepare(prepared(str(hours), hours)) is None
        kept = [earlier for earlier in range(0, hours + 1, 3) if state_of(other, str(earlier))]
        assert set(range(max(0, hours - 24), hours + 1, 3)) <= set(kept)
        assert min(kept) >= hours - 48
        assert writer.no_entry_missing_since_ms() <= began + min(kept) * 3_600_000
    assert writer.no_entry_missing_since_ms() > began, "the first file was dropped"
    monkeypatch.setattr(attempt_registry, "MAX_FILE_BYTES", 10_000)
    for number in range(1000):
        writer.prepare(prepared(f"many-{number}", 1000 + number))
    sizes = [path.stat().st_size for path in directory.path.iterdir() if path.name != LINK]
    assert sum(sizes) < 21_000
    assert state_of(other, "many-999") is AttemptState.PREPARED
    assert state_of(other, "many-0") is None


@pytest.mark.parametrize("size", [0, 7])
def test_a_file_that_a_full_disk_leaves_without_its_time_replaces_no_other_file(
    directory: SpillDirectory, size: int
) -> None:
    """A call renames the old file, and the disk has room for the first bytes of the new file at most."""
    now = [1_000_000]
    worker, other, successor = (registry_in(directory, lambda: now[0]) for _ in range(3))
    assert worker.prepare(prepared("a", 1)) is None
    assert state_of(other, "a") is AttemptState.PREPARED
    now[0] += attempt_registry.MAX_FILE_AGE_MS
    with files_end_at(size):
        for registry in (worker, worker, other, successor):
            with pytest.raises(OSError, match=r"full|too large"):
                registry.find("a")
    for registry in (worker, other, successor):
        assert state_of(registry, "a") is AttemptState.PREPARED
    assert (directory.path / "attempts.journal").read_bytes().count(b"created") == 1
    now[0] += attempt_registry.MAX_FILE_AGE_MS - 1
    assert state_of(worker, "a") is AttemptState.PREPARED
    now[0] += 1
    assert worker.prepare(prepared("b", 2)) is None
    assert [state_of(other, name) for name in "ab"] == [None, AttemptState.PREPARED]


def test_a_registry_exists_if_a_full_disk_prevents_its_new_file(
    directory: SpillDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1_000_000]
    registry = registry_in(directory, lambda: now[0])
    assert not registry.exists
    assert registry.prepare(prepared("a", 1)) is None
    now[0] += attempt_registry.MAX_FILE_AGE_MS
    monkeypatch.setattr(registry, "_read_files", full_disk)  # it creates the file
    with pytest.raises(OSError, match="No space left"):
        registry.find("a")
    successor = registry_in(directory, lambda: now[0])
    assert successor.exists
    assert state_of(successor, "a") is AttemptState.PREPARED


def full_disk() -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_the_memory_begins_at_the_boot_at_the_earliest(
    directory: SpillDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power failure may have taken entries from the file."""
    registry = registry_in(directory, lambda: 1_000_000)
    assert registry.no_entry_missing_since_ms() == attempt_registry._boot_time_ms() > 1_000_000
    monkeypatch.setattr(attempt_registry, "_boot_time_ms", lambda: 0)
    assert registry.no_entry_missing_since_ms() == 1_000_000
