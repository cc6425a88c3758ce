"""A monitor that was written for the old daemons reads our counters."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from bruce_mp.errors import DiscardReason
from bruce_mp.slab import layout as lay
from bruce_mp.slab.rows import ProcessRow
from bruce_mp.telemetry.counters import Counter, discarded
from support.legacy_monitor import CRITICAL, OK, SCRIPTS, UNKNOWN, WARNING, CounterMonitor, Limits, check_counters

if TYPE_CHECKING:
    from support.status_pages import OfflineStatusPages


def counters(daemon: OfflineStatusPages) -> dict[str, int]:
    return {line["name"]: line["value"] for line in daemon.json("/counters/json")["counters"]}


def raise_one(daemon: OfflineStatusPages, row: int, counter: int, amount: int = 1) -> None:
    ProcessRow(daemon.slab, row).add(counter, amount)


def test_created_minus_destroyed_equals_held(daemon: OfflineStatusPages) -> None:
    daemon.filled.receive(b"news", 12)
    raise_one(daemon, lay.ROW_FIRST_DISPATCHER, Counter.MsgDelivered, 3)
    raise_one(daemon, lay.ROW_ROUTER, discarded(DiscardReason.BAD_TOPIC), 4)
    found = counters(daemon)
    assert (found["MsgCreate"], found["MsgDestroy"]) == (12, 7)


@pytest.mark.parametrize(
    ("row", "raised", "expected"),
    [
        (lay.ROW_ROUTER, (Counter.GetMetadataSuccess, 1), OK),
        (lay.ROW_ROUTER, (Counter.GetMetadataFail, 1), CRITICAL),
        (lay.ROW_STATUS, (Counter.NoDiscardQuery, 1), CRITICAL),
        (lay.ROW_ROUTER, (Counter.BadMetadataResponse, 1), WARNING),
        (lay.ROW_FIRST_DISPATCHER, (Counter.BadProduceResponse, 1), WARNING),
        (lay.ROW_FIRST_DISPATCHER, (Counter.ConnectorSocketError, 10), OK),
        (lay.ROW_FIRST_DISPATCHER, (Counter.ConnectorSocketError, 11), WARNING),
        (lay.ROW_FIRST_DISPATCHER, (Counter.ConnectorConnectFail, 101), CRITICAL),
        (lay.ROW_ROUTER, (Counter.MetadataResponseReadTimeout, 11), WARNING),
        (lay.ROW_ROUTER, (Counter.MetadataResponseReadLostTcpConnection, 101), CRITICAL),
        (lay.ROW_FIRST_INPUT, (Counter.MsgReceived, 11), WARNING),
        (lay.ROW_FIRST_INPUT, (Counter.MsgReceived, 101), CRITICAL),
    ],
)
@pytest.mark.parametrize("script", SCRIPTS)
def test_the_old_scripts_detect_errors(
    daemon: OfflineStatusPages, script: str, row: int, raised: tuple[Counter, int], expected: int
) -> None:
    before = counters(daemon)
    raise_one(daemon, row, *raised)
    assert check_counters(before, counters(daemon), SCRIPTS[script]) == expected


@pytest.mark.parametrize("counter", [discarded(DiscardReason.BUG), Counter.DiscardNoAvailablePartition])
@pytest.mark.parametrize("script", SCRIPTS)
def test_discards_that_the_old_scripts_treat_as_critical_stay_critical(
    daemon: OfflineStatusPages, script: str, counter: int
) -> None:
    before = counters(daemon)
    daemon.filled.receive(b"news", 1)
    raise_one(daemon, lay.ROW_ROUTER, counter)
    assert check_counters(before, counters(daemon), SCRIPTS[script]) == CRITICAL


@pytest.mark.parametrize("script", SCRIPTS)
def test_the_old_scripts_detect_old_metadata(daemon: OfflineStatusPages, script: str) -> None:
    monitor = CounterMonitor(SCRIPTS[script], Limits(), interval_s=60)
    for fetches, expected in ((1, OK), (1, OK), (0, OK), (0, CRITICAL), (1, OK)):
        daemon.now_ms += 40_000
        raise_one(daemon, lay.ROW_ROUTER, Counter.GetMetadataSuccess, fetches)
        assert monitor.check(lambda: daemon.json("/counters/json")) == expected


def test_a_decreased_counter_is_unknown(daemon: OfflineStatusPages) -> None:
    now = counters(daemon)
    assert check_counters(now, now) == OK
    assert check_counters(now | {"MsgCreate": 5}, now) == UNKNOWN
