"""A monitor that was written for the old daemons reads our counters."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from bruce_mp.errors import DiscardReason
from bruce_mp.slab import layout as lay
from bruce_mp.slab.rows import ProcessRow
from bruce_mp.telemetry.counters import Counter, discarded
from support import legacy_monitor
from support.legacy_monitor import CRITICAL, OK, UNKNOWN, WARNING, check_counters

if TYPE_CHECKING:
    from support.status_pages import OfflineStatusPages


def counters(daemon: OfflineStatusPages) -> dict[str, int]:
    return {line["name"]: line["value"] for line in daemon.json("/counters/json")["counters"]}


def raise_one(daemon: OfflineStatusPages, row: int, counter: int, amount: int = 1) -> None:
    ProcessRow(daemon.slab, row).add(counter, amount)


def test_every_counter_that_the_old_monitor_reads_exists(daemon: OfflineStatusPages) -> None:
    assert legacy_monitor.counter_names() <= counters(daemon).keys()


def test_created_minus_destroyed_equals_held(daemon: OfflineStatusPages) -> None:
    daemon.filled.receive(b"news", 12)
    raise_one(daemon, lay.ROW_FIRST_DISPATCHER, Counter.MsgDelivered, 3)
    raise_one(daemon, lay.ROW_ROUTER, discarded(DiscardReason.BAD_TOPIC), 4)
    found = counters(daemon)
    assert (found["MsgCreate"], found["MsgDestroy"]) == (12, 7)


@pytest.mark.parametrize(
    ("row", "counter", "amount", "expected"),
    [
        (lay.ROW_ROUTER, Counter.GetMetadataSuccess, 1, OK),
        (lay.ROW_ROUTER, Counter.GetMetadataFail, 1, CRITICAL),
        (lay.ROW_STATUS, Counter.NoDiscardQuery, 1, CRITICAL),
        (lay.ROW_ROUTER, Counter.BadMetadataResponse, 1, WARNING),
        (lay.ROW_FIRST_DISPATCHER, Counter.BadProduceResponse, 1, WARNING),
        (lay.ROW_FIRST_DISPATCHER, Counter.ConnectorSocketError, 10, OK),
        (lay.ROW_FIRST_DISPATCHER, Counter.ConnectorSocketError, 11, WARNING),
        (lay.ROW_FIRST_DISPATCHER, Counter.ConnectorConnectFail, 101, CRITICAL),
        (lay.ROW_FIRST_INPUT, Counter.MsgReceived, 11, WARNING),
        (lay.ROW_FIRST_INPUT, Counter.MsgReceived, 101, CRITICAL),
    ],
)
def test_the_old_monitor_detects_errors(
    daemon: OfflineStatusPages, row: int, counter: Counter, amount: int, expected: int
) -> None:
    before = counters(daemon)
    raise_one(daemon, lay.ROW_ROUTER, Counter.GetMetadataSuccess)
    raise_one(daemon, row, counter, amount)
    assert check_counters(before, counters(daemon)) == expected


@pytest.mark.parametrize("counter", [discarded(DiscardReason.BUG), Counter.DiscardNoAvailablePartition])
def test_discards_that_the_old_monitor_treats_as_critical_stay_critical(
    daemon: OfflineStatusPages, counter: int
) -> None:
    before = counters(daemon)
    daemon.filled.receive(b"news", 1)
    raise_one(daemon, lay.ROW_ROUTER, Counter.GetMetadataSuccess)
    raise_one(daemon, lay.ROW_ROUTER, counter)
    assert check_counters(before, counters(daemon)) == CRITICAL


def test_missing_metadata_and_a_decreased_counter_are_detected(daemon: OfflineStatusPages) -> None:
    now = counters(daemon)
    assert check_counters(now, now) == CRITICAL
    assert check_counters(now | {"MsgCreate": 5}, now) == UNKNOWN
