"""Counts and reports of undelivered messages, for the start and the shutdown of the daemon.

The messages are in the slab, and in spill files, which take messages of fenced attempts when the attempts' part of the
slab is full. The daemon has not examined the messages in the landing zone, so it does not know their topics.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from bruce_mp.slab.landing_zone import landed_lengths
from bruce_mp.slab.tables import TopicTable
from bruce_mp.telemetry.books import spilled_total
from bruce_mp.telemetry.held import held_by_topic
from bruce_mp.telemetry.logs import plural, printable

if TYPE_CHECKING:
    from pathlib import Path

    from bruce_mp.slab.file import Slab

__all__ = ["Successor", "count_held_by_topic", "has_deliverable", "undelivered_lines"]

LANDED: Final = "(not yet examined)"
SPILLED: Final = "(in spill files)"
"""Names in place of a topic, for messages in the landing zone and in spill files."""


class Successor(NamedTuple):
    """The installed code that starts after the daemon has ended for an upgrade, and the slab that it uses."""

    version: str
    slab: Path
    layout: int


def count_held_by_topic(slab: Slab) -> dict[str, int]:
    """Return the number of held messages of each topic that has held messages.

    Messages in the landing zone count as topic `LANDED`, messages in spill files as topic `SPILLED`.
    """
    table = TopicTable(slab)
    held: dict[str, int] = {}
    for topic, count in held_by_topic(slab).items():
        name = _name_of(table, topic)
        held[name] = held.get(name, 0) + count
    held[LANDED] = len(landed_lengths(slab))
    held[SPILLED] = spilled_total(slab)
    return {name: count for name, count in held.items() if count}


def has_deliverable(held_counts: dict[str, int]) -> bool:
    """Return True if some of these messages can be delivered after the inputs have ended.

    Messages in spill files cannot be delivered then, because only an input reads spill files.
    """
    return bool(held_counts.keys() - {SPILLED})


def undelivered_lines(
    held_counts: dict[str, int], slab: Slab, journal: Path | None, successor: Successor | None = None
) -> list[str]:
    """Return the lines of a report about the messages that are still held when the daemon ends.

    `held_counts` are their numbers by topic. `journal` is the directory of the journal, or None if there is no journal.
    `successor` is None if the daemon does not end for an upgrade.
    """
    return [
        f"{plural(sum(held_counts.values()), 'message')} could not be delivered.",
        f"{_fate_of_held(held_counts, slab, journal, successor)} By topic:",
        *(f"  {printable(topic)}: {count:,}" for topic, count in sorted(held_counts.items())),
    ]


def _fate_of_held(held_counts: dict[str, int], slab: Slab, journal: Path | None, successor: Successor | None) -> str:
    """Return sentences that say from where the next start delivers the messages, or that it does not."""
    if slab.is_at_path:
        uses_slab = successor is None or successor.slab == slab.path
        if successor is not None and uses_slab and successor.layout != slab.layout_version:
            return _fate_in_other_layout(held_counts, slab, journal, successor.version)
        keep = "and its spill files keep" if SPILLED in held_counts else "keeps"
        start = "the next start" if uses_slab else "a start with this slab.path"
        return f"The slab {slab.path} {keep} them, and {start} delivers them."
    if journal:
        fate = f"The next start restores those that the journal {journal} has; send the others again from their source."
    else:
        fate = "They are lost; send them again from their source."
    return (
        f"Someone deleted or replaced the slab {slab.path} while the daemon ran. {fate} Set slab.path to a directory "
        "that no program cleans."
    )


def _fate_in_other_layout(held_counts: dict[str, int], slab: Slab, journal: Path | None, version: str) -> str:
    """Return sentences about the messages in a slab that the release `version`, which starts next, does not read."""
    layout = slab.layout_version
    delivery = f"restores only those that the journal {journal} has" if journal else "does not deliver them"
    loss = " Those in spill files are lost." if SPILLED in held_counts else ""
    return (
        f"bruce {version} does not read layout version {layout}: it renames the slab {slab.path} to "
        f"{slab.path}.version-{layout}-TIME, and {delivery}.{loss} `bruce slab export` of a release that reads this "
        "version exports the file's messages, for `bruce replay`."
    )


def _name_of(table: TopicTable, topic: bytes | int) -> str:
    """Return the name to show for a topic, given by its name or by its number in the slab's topic table."""
    if isinstance(topic, bytes):
        return topic.decode("utf-8", "backslashreplace")
    try:
        return table.name_of(topic).decode("utf-8", "backslashreplace")
    except KeyError:
        return f"(topic number {topic})"
