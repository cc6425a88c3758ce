"""Every path and field that monitors of the old daemons read, plain and JSON, for any bytes from clients."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bruce_mp.discards.events import DiscardEvent, DuplicateEvent
from bruce_mp.errors import DiscardReason
from bruce_mp.slab.layout import RunState
from bruce_mp.status.pages.text import topic_bytes, topic_text
from support.examples import examples
from support.legacy_monitor import SCRIPTS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from support.status_pages import OfflineStatusPages

HEADER: Final = {"pid": int, "version": str, "since": int, "now": int}
TOPIC_RANGE: Final = {"topic": str, "min_timestamp": int, "max_timestamp": int, "count": int}
REPORT: Final[dict[str, object]] = {
    "id": int,
    "start_time": int,
    "malformed_msg_count": int,
    "unix_stream_unclean_disconnect_count": int,
    "tcp_unclean_disconnect_count": int,
    "unsupported_api_key_msg_count": int,
    "unsupported_version_msg_count": int,
    "bad_topic_msg_count": int,
    "recent_malformed": [str],
    "unix_stream_unclean_disconnect": [str],
    "tcp_unclean_disconnect": [str],
    "unsupported_msg_version": [{"version": int, "count": int}],
    "recent_bad_topic": [str],
    "recent_too_long_msg": [str],
    "rate_limit_discard": [{"topic": str, "count": int}],
    "discard_topic": [TOPIC_RANGE],
    "possible_duplicate_topic": [TOPIC_RANGE],
}
PAGES: Final[dict[str, dict[str, object]]] = {
    "server_info": {},
    "counters": {"counters": [{"location": str, "name": str, "value": int}]},
    "discards": {"interval": int, "unfinished_report": REPORT, "finished_report": REPORT},
    "queues": {"sending": [{"topic": str, "batch": int, "send_wait": int, "ack_wait": int}], "new": int},
    "metadata_fetch_time": {"last_updated": int, "last_modified": int},
}
"""JSON by path: types, lists with the type of their entries, objects."""

PLAIN: Final[dict[str, tuple[str, ...]]] = {
    "server_info": ("pid: ", "version: ", "since: ", "now: "),
    "counters": ("[books].MsgReceived=", "[old names].MsgCreate="),
    "discards": (
        "report interval in seconds: ",
        "current (unfinished) reporting period:",
        "latest finished reporting period:",
        "    report ID: ",
        "    start time: ",
        "    malformed msg count: ",
        "    UNIX stream unclean disconnect count: ",
        "    TCP unclean disconnect count: ",
        "    unsupported API key msg count: ",
        "    unsupported version msg count: ",
        "    bad topic msg count: ",
        "    recent malformed msg: 4[",
        "    recent UNIX stream unclean disconnect msg: 4[",
        "    recent TCP unclean disconnect msg: 4[",
        "    unsupported msg version: 7 count: 1",
        "    recent bad topic: 1[",
        "    recent too long msg: 4[",
        "    rate limit discard topic: 1[t] count 1",
        "    discard topic: 1[t] begin [5] end [6] count ",
        "    possible duplicate topic: 1[t] begin [5] end [6] count 1",
    ),
    "queues": (
        "batch:          1  send_wait:          0  ack_wait:          0  topic: [news]",
        "         0 total new",
        "         1 total (",
    ),
    "metadata_fetch_time": (
        "pid: ",
        "version: ",
        "since: ",
        "now (",
        "metadata last updated at (",
        "metadata last modified at (",
    ),
}


@pytest.fixture
def full(daemon: OfflineStatusPages) -> OfflineStatusPages:
    """A daemon with an entry in every list of every page, also in a finished report."""
    versions = {DiscardReason.UNSUPPORTED_VERSION: 7}
    events = [DiscardEvent(reason, b"t", 1, 5, 6, (b"abc",), versions.get(reason)) for reason in DiscardReason]
    tcp = DiscardEvent(DiscardReason.UNCLEAN_DISCONNECT, b"", 1, 0, 0, (b"abc",), is_tcp=True)
    daemon.filled.receive(b"news", 1, RunState.ROUTED)
    for _ in range(2):
        daemon.reports.record([*events, tcp, DuplicateEvent(b"t", 1, 5, 6)], daemon.now_ms)
        daemon.now_ms += 600_000
    return daemon


def assert_shape(value: Any, shape: object, where: str) -> None:
    if isinstance(shape, dict):
        for name, inner in shape.items():
            assert_shape(value[name], inner, f"{where}.{name}")
    elif isinstance(shape, list):
        assert value, f"{where} is empty: nothing is shown of it"
        for each in value:
            assert_shape(each, shape[0], f"{where}[]")
    else:
        assert type(value) is shape, f"{where} = {value!r}"


@pytest.mark.parametrize("page", PAGES)
def test_the_json_has_every_field(full: OfflineStatusPages, page: str) -> None:
    full.now_ms -= 600_000
    assert_shape(full.json(f"/{page}/json"), HEADER | PAGES[page], page)


@pytest.mark.parametrize("page", PLAIN)
def test_the_plain_page_has_every_line(full: OfflineStatusPages, page: str) -> None:
    full.now_ms -= 600_000
    text = full.text(f"/{page}/plain")
    for line in PLAIN[page]:
        assert any(found.startswith(line) for found in text.splitlines()), f"no line {line!r} in {text}"


@pytest.mark.parametrize("script", SCRIPTS)
def test_every_counter_that_the_old_scripts_read_exists(daemon: OfflineStatusPages, script: str) -> None:
    names = SCRIPTS[script].counters
    found = {line["name"]: line["value"] for line in daemon.json("/counters/json")["counters"]}
    assert {name: found.get(name) for name in names} == dict.fromkeys(names, 0)


ANSWERS: Final = (
    ("get_topics", "No message debug topics are currently enabled\n"),
    ("add_topic/a%2Fb", "Enabled debug topic [a/b]\n"),
    ("add_topic/a/b", "Failed to enable debug topic [a/b]\n"),
    ("add_topic/%5Cxff", "Enabled debug topic [\\xff]\n"),
    ("get_topics", "topic: [a/b]\ntopic: [\\xff]\n"),
    ("del_topic/a%2Fb", "Disabled debug topic [a/b]\n"),
    ("del_topic/a%2Fb", "Failed to disable debug topic [a/b]\n"),
    ("add_all_topics", "All message debug topics enabled\n"),
    ("get_topics", "All message debug topics are currently enabled\n"),
    ("add_topic/c", "Failed to enable debug topic [c]\n"),
    ("truncate_files", "Message debug files truncated\n"),
    ("del_all_topics", "All message debug topics disabled\n"),
)


def test_message_debugging_answers_with_the_original_sentences(daemon: OfflineStatusPages) -> None:
    assert [daemon.text(f"/msg_debug/{path}") for path, _ in ANSWERS] == [text for _, text in ANSWERS]


def test_message_debugging_accepts_post_and_refuses_cross_site_requests(daemon: OfflineStatusPages) -> None:
    assert daemon.client.post("/msg_debug/add_topic/a").get_data(as_text=True) == "Enabled debug topic [a]\n"
    for method in ("GET", "POST"):
        asked = daemon.client.open("/msg_debug/add_all_topics", method=method, headers={"Sec-Fetch-Site": "cross-site"})
        assert asked.status_code == 403
    assert daemon.client.post("/msg_debug/get_topics").status_code == 405
    assert [chosen.topics for chosen in daemon.announced] == [(b"a",)]


# --- arbitrary bytes from clients -------------------------------------------------------------------------------------
nasty = st.binary(min_size=1, max_size=40)
REPORT_MS: Final = 601_000


@given(topic=nasty)
@examples(100)
def test_a_topic_is_shown_reversibly(topic: bytes) -> None:
    assert topic_bytes(topic_text(topic)) == topic
    assert json.loads(json.dumps(topic_text(topic))) == topic_text(topic)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OfflineStatusPages]:
    from support.status_pages import OfflineStatusPages  # noqa: PLC0415

    pages = OfflineStatusPages(tmp_path_factory.mktemp("pages") / "slab")
    yield pages
    pages.close()


@given(topic=nasty, data=st.binary(max_size=40))
@examples(50)
def test_pages_are_valid_for_any_bytes_from_clients(shared: OfflineStatusPages, topic: bytes, data: bytes) -> None:
    events = [DiscardEvent(reason, topic, 1, -(2**63), 2**63 - 1, (data,), -1, -1) for reason in DiscardReason]
    shared.now_ms += REPORT_MS  # the next report, because one names at most 1,000 topics
    shared.reports.record([*events, DuplicateEvent(topic, 1, 0, 0)], shared.now_ms)
    page = shared.json("/discards/json")["unfinished_report"]
    assert topic_text(topic) in [each["topic"] for each in page["discard_topic"]]
    text = shared.text("/discards/plain")
    assert f"{len(topic_text(topic))}[{topic_text(topic)}]" in text
    assert shared.client.get("/").status_code == 200
