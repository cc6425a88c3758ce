"""Journals of tests: their content, and slabs and journals as they are after a power failure."""

from __future__ import annotations

import mmap
from contextlib import closing
from typing import TYPE_CHECKING, Final

from bruce_mp.journal.journal_file import Journal, read_journal
from bruce_mp.journal.recorder import JOURNAL, JournalRecorder
from bruce_mp.slab import layout as lay
from bruce_mp.slab.file import Slab
from bruce_mp.slab.runs import Record

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator
    from pathlib import Path

    from bruce_mp.journal.journal_file import JournaledRun, RunKey

__all__ = [
    "as_of_an_earlier_boot",
    "held_runs",
    "journal_of",
    "journaled_messages",
    "journaled_runs",
    "lose",
    "tear",
    "values_in",
]

_EARLIER_BOOT: Final = b"00000000-0000-0000-0000-000000000000"


def journal_of(slab: Path) -> Path:
    """Return the journal of a slab."""
    return slab.with_name("slab.journal") / JOURNAL


def journaled_messages(slab: Path) -> int:
    """Return the number of messages that the journal of a slab has."""
    return sum(run.record_count for run in journaled_runs(slab).values())


def journaled_runs(slab: Path) -> dict[RunKey, JournaledRun]:
    """Return the runs that the journal of a slab has."""
    content = read_journal(journal_of(slab))
    return content.runs if content else {}


def held_runs(slab: Path) -> set[RunKey]:
    """Return the keys of the runs that a slab holds."""
    directory = slab.with_name("slab.held")
    with closing(Slab(slab)) as opened:
        JournalRecorder(opened, directory).rewrite()
    content = read_journal(directory / JOURNAL)
    return set(content.runs) if content else set()


def values_in(run: JournaledRun) -> Iterator[bytes]:
    """Yield the values of a run's messages."""
    at = 0
    for _ in range(run.record_count):
        record = Record._make(lay.RECORD.unpack_from(run.data, at))
        value_at = at + lay.RECORD_HEADER + record.key_length
        yield bytes(run.data[value_at : value_at + record.value_length])
        at += record.size


def lose(slab: Path, _: random.Random) -> None:
    """Lose the slab as a reboot does with one in memory."""
    slab.unlink()


def tear(slab: Path, rng: random.Random) -> None:
    """Lose a random half of the slab's pages, and restart the machine."""
    with slab.open("r+b") as file:
        for at in range(0, slab.stat().st_size, mmap.PAGESIZE):
            if rng.random() < 0.5:
                file.seek(at)
                file.write(bytes(mmap.PAGESIZE))
    as_of_an_earlier_boot(journal_of(slab))


def as_of_an_earlier_boot(path: Path) -> None:
    """Write a journal again, with another boot id."""
    content = read_journal(path)
    assert content is not None
    journal = Journal.create(path.with_suffix(".earlier"))
    journal.add_begin(content.slab_id, _EARLIER_BOOT)
    journal.add_cluster(content.cluster_id)
    for key, run in content.runs.items():
        journal.add_run(key, run)
    journal.add_commit()
    if content.is_clean:
        journal.add_clean()
    journal.replace(path)
    journal.close()
