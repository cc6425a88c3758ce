"""The page `/counters`: every counter of the daemon, summed over its processes.

All counters are there, also those that are zero, so that a page has the same names for the whole life of a version.
Only answers with error codes that the old daemons had no name for appear when there are any.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from bruce_mp.errors import DiscardReason
from bruce_mp.protocol.error_actions import ERROR_TABLE
from bruce_mp.slab import layout as lay
from bruce_mp.status.header import Page, header_lines, read_header
from bruce_mp.status.rows import row_name
from bruce_mp.telemetry.counters import Counter, discarded

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bruce_mp.slab.file import Slab

__all__ = ["CounterLine", "CountersPage", "counters_plain", "read_counters"]

_NAMED_BEFORE: Final = range(-1, 44)
"""Error codes whose counters are always there."""
_OLD_NAMES: Final = {
    -1: "AckErrorUnknown",
    0: "AckOk",
    6: "AckErrorNotLeaderForPartition",
    14: "AckErrorGroupLoadInProgress",
    15: "AckErrorGroupCoordinatorNotAvailable",
    16: "AckErrorNotCoordinatorForGroup",
}
"""Where the counters' names are older than Kafka's own for the code."""
_ACK_ANY_OTHER: Final = Counter.AckErrorFirst + 136

_LOCATIONS: Final = (
    (0, "[books]"),
    (64, "[input]"),
    (96, "[router]"),
    (160, "[dispatcher]"),
    (352, "[supervisor, status]"),
)
"""From which counter on a part of the daemon has its counters."""


class CounterLine(msgspec.Struct, frozen=True, omit_defaults=True):
    """A counter.  `processes` has the parts of its value, by process; only where it was asked for."""

    location: str
    name: str
    value: int
    processes: dict[str, int] = {}


class CountersPage(Page, frozen=True, kw_only=True):
    """The JSON of `/counters`."""

    counters: list[CounterLine]


class _Listed(NamedTuple):
    number: int
    name: str
    always: bool = True


def _camel(name: str) -> str:
    return "".join(word.capitalize() for word in name.split("_"))


def _listed() -> Iterator[_Listed]:
    for counter in Counter:
        if counter is not Counter.AckErrorFirst:
            yield _Listed(counter, counter.name)
    for reason in DiscardReason:
        yield _Listed(discarded(reason), "MsgDiscarded" + _camel(reason.name))
    for code, row in ERROR_TABLE.items():
        name = _OLD_NAMES.get(code) or "AckError" + _camel(row.name)
        yield _Listed(Counter.AckErrorFirst + 1 + code, name, code in _NAMED_BEFORE)
    yield _Listed(_ACK_ANY_OTHER, "AckErrorUndocumented")


_COUNTERS: Final = tuple(sorted(_listed()))


def read_counters(slab: Slab, now_ms: int, *, by_process: bool = False) -> CountersPage:
    """The page as of now; `by_process` says to show the parts too."""
    rows = [_row_counters(slab, row) for row in range(lay.ROW_COUNT)]
    lines = (_line(listed, rows, by_process=by_process) for listed in _COUNTERS)
    shown = [line for line, listed in zip(lines, _COUNTERS, strict=True) if line.value or listed.always]
    return CountersPage(**read_header(slab, now_ms), counters=shown)


def _row_counters(slab: Slab, row: int) -> list[int]:
    start = (slab.geometry.rows_at + row * lay.ROW_BYTES + lay.ROW_COUNTERS) >> 3
    return slab.longs[start : start + lay.ROW_COUNTER_CAPACITY].tolist()


def _line(listed: _Listed, rows: list[list[int]], *, by_process: bool) -> CounterLine:
    location = [text for first, text in _LOCATIONS if listed.number >= first][-1]
    parts = {row_name(row): counters[listed.number] for row, counters in enumerate(rows) if counters[listed.number]}
    return CounterLine(location, listed.name, sum(parts.values()), parts if by_process else {})


def counters_plain(page: CountersPage) -> str:
    """The plain page: a line for each counter."""
    lines = [f"{line.location}.{line.name}={line.value}" for line in page.counters]
    return "\n".join([*header_lines(page), *lines, ""])
