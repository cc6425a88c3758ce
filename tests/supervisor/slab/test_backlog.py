"""The lines about held messages at the end of the daemon."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from bruce_mp.supervisor.slab.backlog import SPILLED, Successor, count_held_by_topic, undelivered_lines
from support.filled_slab import FilledSlab

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bruce_mp.slab.file import Slab


@pytest.fixture
def slab(tmp_path: Path) -> Iterator[Slab]:
    filled = FilledSlab(tmp_path / "slab", known=(b"clicks",))
    filled.receive(b"clicks", 3)
    yield filled.slab
    filled.close()


def test_the_next_start_delivers_messages_of_a_slab_at_its_path(slab: Slab) -> None:
    held = count_held_by_topic(slab)
    count, fate, *topics = undelivered_lines(held, slab, None)
    assert count == "3 messages could not be delivered."
    assert fate == f"The slab {slab.path} keeps them, and the next start delivers them. By topic:"
    assert topics == ["  clicks: 3"]
    assert "and its spill files keep them" in undelivered_lines({**held, SPILLED: 1}, slab, None)[1]


@pytest.mark.parametrize("journal", [None, Path("/var/lib/journal")])
@pytest.mark.parametrize("is_replaced", [False, True])
def test_without_its_file_only_the_journal_has_messages(slab: Slab, journal: Path | None, *, is_replaced: bool) -> None:
    slab.path.unlink()
    if is_replaced:
        slab.path.write_bytes(b"another file")
    fate = undelivered_lines(count_held_by_topic(slab), slab, journal)[1]
    assert fate.startswith(f"Someone deleted or replaced the slab {slab.path} while the daemon ran.")
    assert ("They are lost" in fate) == (journal is None)
    assert ("The next start restores those that the journal /var/lib/journal has" in fate) == (journal is not None)


@pytest.mark.parametrize("journal", [None, Path("/var/lib/journal")])
def test_after_an_upgrade_to_another_layout_only_the_journal_has_messages(slab: Slab, journal: Path | None) -> None:
    held = {**count_held_by_topic(slab), SPILLED: 1}
    fate = undelivered_lines(held, slab, journal, Successor("1.0.0", slab.path, layout=1))[1]
    assert fate.startswith(f"bruce 1.0.0 does not read layout version 2: it renames the slab {slab.path} to ")
    assert f"{slab.path}.version-2-TIME" in fate
    assert ("does not deliver them" in fate) == (journal is None)
    assert ("restores only those that the journal /var/lib/journal has" in fate) == (journal is not None)
    assert "Those in spill files are lost. `bruce slab export` of a release that reads this version" in fate


def test_after_an_upgrade_with_another_path_a_start_with_the_old_path_delivers(slab: Slab) -> None:
    successor = Successor("9.0.0", Path("/elsewhere/slab"), layout=2)
    fate = undelivered_lines(count_held_by_topic(slab), slab, None, successor)[1]
    assert fate == f"The slab {slab.path} keeps them, and a start with this slab.path delivers them. By topic:"
