"""The numbers of messages from each sending user: a table for each input, in the slab.

An input writes only its own table, but reads the tables of all inputs.  So a *quota*, the maximum number of messages
that a user may send within an interval, holds for the whole daemon.  Inputs that receive at the same moment may exceed
a quota together.  A table outlives its process, so the death of a process does not reset a quota.  The tables are not
written in transactions: after a crash, their sums may lack one batch.

A full table reuses the entry of the user that has sent no message for the longest time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from bruce_mp.slab import layout as lay

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bruce_mp.slab.file import Slab

__all__ = ["SenderSums", "SenderTable", "read_senders"]


class SenderSums(NamedTuple):
    """Sums of one user since the creation of the user's entry.

    `received` counts all messages.  `not_allowed` counts messages that were discarded because the user may not
    send, `over_quota` messages that were discarded because of the quota.  `refused` counts refused connections.
    `waited` counts how often the quota suspended the reading from a connection.
    """

    received: int = 0
    not_allowed: int = 0
    over_quota: int = 0
    refused: int = 0
    waited: int = 0


class SenderTable:
    """The table of the input of row `owner`; `inputs` are the rows of all inputs.

    `user` is a uid, or -1 for all TCP clients together.  `interval` is the number of the quota interval.
    """

    def __init__(self, slab: Slab, owner: int, inputs: Sequence[int] = ()) -> None:
        self._longs = slab.longs
        # A table or an entry is given by its index in `slab.longs`.
        self._own_table = _table_at(slab, owner) >> 3
        self._all_tables = [_table_at(slab, row) >> 3 for row in {owner, *inputs}]
        self._entries = {key: entry for entry, key in _read_keys(self._longs, self._own_table) if key}
        """The entry in the own table, by key."""

    def received_in(self, user: int, interval: int) -> int:
        """Return the number of messages that all inputs received from a user within an interval."""
        return sum(self._received_by(table, user + _KEY_OFFSET, interval) for table in self._all_tables)

    def _received_by(self, table: int, key: int, interval: int) -> int:
        entry = self._entries.get(key) if table == self._own_table else _find_entry(self._longs, table, key)
        if entry is None or self._longs[entry + _INTERVAL] != interval:
            return 0
        return self._longs[entry + _COUNT]

    def record_received(self, user: int, interval: int, count: int) -> None:
        """Count messages of a user that were received within an interval."""
        entry = self._entry_of(user + _KEY_OFFSET, interval)
        if self._longs[entry + _INTERVAL] != interval:
            self._longs[entry + _COUNT] = 0
            self._longs[entry + _INTERVAL] = interval
        self._longs[entry + _COUNT] += count

    def add(self, user: int, interval: int, sums: SenderSums) -> None:
        """Add `sums` to the sums of a user; a new entry begins in the quota interval `interval`."""
        first = self._entry_of(user + _KEY_OFFSET, interval) + _SUMS
        for index, amount in enumerate(sums, first):
            if amount:
                self._longs[index] += amount

    def _entry_of(self, key: int, interval: int) -> int:
        entry = self._entries.get(key)
        if entry is None:
            entry = self._create_entry(key, interval)
        return entry

    def _create_entry(self, key: int, interval: int) -> int:
        """Create an entry in place of a free one, or else of the entry with the oldest interval."""
        entries = range(self._own_table, self._own_table + _TABLE_LONGS, _ENTRY_LONGS)
        entry = min(entries, key=lambda each: (self._longs[each] != 0, self._longs[each + _INTERVAL]))
        self._entries.pop(self._longs[entry], None)
        # The loop clears the key first and the key is stored last, so that readers never see sums of another user.
        for index in range(entry, entry + _ENTRY_LONGS):
            self._longs[index] = 0
        self._longs[entry + _INTERVAL] = interval
        self._longs[entry] = key
        self._entries[key] = entry
        return entry


def read_senders(slab: Slab) -> dict[int, SenderSums]:
    """Return the sums over all inputs for each user."""
    found: dict[int, SenderSums] = {}
    for row in lay.INPUT_ROWS:
        for entry, key in _read_keys(slab.longs, _table_at(slab, row) >> 3):
            if key:
                sums = slab.longs[entry + _SUMS : entry + _SUMS + len(SenderSums._fields)].tolist()
                before = found.get(key - _KEY_OFFSET, SenderSums())
                found[key - _KEY_OFFSET] = SenderSums(*map(sum, zip(before, sums, strict=True)))
    return found


_KEY_OFFSET: Final = 2
"""The key of an entry is its user plus this number, because key 0 means a free entry, and a user may be -1."""
_INTERVAL, _COUNT, _SUMS = 1, 2, 3
"""Offsets in an entry: the interval, the number of messages received in it, and the first field of `SenderSums`."""
_ENTRY_LONGS: Final = lay.SENDER_ENTRY >> 3
_TABLE_LONGS: Final = lay.SENDERS_PER_INPUT * _ENTRY_LONGS


def _table_at(slab: Slab, row: int) -> int:
    """Return the file offset of an input's table."""
    return slab.geometry.senders_at + (row - lay.ROW_FIRST_INPUT) * 8 * _TABLE_LONGS


def _read_keys(longs: memoryview[int], table: int) -> list[tuple[int, int]]:
    """Return (entry, key) of each entry of a table."""
    end = table + _TABLE_LONGS
    return list(zip(range(table, end, _ENTRY_LONGS), longs[table:end:_ENTRY_LONGS].tolist(), strict=True))


def _find_entry(longs: memoryview[int], table: int, key: int) -> int | None:
    keys = longs[table : table + _TABLE_LONGS : _ENTRY_LONGS].tolist()
    return table + keys.index(key) * _ENTRY_LONGS if key in keys else None
