"""The tables of users: quotas over several inputs, full tables, sums."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bruce_mp.config.accounts import TCP_USER
from bruce_mp.slab import layout as lay
from bruce_mp.slab.sender_usage import SenderSums, SenderTable, read_senders
from support.slabs import INPUT_ROW

if TYPE_CHECKING:
    from bruce_mp.slab.file import Slab

ROWS = (INPUT_ROW, INPUT_ROW + 1, INPUT_ROW + lay.INPUT_ROW_COUNT - 1)
LARGEST_UID = 2**32 - 2


def test_usage_of_a_user_sums_all_inputs(slab: Slab) -> None:
    tables = [SenderTable(slab, row, ROWS) for row in ROWS]
    for number, table in enumerate(tables, 1):
        table.record_received(1000, 7, number)
        table.record_received(LARGEST_UID, 7, 1)
        table.record_received(0, 7, 10)
        table.record_received(TCP_USER, 7, 100)
    found = [[table.received_in(user, 7) for user in (1000, LARGEST_UID, 0, TCP_USER, 5)] for table in tables]
    assert found == [[6, 3, 30, 300, 0]] * 3


def test_an_interval_starts_at_zero(slab: Slab) -> None:
    table = SenderTable(slab, INPUT_ROW)
    table.record_received(1000, 7, 5)
    assert (table.received_in(1000, 7), table.received_in(1000, 8)) == (5, 0)
    table.record_received(1000, 8, 2)
    assert (table.received_in(1000, 7), table.received_in(1000, 8)) == (0, 2)


def test_a_successor_continues_the_table(slab: Slab) -> None:
    SenderTable(slab, INPUT_ROW).record_received(1000, 7, 5)
    successor = SenderTable(slab, INPUT_ROW)
    successor.record_received(1000, 7, 1)
    assert successor.received_in(1000, 7) == 6
    assert SenderTable(slab, INPUT_ROW + 1, ROWS).received_in(1000, 7) == 6


def test_a_full_table_evicts_the_least_recently_used_entry(slab: Slab) -> None:
    table = SenderTable(slab, INPUT_ROW)
    for user in range(lay.SENDERS_PER_INPUT):
        table.record_received(user, 10 + user, 1)
    table.record_received(0, 500, 1)  # the user sends again
    table.record_received(9999, 501, 1)
    assert table.received_in(0, 500) == table.received_in(9999, 501) == 1
    assert table.received_in(1, 11) == 0
    assert table.received_in(2, 12) == 1
    assert SenderTable(slab, INPUT_ROW).received_in(9999, 501) == 1


def test_the_last_table_ends_before_the_landing_zone(slab: Slab) -> None:
    before = bytes(slab.view[slab.geometry.landing_at : slab.geometry.landing_slots_at])
    table = SenderTable(slab, ROWS[-1])
    for user in range(lay.SENDERS_PER_INPUT):
        table.add(user, 1, SenderSums(2**64 - 1, 1, 1, 1, 1))
    assert bytes(slab.view[slab.geometry.landing_at : slab.geometry.landing_slots_at]) == before


def test_sums_of_all_inputs_are_read(slab: Slab) -> None:
    for row in ROWS:
        SenderTable(slab, row).add(1000, 1, SenderSums(received=5, not_allowed=1, over_quota=2, refused=3, waited=4))
        SenderTable(slab, row).add(TCP_USER, 1, SenderSums(waited=1))
    assert read_senders(slab) == {1000: SenderSums(15, 3, 6, 9, 12), TCP_USER: SenderSums(waited=3)}
