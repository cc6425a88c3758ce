"""The journal file: a power failure may leave any part of the last writes, and costs none of the synced runs."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bruce_mp.journal.journal_file import AttemptKey, Journal, JournalContent, JournaledRun, RunKey, read_journal
from support.examples import examples

if TYPE_CHECKING:
    from pathlib import Path

BOOT: Final = b"11111111-2222-3333-4444-555555555555"
PAGE: Final = 4096


def run(number: int, size: int = 100) -> tuple[RunKey, JournaledRun]:
    return RunKey(number, 1, 64), JournaledRun(b"topic", 1, random.Random(number).randbytes(size))


def fenced(attempt: int, number: int) -> tuple[RunKey, JournaledRun]:
    key, plain = run(number)
    return key, plain._replace(attempt=AttemptKey(3, attempt))


def content_of(path: Path) -> JournalContent:
    content = read_journal(path)
    assert content is not None
    return content


def write(path: Path, *numbers: int) -> Journal:
    journal = Journal.create(path)
    journal.add_begin(7, BOOT)
    for number in numbers:
        journal.add_run(*run(number))
    journal.sync()
    return journal


def test_a_journal_reads_back_as_written(tmp_path: Path) -> None:
    journal = write(tmp_path / "journal", 1, 2, 3)
    journal.add_settled([run(2)[0]])
    journal.sync()
    content = read_journal(tmp_path / "journal")
    assert content is not None
    assert (content.slab_id, content.boot_id, content.is_clean, content.damaged_bytes) == (7, BOOT, False, 0)
    assert content.runs == dict([run(1), run(3)])
    assert content.message_count == 2


def test_the_last_cluster_is_read(tmp_path: Path) -> None:
    journal = write(tmp_path / "journal", 1)
    assert not content_of(tmp_path / "journal").cluster_id
    for cluster_id in ("cluster-a", "cluster-b"):
        journal.add_cluster(cluster_id)
        journal.sync()
        assert content_of(tmp_path / "journal").cluster_id == cluster_id


def test_a_clean_end_holds_until_the_next_begin(tmp_path: Path) -> None:
    journal = write(tmp_path / "journal", 1)
    journal.add_clean()
    journal.sync()
    content = read_journal(tmp_path / "journal")
    assert content is not None
    assert content.is_clean
    journal = Journal.open(tmp_path / "journal")
    journal.add_begin(7, BOOT)
    journal.sync()
    content = read_journal(tmp_path / "journal")
    assert content is not None
    assert not content.is_clean
    assert content.runs == dict([run(1)])


def test_a_missing_or_empty_file_has_no_content(tmp_path: Path) -> None:
    assert read_journal(tmp_path / "journal") is None
    Journal.create(tmp_path / "journal")
    assert read_journal(tmp_path / "journal") is None


def test_a_damaged_run_does_not_hide_the_next_one(tmp_path: Path) -> None:
    write(tmp_path / "journal", 1, 2, 3)
    data = (tmp_path / "journal").read_bytes()
    damaged = data.replace(bytes(run(2)[1].data), bytes(100))
    (tmp_path / "journal").write_bytes(damaged)
    content = read_journal(tmp_path / "journal")
    assert content is not None
    assert content.runs == dict([run(1), run(3)])
    assert content.damaged_bytes > 100


def test_entries_inside_a_message_are_not_applied(tmp_path: Path) -> None:
    """A client sends an entry as its message, and the power failure loses the beginning of the message's run."""
    path, forged = tmp_path / "journal", Journal.create(tmp_path / "forged")
    forged.add_begin(7, BOOT)
    forged.sync()
    begin = forged.size
    forged.add_settled([run(1)[0]])
    forged.sync()
    entries = (tmp_path / "forged").read_bytes()
    for value in (entries, entries[begin:]):
        journal = write(path, 1)
        durable = journal.size
        journal.add_run(RunKey(2, 1, 64), JournaledRun(b"topic", 1, value))
        journal.sync()
        journal.close()
        image = path.read_bytes()
        start = image.index(value, durable)
        path.write_bytes(image[:durable] + bytes(start - durable) + image[start:])
        assert content_of(path).runs == dict([run(1)])


def test_a_journal_without_a_seed_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Earlier versions had no seed in BEGIN, and no seed in the checksums."""
    monkeypatch.setattr("bruce_mp.journal.journal_file._SEED_BYTES", 0)
    write(tmp_path / "journal", 1, 2)
    monkeypatch.undo()
    assert content_of(tmp_path / "journal").runs == dict([run(1), run(2)])
    later = Journal.open(tmp_path / "journal")
    later.add_run(*run(3))
    later.sync()
    assert content_of(tmp_path / "journal").runs == dict([run(1), run(2), run(3)])


def test_an_attempt_without_its_commit_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    journal = write(path, 1)
    for each in (fenced(1, 2), fenced(1, 3), fenced(2, 4)):
        journal.add_run(*each)
    journal.sync()
    assert (content_of(path).runs, content_of(path).incomplete_count) == (dict([run(1)]), 3)
    journal.add_commit()
    journal.sync()
    found = dict([run(1), fenced(1, 2), fenced(1, 3), fenced(2, 4)])
    assert (content_of(path).runs, content_of(path).incomplete_count) == (found, 0)


def test_a_damaged_run_leaves_out_its_attempt_and_no_other(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    journal = write(path, 1)
    for each in (fenced(1, 2), fenced(2, 3), fenced(1, 4)):
        journal.add_run(*each)
    journal.add_commit()
    journal.sync()
    path.write_bytes(path.read_bytes().replace(bytes(fenced(1, 4)[1].data), bytes(100)))
    assert (content_of(path).runs, content_of(path).incomplete_count) == (dict([run(1), fenced(2, 3)]), 1)


def test_a_commit_completes_no_attempt_of_an_earlier_recording(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    journal = write(path, 1)
    journal.add_run(*fenced(1, 2))
    journal.sync()
    later = Journal.open(path)
    later.add_run(*fenced(2, 3))
    later.add_commit()
    later.add_run(*fenced(1, 4))
    later.add_commit()
    later.sync()
    found = dict([run(1), fenced(2, 3), fenced(1, 4)])
    assert (content_of(path).runs, content_of(path).incomplete_count) == (found, 1)


def test_a_file_that_ends_anywhere_has_whole_attempts_only(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    journal = write(path, 1)
    durable = path.stat().st_size
    for each in (fenced(1, 2), fenced(1, 3)):
        journal.add_run(*each)
    journal.add_settled([run(1)[0]])
    journal.add_commit()
    journal.sync()
    data = path.read_bytes()
    found = []
    for end in range(durable, len(data) + 1):
        path.write_bytes(data[:end])
        found.append(set(content_of(path).runs) - {run(1)[0]})
    assert found == [set()] * (len(found) - 1) + [{fenced(1, 2)[0], fenced(1, 3)[0]}]


@pytest.mark.exhaustive
@examples(100)
@given(
    synced=st.lists(st.integers(1, 9000), max_size=6),
    unsynced=st.lists(st.integers(1, 9000), max_size=6),
    data=st.data(),
)
def test_any_part_of_the_unsynced_pages_leaves_the_synced_runs(
    tmp_path: Path, synced: list[int], unsynced: list[int], data: st.DataObject
) -> None:
    path = tmp_path / "journal"
    journal = write(path)
    expected = [run(number, size) for number, size in enumerate(synced)]
    for each in expected:
        journal.add_run(*each)
    journal.sync()
    durable = path.stat().st_size
    later = [run(100 + number, size) for number, size in enumerate(unsynced)]
    for each in later:
        journal.add_run(*each)
    journal.sync()
    journal.close()
    image = bytearray(path.read_bytes())
    for page in range(durable // PAGE, -(-len(image) // PAGE)):
        if data.draw(st.booleans()):
            start, stop = max(durable, page * PAGE), min(len(image), (page + 1) * PAGE)
            image[start:stop] = bytes(stop - start)
    path.write_bytes(image[: data.draw(st.integers(durable, len(image)))])
    content = read_journal(path)
    assert content is not None
    assert list(content.runs.items())[: len(expected)] == expected
    assert all(each in later for each in list(content.runs.items())[len(expected) :])
