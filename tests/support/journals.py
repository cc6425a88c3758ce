"""Journals of tests: as they are after a restart of the machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from bruce_mp.journal.journal_file import Journal, read_journal

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["as_of_an_earlier_boot"]

_EARLIER_BOOT: Final = b"00000000-0000-0000-0000-000000000000"


def as_of_an_earlier_boot(path: Path) -> None:
    """Write a journal again, with another boot id."""
    content = read_journal(path)
    assert content is not None
    journal = Journal.create(path.with_suffix(".earlier"))
    journal.add_begin(content.slab_id, _EARLIER_BOOT)
    for key, run in content.runs.items():
        journal.add_run(key, run)
    if content.is_clean:
        journal.add_clean()
    journal.replace(path)
    journal.close()
