"""The page `/brokers`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import msgspec

from bruce_mp import __version__
from bruce_mp.slab import layout as lay
from bruce_mp.slab.layout import RunState, state_word
from bruce_mp.slab.rows import ProcessRow
from bruce_mp.slab.runs import split_run
from bruce_mp.telemetry.broker_status import (
    ALL_PARTITIONS,
    CONNECTED,
    FAILED,
    NO_LEADER,
    BrokerStatus,
    PartitionError,
    PausedScope,
    RouterStatus,
)
from bruce_mp.telemetry.clock import utc_text
from bruce_mp.telemetry.counters import Counter
from bruce_mp.telemetry.stalls import PartitionStall
from support.filled_slab import NOW_MS
from support.slabs import set_state

if TYPE_CHECKING:
    from support.status_pages import OfflineStatusPages

S = NOW_MS // 1000
HEADER = {"pid": os.getpid(), "version": __version__, "since": S - 100, "now": S}
NASTY = b'\xff"\n'
NOBODY: dict[str, object] = {
    "dispatcher": None,
    "connection": "unknown",
    "connection_since": None,
    "delivery": "not known yet",
    "requests_in_flight": 0,
    "in_flight": 0,
    "queued": 0,
    "oldest_ms": None,
    "retries": 0,
    "last_error": "",
    "last_error_at": None,
    "troubles": [],
}


def give_slot(daemon: OfflineStatusPages, node: int, slot: int) -> None:
    at = daemon.slab.row_at(lay.ROW_FIRST_DISPATCHER + slot) + lay.ROW_NODE
    daemon.slab.words[at >> 2] = node + 1


def router(*paused: PausedScope, failing_since_ms: int | None = None) -> RouterStatus:
    brokers = ((1, "kafka1", 9092), (2, "kafka2", 9093))
    return RouterStatus(brokers, failing_since_ms, "Refused." if failing_since_ms else "", paused, len(paused))


TROUBLE = PartitionError(NASTY, 4, "NOT_ENOUGH_REPLICAS", NOW_MS - 9000)


def failed(slot: int = 3) -> BrokerStatus:
    return BrokerStatus(
        slot, 1, "kafka1", 9092, FAILED, NOW_MS - 2000, 2, "It hung up.", NOW_MS - 2000, False, (TROUBLE,)
    )


def test_the_page_is_empty_before_the_first_status(daemon: OfflineStatusPages) -> None:
    assert daemon.json("/brokers/json") == HEADER | {
        "metadata_failing_since": None,
        "metadata_error": "",
        "brokers": [],
        "paused": [],
        "paused_count": None,
    }


def test_a_broker_without_partitions_is_listed(daemon: OfflineStatusPages) -> None:
    daemon.broker_status.record([router()], NOW_MS)
    assert daemon.json("/brokers/json")["brokers"] == [
        {"node": 1, "address": "kafka1:9092"} | NOBODY,
        {"node": 2, "address": "kafka2:9093"} | NOBODY,
    ]


def test_the_page_lists_a_broker_with_its_dispatcher(daemon: OfflineStatusPages) -> None:
    give_slot(daemon, 1, 3)
    for counter in (Counter.ConnectorGotResendAck, Counter.ConnectorGotPauseAck):
        ProcessRow(daemon.slab, lay.ROW_FIRST_DISPATCHER + 3).add(counter, 4)
    for count, state in ((2, RunState.QUEUED), (3, RunState.IN_FLIGHT), (5, RunState.ASSIGNED), (7, RunState.ROUTED)):
        segments = daemon.filled.receive(b"news", count, state)
        set_state(daemon.slab, segments, state_word(state, 3))
    daemon.broker_status.record([router(), failed()], NOW_MS)
    daemon.steady_ms += 1500
    daemon.now_ms += 1500
    assert daemon.json("/brokers/json")["brokers"][0] == {
        "node": 1,
        "address": "kafka1:9092",
        "dispatcher": "dispatcher-3",
        "connection": "failed",
        "connection_since": S - 2,
        "delivery": "at least once",
        "requests_in_flight": 2,
        "in_flight": 3,
        "queued": 7,
        "oldest_ms": 1500,
        "retries": 8,
        "last_error": "It hung up.",
        "last_error_at": S - 2,
        "troubles": [{"topic": '\\xff"\\x0a', "partition": 4, "error": "NOT_ENOUGH_REPLICAS", "since": S - 9}],
    }


def test_a_brokers_row_counts_what_waits_for_it_in_the_router(daemon: OfflineStatusPages) -> None:
    give_slot(daemon, 1, 3)
    set_state(daemon.slab, daemon.filled.receive(b"news", 2, RunState.QUEUED), state_word(RunState.QUEUED, 3))
    stalls = (
        PartitionStall(b"news", 0, 1, 5, NOW_MS - 700, (0, 0, 0, 0)),
        PartitionStall(b"news", 1, 1, 6, NOW_MS - 4000, (0, 0, 0, 0)),
        PartitionStall(b"news", 2, 2, 7, NOW_MS - 5000, (0, 0, 0, 0)),
        PartitionStall(b"news", 3, None, 8, NOW_MS - 9000, (0, 0, 0, 0)),
    )
    daemon.broker_status.record([msgspec.structs.replace(router(), stalls=stalls), failed()], NOW_MS)
    lines = {line["node"]: line for line in daemon.json("/brokers/json")["brokers"]}
    assert (lines[1]["queued"], lines[1]["oldest_ms"]) == (13, 4000)
    assert (lines[2]["queued"], lines[2]["oldest_ms"]) == (7, 5000)


def test_a_message_that_waits_in_the_router_has_its_age_since_the_arrival(daemon: OfflineStatusPages) -> None:
    (segment,) = daemon.filled.receive(b"news", 2, RunState.ROUTED)
    stall = PartitionStall(b"news", 0, 1, 2, NOW_MS + 3000, segment[:4])
    daemon.steady_ms += 5000
    daemon.broker_status.record([msgspec.structs.replace(router(), stalls=(stall,))], daemon.steady_ms)
    assert daemon.json("/brokers/json")["brokers"][0]["oldest_ms"] == 5000


def test_a_paused_dispatcher_without_a_broker_is_listed_by_its_slot(daemon: OfflineStatusPages) -> None:
    daemon.broker_status.record([router(PausedScope(3, b"", -1, "waiting", NOW_MS))], NOW_MS)
    assert [each["scope"] for each in daemon.json("/brokers/json")["paused"]] == ["dispatcher-3"]


def test_each_record_of_a_split_run_counts_for_its_dispatcher(daemon: OfflineStatusPages) -> None:
    give_slot(daemon, 1, 3)
    (segment,) = daemon.filled.receive(b"news", 4, RunState.QUEUED)
    split_run(daemon.slab, segment.chunk, segment.run)
    at = (daemon.slab.chunk_at(segment.chunk) + segment.first + lay.RECORD_WORD) >> 2
    daemon.slab.words[at] = state_word(RunState.IN_FLIGHT, 3)
    (line,) = daemon.json("/brokers/json")["brokers"]
    assert (line["in_flight"], line["queued"]) == (1, 0)


def test_a_reassigned_dispatchers_status_is_not_shown_for_its_former_broker(daemon: OfflineStatusPages) -> None:
    give_slot(daemon, 2, 3)
    daemon.broker_status.record([failed()], NOW_MS)
    lines = {line["node"]: line for line in daemon.json("/brokers/json")["brokers"]}
    assert (lines[1]["dispatcher"], lines[2]["connection"]) == (None, "unknown")


def test_paused_scopes_have_reasons(daemon: OfflineStatusPages) -> None:
    give_slot(daemon, 1, 3)
    since = NOW_MS - 4000
    paused = (
        PausedScope(3, b"", -1, "waiting", since),
        PausedScope(None, NASTY, 4, "handing back", since),
        PausedScope(None, b"news", 0, "waiting", since),
        PausedScope(None, b"news", 1, NO_LEADER, since),
        PausedScope(None, NASTY, ALL_PARTITIONS, NO_LEADER, since),
    )
    daemon.broker_status.record([failed()], NOW_MS)
    daemon.broker_status.record([router(*paused, failing_since_ms=NOW_MS - 3000)], NOW_MS)
    page = daemon.json("/brokers/json")
    assert (page["metadata_failing_since"], page["metadata_error"], page["paused_count"]) == (S - 3, "Refused.", 5)
    assert [(each["scope"], each["state"], each["since"], each["reason"]) for each in page["paused"]] == [
        ("broker 1", "waiting", S - 4, "It hung up."),
        ('partition \\xff"\\x0a-4', "handing back", S - 4, "NOT_ENOUGH_REPLICAS"),
        ("partition news-0", "waiting", S - 4, "its leader moved, or its broker is paused"),
        ("partition news-1", "no leader", S - 4, "the cluster reports none: check the brokers that have its replicas"),
        ('topic \\xff"\\x0a', "no leader", S - 4, "the cluster reports none: check the brokers that have its replicas"),
    ]


def test_the_plain_page_lists_brokers_and_pauses(daemon: OfflineStatusPages) -> None:
    give_slot(daemon, 1, 3)
    paused = PausedScope(3, b"", -1, "waiting", NOW_MS - 4000)
    daemon.broker_status.record([failed(), router(paused, failing_since_ms=NOW_MS - 3000)], NOW_MS)
    text = daemon.text("/brokers/plain")
    at = f"{S - 2} {utc_text(S - 2)}"
    assert text.splitlines()[5:] == [
        f"metadata requests fail since: {S - 3} {utc_text(S - 3)}: Refused.",
        "",
        "broker 1 at kafka1:9092",
        "    dispatcher: dispatcher-3",
        f"    connection: failed since {at}",
        "    delivery: at least once",
        "    requests in flight: 2",
        "    in flight: 0",
        "    queued: 0",
        "    oldest message ms: -",
        "    retries: 0",
        f"    last error: {at}: It hung up.",
        f'    trouble: partition \\xff"\\x0a-4: NOT_ENOUGH_REPLICAS since {S - 9} {utc_text(S - 9)}',
        "",
        "broker 2 at kafka2:9093",
        "    dispatcher: none: it leads no partition",
        "    connection: unknown",
        "    delivery: not known yet",
        "    requests in flight: 0",
        "    in flight: 0",
        "    queued: 0",
        "    oldest message ms: -",
        "    retries: 0",
        "",
        "paused: 1",
        f"    broker 1: waiting since {S - 4} {utc_text(S - 4)}: It hung up.",
    ]


def test_the_oldest_reasons_are_dropped(daemon: OfflineStatusPages) -> None:
    for number in (*range(1000), 0, *range(1000, 1100)):
        trouble = PartitionError(b"t", number, "E", NOW_MS)
        said = BrokerStatus(0, 1, "h", 1, CONNECTED, NOW_MS, 0, "", 0, True, (trouble,))
        daemon.broker_status.record([said], NOW_MS)
    errors = daemon.broker_status.latest(NOW_MS).last_errors
    assert [partition for _, partition in errors] == [*range(101, 1000), 0, *range(1000, 1100)]
