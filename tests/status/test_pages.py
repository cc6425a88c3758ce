"""Content of the pages, read through the application."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from bruce_mp import __version__
from bruce_mp.discards.events import DiscardEvent, DuplicateEvent
from bruce_mp.errors import DiscardReason
from bruce_mp.protocol.kafka.error_actions import ERROR_TABLE
from bruce_mp.slab import layout as lay
from bruce_mp.slab.layout import RunState
from bruce_mp.slab.rows import ProcessRow
from bruce_mp.slab.runs import split_run
from bruce_mp.status.books_check import Verdict
from bruce_mp.status.pages.queues import QUEUE_OF
from bruce_mp.telemetry.clock import utc_text
from bruce_mp.telemetry.counters import Counter, discarded
from support.doc_pages import PAGES, ROOT
from support.filled_slab import NOW_MS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from support.status_pages import OfflineStatusPages

NASTY = b'\xff"\\\n\x00<b>]'
NASTY_TEXT = r'\xff"\\\x0a\x00<b>]'
SINCE = NOW_MS // 1000 - 100
HEADER = {"pid": os.getpid(), "version": __version__, "since": SINCE, "now": NOW_MS // 1000}
JSON_PAGES = ("server_info", "counters", "discards", "queues", "metadata_fetch_time", "processes", "books", "overview")
PLAIN_PAGES = JSON_PAGES[:5]
NAMED_PAGE = re.compile(r"[ (`]/([a-z_]+)(?=[`?;,.) ]|$)", re.MULTILINE)
NO_PAGES = {"json", "plain", "proc", "root", "run", "msg_debug"}
"""Directories that the documents name, the suffixes of the forms, and the prefix of the message debugging paths."""


def named_in() -> Iterator[tuple[str, str]]:
    """Yield every text for users with its place: the strings of the code, and the documents."""
    for path in (ROOT / "bruce_mp").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield str(path), node.value
    for path in (*PAGES, ROOT / "CHANGELOG.md", *(ROOT / "deploy" / "prometheus").iterdir()):
        yield str(path), path.read_text()


# --- all pages --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in JSON_PAGES if name != "metadata_fetch_time"])
def test_every_json_page_identifies_the_daemon(daemon: OfflineStatusPages, name: str) -> None:
    page = daemon.json(f"/{name}/json")
    assert {key: page[key] for key in HEADER} == HEADER


@pytest.mark.parametrize("name", PLAIN_PAGES)
def test_every_plain_page_identifies_the_daemon(daemon: OfflineStatusPages, name: str) -> None:
    lines = daemon.text(f"/{name}/plain").splitlines()
    since = f"since: {SINCE} {utc_text(SINCE)}"
    assert lines[:3] == [f"pid: {os.getpid()}", f"version: {__version__}", since]


def test_the_bare_name_serves_the_plain_page_or_else_json(daemon: OfflineStatusPages) -> None:
    rules = {rule.rule for rule in daemon.client.application.url_map.iter_rules()}
    names = {rule.removesuffix("/json") for rule in rules if rule.endswith("/json")}
    assert len(names) == len(JSON_PAGES) + len({"brokers", "certificates", "compression", "held", "history", "senders"})
    for name in names:
        if f"{name}/plain" in rules:
            assert daemon.text(name) == daemon.text(f"{name}/plain")
        else:
            assert daemon.json(name).keys() == daemon.json(f"{name}/json").keys()


def test_the_bare_name_accepts_a_query(daemon: OfflineStatusPages) -> None:
    assert [line["topic"] for line in daemon.json("/overview?topic=nobody")["topics"]["shown"]] == []


def test_every_page_named_in_messages_and_documents_exists(daemon: OfflineStatusPages) -> None:
    named = {name: place for place, text in named_in() for name in NAMED_PAGE.findall(text)}
    assert named.keys() >= {"healthz", "discards", "brokers", "held"}
    missing = {
        f"/{name} in {place}"
        for name, place in named.items()
        if name not in NO_PAGES and daemon.client.get(f"/{name}").status_code == 404
    }
    assert missing == set()


def test_a_request_is_counted(daemon: OfflineStatusPages) -> None:
    daemon.client.get("/books/json")
    daemon.client.get("/nowhere")
    assert daemon.counted == [Counter.MongooseHttpRequest] * 2


@pytest.mark.parametrize(
    "path",
    ["/nowhere", "/counters/", "/counters/json/", "/books/plain", "/static/index.html", "/page.py", "/index.html"],
)
def test_an_unknown_path_is_not_found(daemon: OfflineStatusPages, path: str) -> None:
    response = daemon.client.get(path)
    assert (response.status_code, response.mimetype) == (404, "text/plain")
    assert "/ lists" in response.get_data(as_text=True)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/counters/json"),
        ("POST", "/"),
        ("DELETE", "/books/json"),
        ("OPTIONS", "/"),
        ("GET", "/metadata_update"),
    ],
)
def test_a_wrong_method_is_refused(daemon: OfflineStatusPages, method: str, path: str) -> None:
    response = daemon.client.open(path, method=method)
    assert (response.status_code, response.mimetype) == (405, "text/plain")
    assert response.headers["Allow"]
    assert daemon.refreshes == 0


def test_a_refused_post_names_all_pages_that_take_one(daemon: OfflineStatusPages) -> None:
    rules = daemon.client.application.url_map.iter_rules()
    pages = {rule.rule.removeprefix("/sys").split("/")[1] for rule in rules if "POST" in (rule.methods or ())}
    text = daemon.client.post("/counters").text
    assert all(f"/{page}" in text for page in pages), (pages, text)


def test_responses_forbid_caching(daemon: OfflineStatusPages) -> None:
    assert daemon.client.get("/books/json").headers["Cache-Control"] == "no-store"


@pytest.mark.parametrize(
    ("found", "delivery"), [(0, "not known yet"), (1, "exactly once"), (2, "at least once"), (3, "not known yet")]
)
def test_server_info_states_the_delivery_guarantee(daemon: OfflineStatusPages, found: int, delivery: str) -> None:
    daemon.slab.words[lay.SUPER_IDEMPOTENCE >> 2] = found
    assert daemon.json("/server_info/json")["delivery"] == delivery
    assert daemon.text("/server_info/plain").splitlines()[4] == f"delivery: {delivery}"


# --- counters ---------------------------------------------------------------------------------------------------------


def counters(daemon: OfflineStatusPages, query: str = "") -> dict[str, int]:
    return {line["name"]: line["value"] for line in daemon.json(f"/counters/json{query}")["counters"]}


def test_counters_are_summed_over_processes(daemon: OfflineStatusPages) -> None:
    ProcessRow(daemon.slab, lay.ROW_FIRST_DISPATCHER).add(Counter.SerializeMsg, 3)
    ProcessRow(daemon.slab, lay.ROW_FIRST_DISPATCHER + 4).add(Counter.SerializeMsg, 4)
    assert counters(daemon)["SerializeMsg"] == 7
    lines = daemon.json("/counters/json?by=process")["counters"]
    line = next(line for line in lines if line["name"] == "SerializeMsg")
    assert line == {
        "location": "[dispatcher]",
        "name": "SerializeMsg",
        "value": 7,
        "processes": {"dispatcher-0": 3, "dispatcher-4": 4},
    }


def test_every_counter_appears_once_and_starts_at_zero(daemon: OfflineStatusPages) -> None:
    lines = daemon.json("/counters/json")["counters"]
    names = [line["name"] for line in lines]
    assert len(set(names)) == len(names)
    assert {line["value"] for line in lines} == {0}
    assert set(names) >= {counter.name for counter in Counter} - {"AckErrorFirst", "AckDelayFirst", "StreamConnections"}
    assert "processes" not in lines[0]


def test_discards_have_a_counter_for_each_reason(daemon: OfflineStatusPages) -> None:
    ProcessRow(daemon.slab, lay.ROW_ROUTER).add(discarded(DiscardReason.NO_AVAILABLE_PARTITIONS), 2)
    page = counters(daemon)
    assert page["MsgDiscardedNoAvailablePartitions"] == 2
    assert sum(name.startswith("MsgDiscarded") for name in page) == len(DiscardReason)


@pytest.mark.parametrize(
    ("code", "name"),
    [
        (-1, "AckErrorUnknown"),
        (0, "AckOk"),
        (2, "AckErrorCorruptMessage"),
        (6, "AckErrorNotLeaderForPartition"),
        (7, "AckErrorRequestTimedOut"),
        (14, "AckErrorGroupLoadInProgress"),
        (17, "AckErrorInvalidTopicException"),
        (34, "AckErrorIllegalSaslState"),
        (43, "AckErrorUnsupportedForMessageFormat"),
        (87, "AckErrorInvalidRecord"),
        (135, "AckErrorUndocumented"),
    ],
)
def test_each_ack_code_has_a_counter(daemon: OfflineStatusPages, code: int, name: str) -> None:
    ProcessRow(daemon.slab, lay.ROW_FIRST_DISPATCHER).add(Counter.AckErrorFirst + 1 + code, 5)
    assert counters(daemon)[name] == 5


def test_every_ack_counter_exists_from_the_start(daemon: OfflineStatusPages) -> None:
    assert sum(name.startswith("AckError") for name in counters(daemon)) == len(ERROR_TABLE) - 1 + 1


def test_legacy_counters_are_sums_of_new_counters(daemon: OfflineStatusPages) -> None:
    daemon.filled.receive(b"news", 9)
    increments = {Counter.MsgDelivered: 3, discarded(DiscardReason.NO_MEM): 1, discarded(DiscardReason.BAD_TOPIC): 2}
    daemon.filled.input.commit_landed(0, increments)
    page = counters(daemon)
    assert (page["MsgCreate"], page["MsgDestroy"], page["MsgUnprocessedDestroy"]) == (9, 6, 0)


def test_a_gauge_is_not_listed_as_a_counter(daemon: OfflineStatusPages) -> None:
    daemon.begin(lay.ROW_FIRST_INPUT + 1)
    ProcessRow(daemon.slab, lay.ROW_FIRST_INPUT + 1).add(Counter.StreamConnections, 7)
    assert "StreamConnections" not in counters(daemon)
    lines = {line["name"]: line["connections"] for line in daemon.json("/processes/json")["processes"]}
    assert lines == {"supervisor": None, "input-1": 7}


def test_the_plain_page_lists_counters(daemon: OfflineStatusPages) -> None:
    ProcessRow(daemon.slab, lay.ROW_ROUTER).add(Counter.PauseStarted, 2)
    lines = daemon.text("/counters/plain").splitlines()
    assert lines[4] == ""
    assert "[router].PauseStarted=2" in lines
    assert "[input].InputRunsPublished=0" in lines
    assert all(re.fullmatch(r"\[[a-z, ]+\]\.[A-Za-z0-9]+=\d+", line) for line in lines[5:])


# --- discards ---------------------------------------------------------------------------------------------------------


def test_a_new_daemon_has_no_finished_report(daemon: OfflineStatusPages) -> None:
    page = daemon.json("/discards/json")
    assert page["interval"] == 600
    assert "finished_report" not in page
    assert page["finished_reports"] == []
    assert page["unfinished_report"] == {
        "id": 0,
        "start_time": SINCE,
        "malformed_msg_count": 0,
        "unix_stream_unclean_disconnect_count": 0,
        "tcp_unclean_disconnect_count": 0,
        "unsupported_api_key_msg_count": 0,
        "unsupported_version_msg_count": 0,
        "bad_topic_msg_count": 0,
        "recent_malformed": [],
        "unix_stream_unclean_disconnect": [],
        "tcp_unclean_disconnect": [],
        "unsupported_msg_version": [],
        "unsupported_msg_api_key": [],
        "recent_bad_topic": [],
        "recent_too_long_msg": [],
        "rate_limit_discard": [],
        "discard_topic": [],
        "possible_duplicate_topic": [],
        "culprits": [],
    }


EVENTS = (
    DiscardEvent(DiscardReason.MALFORMED, b"", 2, 0, 0, (b"\xff\x00", b"new")),
    DiscardEvent(DiscardReason.UNSUPPORTED_VERSION, b"", 3, 0, 0, (), version=7),
    DiscardEvent(DiscardReason.UNSUPPORTED_API_KEY, b"", 4, 0, 0, (), api_key=300),
    DiscardEvent(DiscardReason.BAD_TOPIC, NASTY, 5, 0, 0),
    DiscardEvent(DiscardReason.RATE_LIMIT, NASTY, 6, 10, 20),
    DiscardEvent(DiscardReason.LONG_MSG, NASTY, 1, 5, 5, (b"t val",)),
    DuplicateEvent(NASTY, 8, -1, 1),
)


def test_a_report_counts_discards_by_reason(daemon: OfflineStatusPages) -> None:
    daemon.reports.record(EVENTS, daemon.now_ms)
    report = daemon.json("/discards/json")["unfinished_report"]
    assert {name: value for name, value in report.items() if value} == {
        "start_time": SINCE,
        "malformed_msg_count": 2,
        "unsupported_api_key_msg_count": 4,
        "unsupported_version_msg_count": 3,
        "bad_topic_msg_count": 5,
        "recent_malformed": ["bmV3", "/wA="],
        "unsupported_msg_version": [{"version": 7, "count": 3}],
        "unsupported_msg_api_key": [{"api_key": 300, "count": 4}],
        "recent_bad_topic": [NASTY_TEXT],
        "recent_too_long_msg": ["dCB2YWw="],
        "rate_limit_discard": [{"topic": NASTY_TEXT, "count": 6}],
        "discard_topic": [
            {
                "topic": NASTY_TEXT,
                "min_timestamp": 5,
                "max_timestamp": 20,
                "count": 7,
                "reasons": {"RATE_LIMIT": 6, "LONG_MSG": 1},
            }
        ],
        "possible_duplicate_topic": [{"topic": NASTY_TEXT, "min_timestamp": -1, "max_timestamp": 1, "count": 8}],
    }


def test_the_plain_page_shows_a_report(daemon: OfflineStatusPages) -> None:
    daemon.reports.record(EVENTS, daemon.now_ms)
    lines = daemon.text("/discards/plain").splitlines()
    topic = f"{len(NASTY_TEXT)}[{NASTY_TEXT}]"
    assert lines[5:9] == [
        "report interval in seconds: 600",
        "",
        "current (unfinished) reporting period:",
        "    report ID: 0",
    ]
    assert lines[10:16] == [
        "    malformed msg count: 2",
        "    UNIX stream unclean disconnect count: 0",
        "    TCP unclean disconnect count: 0",
        "    unsupported API key msg count: 4",
        "    unsupported version msg count: 3",
        "    bad topic msg count: 5",
    ]
    assert [line for line in lines[16:] if line] == [
        "    recent malformed msg: 4[bmV3]",
        "    recent malformed msg: 4[/wA=]",
        "    unsupported msg version: 7 count: 3",
        "    unsupported msg API key: 300 count: 4",
        f"    recent bad topic: {topic}",
        "    recent too long msg: 8[dCB2YWw=]",
        f"    rate limit discard topic: {topic} count 6",
        f"    discard topic: {topic} begin [5] end [20] count 7 RATE_LIMIT 6 LONG_MSG 1",
        f"    possible duplicate topic: {topic} begin [-1] end [1] count 8",
    ]


def test_the_page_lists_finished_reports(daemon: OfflineStatusPages) -> None:
    for period in range(6):
        daemon.now_ms = (SINCE + 600 * period + 1) * 1000
        daemon.reports.record([DiscardEvent(DiscardReason.NO_MEM, b"t", period + 1, 0, 0)], daemon.now_ms)
    page = daemon.json("/discards/json")
    assert page["unfinished_report"]["id"] == 5
    assert [report["id"] for report in page["finished_reports"]] == [4, 3, 2, 1]
    assert page["finished_report"] == page["finished_reports"][0]
    assert page["finished_report"]["discard_topic"][0]["count"] == 5
    assert "latest finished reporting period:\n    report ID: 4\n" in daemon.text("/discards/plain")


def test_a_period_without_a_reader_is_noticed(daemon: OfflineStatusPages) -> None:
    daemon.json("/discards/json")
    daemon.now_ms += 600_000
    daemon.reports.rotate(daemon.now_ms)
    assert daemon.unread == []
    daemon.client.get("/overview/json")
    daemon.now_ms += 600_000
    daemon.reports.rotate(daemon.now_ms)
    assert daemon.unread == [daemon.now_ms]


# --- queues -----------------------------------------------------------------------------------------------------------


def test_queues_count_messages_by_state(daemon: OfflineStatusPages) -> None:
    filled = daemon.filled
    filled.receive(b"news", 2, RunState.ROUTED)
    filled.receive(b"news", 3, RunState.QUEUED)
    filled.receive(b"news", 5, RunState.IN_FLIGHT)
    filled.receive(b"clicks", 7, RunState.RETURNED_SENT)
    filled.receive(b"clicks", 11, RunState.DELIVERED)
    filled.receive(NASTY, 13, RunState.ROUTED)
    filled.receive(b"news", 17, RunState.FILLED)
    filled.receive(b"clicks", 19, None)
    page = daemon.json("/queues/json")
    assert page["new"] == 36
    assert page["sending"] == [
        {"topic": "clicks", "batch": 0, "send_wait": 7, "ack_wait": 0},
        {"topic": "news", "batch": 2, "send_wait": 3, "ack_wait": 5},
        {"topic": NASTY_TEXT, "batch": 13, "send_wait": 0, "ack_wait": 0},
    ]


def test_each_record_of_a_split_run_counts_in_its_queue(daemon: OfflineStatusPages) -> None:
    (segment,) = daemon.filled.receive(b"news", 4, RunState.IN_FLIGHT)
    split_run(daemon.slab, segment.chunk, segment.run)
    at = (daemon.slab.chunk_at(segment.chunk) + segment.first + lay.RECORD_WORD) >> 2
    daemon.slab.words[at] = RunState.DELIVERED
    assert daemon.json("/queues/json")["sending"] == [{"topic": "news", "batch": 0, "send_wait": 0, "ack_wait": 3}]


def test_every_unsettled_state_has_a_queue() -> None:
    assert set(QUEUE_OF) == set(RunState) - lay.SETTLED - {RunState.SPLIT}


def test_the_plain_page_lists_queues(daemon: OfflineStatusPages) -> None:
    daemon.filled.receive(b"news", 2, RunState.ROUTED)
    daemon.filled.receive(b"news", 9, RunState.IN_FLIGHT)
    daemon.filled.receive(b"news", 1)
    assert daemon.text("/queues/plain").splitlines()[5:] == [
        "batch:          2  send_wait:          0  ack_wait:          9  topic: [news]",
        "",
        "         1 total new",
        "         2 total batch",
        "         0 total send_wait",
        "         9 total ack_wait",
        "        12 total (all states: new + batch + send_wait + ack_wait)",
    ]


def test_messages_in_spill_files_are_held_and_queued(daemon: OfflineStatusPages) -> None:
    daemon.filled.receive(b"news", 2, RunState.ROUTED)
    row = ProcessRow(daemon.slab, lay.ROW_FIRST_INPUT + 1)
    row.add(lay.SPILL_IN, 7)
    row.add(lay.SPILL_OUT, 3)
    assert daemon.json("/queues/json")["spill"] == 4
    assert daemon.text("/queues/plain").splitlines()[-2:] == [
        "         2 total (all states: new + batch + send_wait + ack_wait)",
        "         4 in spill files, not in the total",
    ]
    held = daemon.json("/held/json")
    assert (held["messages"], held["spill"], [each["messages"] for each in held["topics"]]) == (6, 4, [2])
    assert 'bruce_messages_held{stage="spill"} 4\n' in daemon.client.get("/metrics").get_data(as_text=True)


# --- metadata ---------------------------------------------------------------------------------------------------------


def test_the_page_shows_metadata_times(daemon: OfflineStatusPages) -> None:
    assert daemon.json("/metadata_fetch_time/json") == HEADER | {"now": NOW_MS, "last_updated": 0, "last_modified": 0}
    daemon.fetch_metadata(NOW_MS - 5, NOW_MS - 10)
    page = daemon.json("/metadata_fetch_time/json")
    assert (page["last_updated"], page["last_modified"]) == (NOW_MS - 5, NOW_MS - 10)


def test_the_plain_page_of_metadata_times_has_the_old_lines(daemon: OfflineStatusPages) -> None:
    daemon.fetch_metadata(NOW_MS - 5, NOW_MS - 10_000)
    assert daemon.text("/metadata_fetch_time/plain").splitlines()[3:] == [
        f"now (milliseconds since epoch): {NOW_MS} {utc_text(NOW_MS // 1000)}",
        f"metadata last updated at (milliseconds since epoch): {NOW_MS - 5} {utc_text(NOW_MS // 1000 - 1)}",
        f"metadata last modified at (milliseconds since epoch): {NOW_MS - 10_000} {utc_text(NOW_MS // 1000 - 10)}",
    ]


@pytest.mark.parametrize("path", ["/metadata_update", "/sys/metadata_update"])
def test_a_metadata_update_can_be_requested(daemon: OfflineStatusPages, path: str) -> None:
    response = daemon.client.post(path)
    seconds = NOW_MS // 1000
    assert response.status_code == 200
    assert response.get_data(as_text=True) == f"Metadata update initiated at {seconds} {utc_text(seconds)}\n"
    assert daemon.refreshes == 1


def test_a_cross_site_metadata_update_is_refused(daemon: OfflineStatusPages) -> None:
    response = daemon.client.post("/metadata_update", headers={"Sec-Fetch-Site": "cross-site"})
    assert response.status_code == 403
    assert daemon.client.post("/metadata_update", headers={"Sec-Fetch-Site": "same-origin"}).status_code == 200
    assert daemon.refreshes == 1


# --- books and processes ----------------------------------------------------------------------------------------------


def test_the_books_page_balances(daemon: OfflineStatusPages) -> None:
    segments = daemon.filled.receive(b"news", 3, RunState.IN_FLIGHT)
    ProcessRow(daemon.slab, lay.ROW_FIRST_DISPATCHER).settle(segments, RunState.DELIVERED, 0, {Counter.MsgDelivered: 3})
    daemon.filled.receive(b"news", 2)
    lost = daemon.filled.receive(b"news", 1, RunState.ROUTED)
    ProcessRow(daemon.slab, lay.ROW_ROUTER).settle(
        lost, RunState.DISCARDED, DiscardReason.BAD_TOPIC, {discarded(DiscardReason.BAD_TOPIC): 1}
    )
    assert daemon.json("/books/json") == HEADER | {
        "received": 6,
        "delivered": 3,
        "discarded": {"BAD_TOPIC": 1},
        "held": {"input": 0, "router": 2, "queued": 0, "in_flight": 0, "spill": 0},
        "possible_duplicates": 0,
        "consistent": True,
        "checked": 0,
        "unaccounted": 0,
    }


def test_books_are_inconsistent_while_more_is_delivered_than_counted_as_received(daemon: OfflineStatusPages) -> None:
    ProcessRow(daemon.slab, lay.ROW_FIRST_DISPATCHER).settle([], RunState.DELIVERED, 0, {Counter.MsgDelivered: 1})
    daemon.filled.input.begin_batch()
    assert daemon.json("/books/json")["consistent"] is False


def test_the_books_page_shows_what_the_last_check_did_not_find(daemon: OfflineStatusPages) -> None:
    daemon.verdict = Verdict(NOW_MS, 2)
    page = daemon.json("/books/json")
    assert (page["checked"], page["unaccounted"]) == (NOW_MS, 2)
    assert daemon.json("/healthz", 503)["balanced"] is False


@pytest.mark.process
def test_the_page_lists_processes_with_their_states(daemon: OfflineStatusPages) -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    daemon.begin(lay.ROW_ROUTER)
    daemon.begin(lay.ROW_ROUTER, silent_ms=20_000)
    daemon.begin(lay.ROW_FIRST_INPUT, pid=process.pid)
    daemon.begin(lay.ROW_FIRST_DISPATCHER + 2, pid=0)
    lines = {line["name"]: line for line in daemon.json("/processes/json")["processes"]}
    assert {name: (line["state"], line["restarts"]) for name, line in lines.items()} == {
        "supervisor": ("running", 0),
        "router": ("stalled", 1),
        "input": ("dead", 0),
        "dispatcher-2": ("stopped", 0),
    }
    assert lines["router"]["heartbeat_age_ms"] == 20_000
    assert lines["router"]["incarnation"] == 2
    assert lines["supervisor"]["pss"] > 1_000_000
    assert lines["supervisor"]["uss"] > 1_000_000
    assert lines["supervisor"]["cpu_seconds"] > 0
    assert lines["input"]["pss"] is None


def test_pages_are_valid_json_for_any_topic_bytes(daemon: OfflineStatusPages) -> None:
    for topic in (NASTY, b"\xed\xa0\x80", b"\xc3", "\u2028\U0001f600".encode(), b"\x80" * 249):
        daemon.filled.receive(topic, 1, RunState.ROUTED)
        daemon.reports.record([DiscardEvent(DiscardReason.BAD_TOPIC, topic, 1, 0, 0)], daemon.now_ms)
    for name in JSON_PAGES:
        json.loads(daemon.client.get(f"/{name}/json").data.decode("utf-8", "strict"))
