"""The page `/healthz`: each fault yields a sentence with its remedy."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from bruce_mp import __version__
from bruce_mp.config.sections import Http, MsgDebug
from bruce_mp.discards.reasons import CAUSED_BY_CLIENTS, CAUSED_BY_FAULT
from bruce_mp.errors import DiscardReason
from bruce_mp.pipeline.stage_counts import recount
from bruce_mp.slab import layout as lay
from bruce_mp.slab.layout import RunState
from bruce_mp.slab.rows import ProcessRow
from bruce_mp.telemetry.broker_status import (
    CONNECTED,
    CONNECTING,
    FAILED,
    NO_LEADER,
    BrokerStatus,
    PartitionError,
    PausedScope,
    RecreatedTopic,
    RouterStatus,
)
from bruce_mp.telemetry.counters import Counter, discarded
from bruce_mp.telemetry.stalls import PartitionStall
from support.filled_slab import NOW_MS

if TYPE_CHECKING:
    from support.status_pages import OfflineStatusPages

HEADER = {"pid": os.getpid(), "version": __version__, "since": NOW_MS // 1000 - 100, "now": NOW_MS // 1000}


def test_a_healthy_daemon_is_live_and_ready(daemon: OfflineStatusPages) -> None:
    daemon.fetch_metadata(NOW_MS - 1000, NOW_MS - 1000)
    assert daemon.json("/healthz") == HEADER | {
        "live": True,
        "ready": True,
        "problems": [],
        "warnings": [],
        "processes": {"supervisor": "running"},
        "metadata_age_ms": 1000,
        "balanced": True,
        "slab_in_use": 0.0,
    }


def test_a_daemon_whose_socket_file_is_gone_is_not_ready(daemon: OfflineStatusPages) -> None:
    daemon.fetch_metadata(NOW_MS - 1000, NOW_MS - 1000)
    daemon.lost_socket_files.append("/run/bruce.dgram")
    page = daemon.json("/healthz", 503)
    assert page["live"] is True
    [problem] = page["problems"]
    assert problem.startswith("The socket file /run/bruce.dgram is gone or was replaced, so no program can")
    assert "then restart the daemon, with systemd bruce.socket first" in problem


def test_a_daemon_whose_slab_is_gone_is_not_ready(daemon: OfflineStatusPages) -> None:
    daemon.fetch_metadata(NOW_MS - 1000, NOW_MS - 1000)
    aside = daemon.slab.path.rename(daemon.slab.path.with_name("aside"))
    [problem] = daemon.json("/healthz", 503)["problems"]
    aside.rename(daemon.slab.path)
    assert problem.startswith(f"The slab {daemon.slab.path} was deleted or replaced: the daemon works on with the")
    assert daemon.json("/healthz")["problems"] == []


def test_a_daemon_without_metadata_is_live_and_not_ready(daemon: OfflineStatusPages) -> None:
    page = daemon.json("/healthz", 503)
    assert (page["live"], page["ready"], page["metadata_age_ms"]) == (True, False, None)
    assert len(page["problems"]) == 1
    assert daemon.json("/healthz?probe=live") == page


ASKED = "kafka2:9092 is asked now; if it does not answer, the next broker is asked."


@pytest.mark.parametrize(
    ("asking", "in_vain", "said"),
    [
        ("", "", "No broker is asked at the moment; the router is about to ask one."),
        ("kafka2:9092", "", ASKED),
        ("kafka2:9092", "Broker kafka1:9092 is silent.", f"{ASKED} Before that: Broker kafka1:9092 is silent."),
    ],
)
def test_the_problem_names_the_broker_asked_for_metadata(
    daemon: OfflineStatusPages, asking: str, in_vain: str, said: str
) -> None:
    assert only_problem(daemon).endswith("yet. The router has not reported yet which broker it asks.")
    daemon.broker_status.record([router(asking=asking, previous_failure=in_vain)], NOW_MS)
    assert only_problem(daemon) == f"No metadata has been fetched from Kafka yet. {said}"
    daemon.fetch_metadata(NOW_MS - 120_001, NOW_MS - 150_000)
    assert only_problem(daemon) == f"The metadata is 120 s old, more than two refresh intervals. {said}"
    daemon.broker_status.record([router(NOW_MS - 7000)], NOW_MS)
    assert only_problem(daemon).startswith("No broker can be reached for 7 s: Connection refused.")


def test_old_metadata_is_not_ready(daemon: OfflineStatusPages) -> None:
    daemon.fetch_metadata(NOW_MS - 120_001, NOW_MS - 150_000)
    assert "120 s old" in daemon.json("/healthz", 503)["problems"][0]


DAY_MS = 86_400_000


@pytest.mark.parametrize("step_ms", [DAY_MS, -DAY_MS])
def test_a_step_of_the_wall_clock_changes_no_age(daemon: OfflineStatusPages, step_ms: int) -> None:
    well(daemon).begin(lay.ROW_ROUTER, silent_ms=20_000)
    daemon.broker_status.record([router(NOW_MS - 7000, needs_operator=True)], NOW_MS - 9000)
    before = daemon.json("/healthz", 503)
    daemon.now_ms += step_ms
    assert daemon.json("/healthz", 503) == before | {"now": daemon.now_ms // 1000}
    assert [text.split(":")[0] for text in before["problems"][1:]] == ["No broker can be used for 7 s"]
    assert before["metadata_age_ms"] == 0


def test_metadata_of_an_older_slab_has_its_age_by_the_wall_clock(daemon: OfflineStatusPages) -> None:
    daemon.fetch_metadata(NOW_MS - 4000, NOW_MS)
    daemon.slab.store_signed(lay.SUPER_METADATA_STEADY_MS, 0)
    assert daemon.json("/healthz")["metadata_age_ms"] == 4000


def test_a_stalled_process_is_not_live(daemon: OfflineStatusPages) -> None:
    daemon.fetch_metadata(NOW_MS, NOW_MS)
    daemon.begin(lay.ROW_ROUTER, silent_ms=20_000)
    page = daemon.json("/healthz?probe=live", 503)
    assert (page["live"], page["ready"], page["processes"]["router"]) == (False, False, "stalled")
    assert "The process router" in page["problems"][0]


def test_an_intentionally_stopped_process_is_no_problem(daemon: OfflineStatusPages) -> None:
    daemon.fetch_metadata(NOW_MS, NOW_MS)
    daemon.begin(lay.ROW_FIRST_DISPATCHER, pid=0)
    assert daemon.json("/healthz")["processes"]["dispatcher-0"] == "stopped"


def test_books_that_do_not_balance_are_not_ready(daemon: OfflineStatusPages) -> None:
    daemon.fetch_metadata(NOW_MS, NOW_MS)
    ProcessRow(daemon.slab, lay.ROW_FIRST_DISPATCHER).settle([], RunState.DELIVERED, 0, {Counter.MsgDelivered: 1})
    page = daemon.json("/healthz", 503)
    assert (page["balanced"], page["live"]) == (False, True)
    daemon.filled.input.begin_batch()
    assert daemon.json("/healthz")["balanced"] is None


# --- brokers ----------------------------------------------------------------------------------------------------------
def router(failing_since_ms: int | None = None, **fields: Any) -> RouterStatus:
    status = RouterStatus(((1, "kafka1", 9092),), failing_since_ms, "Connection refused.", (), 0)
    return msgspec.structs.replace(status, **fields)


def broker(connection: str, **fields: Any) -> BrokerStatus:
    status = BrokerStatus(0, 1, "kafka1", 9092, connection, NOW_MS, 0, "It hung up.", NOW_MS, None)
    return msgspec.structs.replace(status, **fields)


def well(daemon: OfflineStatusPages) -> OfflineStatusPages:
    daemon.fetch_metadata(NOW_MS, NOW_MS)
    return daemon


def only_problem(daemon: OfflineStatusPages) -> str:
    page = daemon.json("/healthz", 503)
    assert (page["live"], page["ready"]) == (True, False)
    (problem,) = page["problems"]
    return str(problem)


@pytest.mark.parametrize("count", [1, 10, 25])
def test_recreated_topics_are_a_warning_that_names_some(daemon: OfflineStatusPages, count: int) -> None:
    recreated = tuple(RecreatedTopic(b"topic-%d" % number, NOW_MS - 120_000) for number in range(count))
    well(daemon).broker_status.record([router(recreated=recreated)], NOW_MS)
    page = daemon.json("/healthz")
    assert page["warnings"][0].startswith(
        f"Topic topic-{max(0, count - 10)} was deleted and created again, as seen 2 min"
    )
    assert page["warnings"][0].endswith("If this was a mistake, send the earlier messages again.")
    assert len(page["warnings"]) == min(count, 11)
    assert count <= 10 or page["warnings"][10].startswith("At least 25 topics")


def test_unreachable_brokers_are_a_problem(daemon: OfflineStatusPages) -> None:
    well(daemon).broker_status.record([router(NOW_MS - 7000)], NOW_MS)
    assert only_problem(daemon).startswith(
        "No broker can be reached for 7 s: Connection refused. No message waits. Check"
    )
    daemon.filled.receive(b"news", 2, RunState.ROUTED)
    assert "Connection refused. 2 messages wait for a broker. Check" in only_problem(daemon)
    daemon.broker_status.record([router()], NOW_MS)
    assert daemon.json("/healthz")["problems"] == []


def test_failed_fetches_are_a_warning_while_brokers_take_all_messages(daemon: OfflineStatusPages) -> None:
    well(daemon).broker_status.record([router(NOW_MS - 7000), broker(CONNECTED)], NOW_MS)
    page = daemon.json("/healthz")
    assert (page["problems"], len(page["warnings"])) == ([], 1)
    assert page["warnings"][0].startswith(
        "The brokers take messages, but no metadata can be fetched for 7 s: Connection refused."
    )
    daemon.broker_status.record([broker(CONNECTED, stalls=(stall(b"news", 0, 5000),))], NOW_MS)
    problems = daemon.json("/healthz", 503)["problems"]
    assert [text.split(" for ")[0] for text in problems] == [
        "No broker can be reached",
        "Broker 1 at kafka1:9092 has acknowledged nothing",
    ]


def stall(topic: bytes, partition: int, age_ms: int, messages: int = 4, node: int = 1) -> PartitionStall:
    return PartitionStall(topic, partition, node, messages, NOW_MS - age_ms, (1, 1, partition, age_ms))


@pytest.mark.parametrize("since", [4999, 5000])
def test_a_broker_without_acknowledgements_is_a_problem_after_5_seconds(daemon: OfflineStatusPages, since: int) -> None:
    stalls = stall(b"news", 0, since), stall(b"news", 1, 2000)
    silent = broker(CONNECTED, stalls=stalls, acked_ms=NOW_MS - 90_000)
    well(daemon).broker_status.record([router(), silent], NOW_MS)
    if since < 5000:
        assert daemon.json("/healthz")["problems"] == []
        return
    assert only_problem(daemon) == (
        "Broker 1 at kafka1:9092 has acknowledged nothing for 5 s while 4 messages wait for 1 of its partitions: it "
        "does not answer. Check the broker; see /brokers."
    )
    assert daemon.json("/healthz", 503)["warnings"] == []


def test_the_limit_of_a_stall_is_configured(daemon: OfflineStatusPages) -> None:
    well(daemon).broker_status.record([broker(CONNECTED, stalls=(stall(b"news", 0, 8000),))], NOW_MS)
    assert len(daemon.json("/healthz", 503)["problems"]) == 1
    daemon.config = msgspec.structs.replace(daemon.config, http=Http(stalled_after_s=9))
    assert daemon.json("/healthz")["problems"] == []


def test_messages_in_the_router_count_for_their_leader(daemon: OfflineStatusPages) -> None:
    waiting = router(stalls=(stall(b"news", 0, 6000, messages=9),))
    well(daemon).broker_status.record([waiting, broker(CONNECTING)], NOW_MS)
    assert "nothing for 6 s while 9 messages wait for 1 of its partitions: connecting. It hung up." in only_problem(
        daemon
    )


def test_one_stalled_partition_is_a_warning(daemon: OfflineStatusPages) -> None:
    trouble = PartitionError(b"news", 1, "NOT_ENOUGH_REPLICAS", NOW_MS)
    stalls = (stall(b"news", 1, 65_000, 1),)
    acked = broker(CONNECTED, acked_ms=NOW_MS - 500, stalls=stalls, partition_errors=(trouble,))
    well(daemon).broker_status.record([router(), acked], NOW_MS)
    assert daemon.json("/healthz")["warnings"] == [
        "Nothing was acknowledged for news-1 for 65 s while 1 message waits: NOT_ENOUGH_REPLICAS."
    ]


def test_a_stall_keeps_its_age_on_its_way_between_processes(daemon: OfflineStatusPages) -> None:
    first = stall(b"news", 1, 65_000)
    well(daemon).broker_status.record([broker(CONNECTED, acked_ms=NOW_MS, stalls=(first,))], NOW_MS)
    later = router(stalls=(msgspec.structs.replace(first, since_ms=NOW_MS),))
    daemon.broker_status.record([later, broker(CONNECTED, acked_ms=NOW_MS)], NOW_MS + 4000)
    daemon.steady_ms += 4000
    (warning,) = daemon.json("/healthz")["warnings"]
    assert "for 69 s while 4 messages wait" in warning
    daemon.broker_status.record([router()], NOW_MS + 6500)
    daemon.steady_ms += 2500
    assert daemon.json("/healthz")["warnings"] == []


def test_many_stalled_partitions_are_summarized(daemon: OfflineStatusPages) -> None:
    stalls = tuple(stall(b"news", number, 7000) for number in range(30))
    well(daemon).broker_status.record([broker(CONNECTED, acked_ms=NOW_MS, stalls=stalls)], NOW_MS)
    warnings = daemon.json("/healthz")["warnings"]
    assert len(warnings) == 11
    assert warnings[-1] == "Nothing was acknowledged for 30 partitions in all; see /brokers."


def test_one_failed_broker_is_a_warning(daemon: OfflineStatusPages) -> None:
    well(daemon).broker_status.record([broker(FAILED)], NOW_MS)
    (warning,) = daemon.json("/healthz")["warnings"]
    assert warning.startswith("Broker 1 at kafka1:9092 has failed: It hung up.")
    daemon.broker_status.record([broker(CONNECTED)], NOW_MS)
    assert daemon.json("/healthz")["warnings"] == []


@pytest.mark.parametrize("needs_operator", [False, True])
def test_a_failed_broker_with_waiting_messages_is_reported_once(
    daemon: OfflineStatusPages, needs_operator: bool
) -> None:
    failed = broker(FAILED, needs_operator=needs_operator, stalls=(stall(b"news", 0, 6000, messages=9),))
    well(daemon).broker_status.record([router(), failed], NOW_MS)
    assert "while 9 messages wait for 1 of its partitions: failed. It hung up." in only_problem(daemon)
    assert daemon.json("/healthz", 503)["warnings"] == []


@pytest.mark.parametrize("seconds", [4, 5])
def test_leaderless_partitions_are_a_warning_after_5_seconds(daemon: OfflineStatusPages, seconds: int) -> None:
    scopes = [PausedScope(None, b"t-%d" % topic, 0, NO_LEADER, NOW_MS - 1000 * seconds) for topic in range(12)]
    daemon.broker_status.record([RouterStatus((), None, "", tuple(scopes), 12)], NOW_MS)
    page = well(daemon).json("/healthz")
    texts = [text for text in page["warnings"] if "no leader, of t-0, t-1, t-10" in text and "and 2 more" in text]
    assert (page["ready"], len(texts)) == (True, int(seconds >= 5))


@pytest.mark.parametrize(
    ("topics", "last_state", "said"),
    [(12, NO_LEADER, "t-7 and at least 2 more:"), (2, NO_LEADER, "of t-0, t-1 and perhaps others:"),
     (2, "waiting", "of t-0, t-1:")],
)  # fmt: skip
def test_leaderless_topics_beyond_the_report_are_not_denied(
    daemon: OfflineStatusPages, topics: int, last_state: str, said: str
) -> None:
    scopes = [PausedScope(None, b"t-%d" % topic, 0, NO_LEADER, NOW_MS - 5000) for topic in range(topics)]
    last = PausedScope(None, b"t-0", 1, last_state, NOW_MS - 5000)
    daemon.broker_status.record([RouterStatus((), None, "", (*scopes, last), 300)], NOW_MS)
    (warning,) = well(daemon).json("/healthz")["warnings"]
    assert said in warning


def test_a_broker_that_needs_the_operator_is_a_problem(daemon: OfflineStatusPages) -> None:
    """Also while other brokers work, and while the next connection is in progress."""
    locked_out = broker(CONNECTING, needs_operator=True, last_error="It refuses the login.")
    well(daemon).broker_status.record([router(), locked_out], NOW_MS)
    assert (
        only_problem(daemon) == "It refuses the login. The messages of the partitions of broker 1 wait; see /brokers."
    )
    assert daemon.json("/healthz", 503)["warnings"] == []


def test_a_login_refused_by_all_brokers_is_a_problem(daemon: OfflineStatusPages) -> None:
    refusing = router(NOW_MS - 7000, needs_operator=True, error="Wrong password. Mend it.")
    well(daemon).broker_status.record([refusing], NOW_MS)
    assert only_problem(daemon) == "No broker can be used for 7 s: Wrong password. Mend it. No message waits."


def test_a_refused_producer_id_is_a_problem(daemon: OfflineStatusPages) -> None:
    well(daemon).broker_status.record([router(producer_error=31)], NOW_MS)
    assert only_problem(daemon).startswith(
        "The brokers refuse the daemon a producer id, CLUSTER_AUTHORIZATION_FAILED (31)"
    )


def test_outdated_statuses_are_ignored(daemon: OfflineStatusPages) -> None:
    well(daemon).broker_status.record([router(NOW_MS - 7000), broker(FAILED)], NOW_MS - 10_000)
    page = daemon.json("/healthz")
    assert page["problems"] == page["warnings"] == []


def test_a_refused_topic_is_a_problem(daemon: OfflineStatusPages) -> None:
    topics = well(daemon).filled.topics
    topics.store_refusal(topics.number_of(b"clicks"), 29)
    assert only_problem(daemon).startswith(
        "The brokers refuse topic clicks: TOPIC_AUTHORIZATION_FAILED (29): the daemon's user may not"
    )
    topics.store_refusal(topics.number_of(b"clicks"), 0)
    assert daemon.json("/healthz")["ready"]


def test_many_refused_topics_are_summarized(daemon: OfflineStatusPages) -> None:
    for number in range(20):
        daemon.filled.topics.store_refusal(daemon.filled.topics.add(b"topic %d" % number, 1), 29)
    problems = well(daemon).json("/healthz", 503)["problems"]
    assert len(problems) == 11
    assert problems[-1].startswith("The brokers refuse 20 topics in all")


# --- the slab ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("chunks", "problems", "warnings"),
    [(23, [], []), (24, [], ["75%"]), (28, [], ["88%"]), (29, ["91%"], []), (32, ["100%"], [])],
)
def test_a_filling_slab_is_a_warning_and_then_a_problem(
    daemon: OfflineStatusPages, chunks: int, problems: list[str], warnings: list[str]
) -> None:
    well(daemon)
    for _ in range(chunks):
        daemon.filled.receive(b"news", 1, RunState.QUEUED)  # each run is closed, and so has its own chunk
    page = daemon.json("/healthz", 503 if problems else 200)
    assert page["slab_in_use"] == round(chunks / 32, 4)
    assert shares(page["problems"]) == problems
    assert shares(page["warnings"]) == warnings


def shares(texts: list[str]) -> list[str]:
    return [text.split()[3] for text in texts if text.startswith("The slab is ")]


def test_settled_messages_occupy_no_space(daemon: OfflineStatusPages) -> None:
    for _ in range(32):
        daemon.filled.receive(b"news", 1, RunState.DISCARDED)
    daemon.filled.input.commit_landed(0, {discarded(DiscardReason.BUG): 32})
    recount(daemon.slab)
    assert well(daemon).json("/healthz")["slab_in_use"] == 0


# --- losses -----------------------------------------------------------------------------------------------------------
def discard(daemon: OfflineStatusPages, reason: DiscardReason, count: int) -> dict[str, Any]:
    daemon.histories.losses.sample()
    daemon.filled.input.commit_landed(0, {discarded(reason): count, Counter.MsgReceived: count})
    page: dict[str, Any] = daemon.client.get("/healthz").get_json()
    return page


@pytest.mark.parametrize("reason", DiscardReason)
def test_recent_discards_are_problems_or_warnings_by_reason(daemon: OfflineStatusPages, reason: DiscardReason) -> None:
    page = discard(well(daemon), reason, 3)
    text = f"3 messages were discarded within the last minute, {reason.name}: "
    assert [each.startswith(text) for each in page["problems"]] == [True] * (reason in CAUSED_BY_FAULT)
    assert [each.startswith(text) for each in page["warnings"]] == [True] * (reason in CAUSED_BY_CLIENTS)
    assert page["ready"] == (reason not in CAUSED_BY_FAULT)


def test_discards_stop_being_reported_after_a_minute(daemon: OfflineStatusPages) -> None:
    discard(well(daemon), DiscardReason.NO_MEM, 3)
    for second in range(1, 62):
        daemon.steady_ms = NOW_MS + 1000 * second
        well(daemon).histories.losses.sample()
        daemon.begin(lay.ROW_SUPERVISOR)
        if second in {1, 30, 60, 61}:
            assert daemon.json("/healthz", 503 if second <= 60 else 200)["ready"] == (second > 60)


@pytest.mark.parametrize(("lost", "words"), [(1, "1 copy of a message was"), (3, "3 copies of messages were")])
def test_unwritten_copies_are_a_warning_for_an_hour(daemon: OfflineStatusPages, lost: int, words: str) -> None:
    daemon.filled.input.add(Counter.MsgCopyLost, 7)  # before status started
    daemon.histories.losses.sample()
    assert well(daemon).json("/healthz")["warnings"] == []
    daemon.filled.input.add(Counter.MsgCopyLost, lost)
    (warning,) = daemon.json("/healthz")["warnings"]
    assert warning.startswith(f"{words} not written within the last hour: the discard file")
    for second in (10, 3600, 3610):
        daemon.steady_ms = NOW_MS + 1000 * second
        daemon.histories.losses.sample()
        well(daemon).begin(lay.ROW_SUPERVISOR)
        assert daemon.json("/healthz")["warnings"] == [warning] * (second <= 3600)


@pytest.mark.parametrize("age_ms", [6000, 6001])
def test_an_old_journal_is_a_warning(daemon: OfflineStatusPages, age_ms: int) -> None:
    well(daemon)
    assert daemon.json("/healthz")["warnings"] == []
    daemon.slab.store_signed(lay.SUPER_JOURNALED_MS, daemon.steady_ms - age_ms)
    warnings = daemon.json("/healthz")["warnings"]
    expected = "The journal was last written 6 s ago: held messages may not survive a power failure."
    assert [text.startswith(expected) for text in warnings] == [True] * (age_ms > 6000)


def test_a_restart_forgets_no_loss_of_the_last_minute_and_hour(daemon: OfflineStatusPages) -> None:
    before = discard(well(daemon), DiscardReason.NO_MEM, 23_028)["problems"]
    daemon.filled.input.add(Counter.MsgCopyLost, 2)
    daemon.steady_ms += 59_000
    well(daemon).begin(lay.ROW_SUPERVISOR)
    restarted = daemon.losses()
    restarted.sample()
    assert restarted.last_minute() == restarted.last_hour() == {DiscardReason.NO_MEM: 23_028}
    assert restarted.copies_lost_in_last_hour() == 2
    assert daemon.json("/healthz", 503)["problems"] == before
    daemon.steady_ms += 2_000
    assert (restarted.last_minute(), daemon.losses().last_hour()) == ({}, {DiscardReason.NO_MEM: 23_028})
    daemon.steady_ms += 3_600_000
    assert daemon.losses().last_hour() == {}


def test_lost_copies_of_files_that_are_no_longer_written_are_no_warning(daemon: OfflineStatusPages) -> None:
    daemon.histories.losses.sample()
    daemon.filled.input.add(Counter.MsgCopyLost, 2)
    assert "not written within the last hour" in str(well(daemon).json("/healthz")["warnings"])
    daemon.config = msgspec.structs.replace(daemon.config, msg_debug=MsgDebug())
    assert daemon.json("/healthz")["warnings"] == []


def test_samples_of_an_earlier_boot_are_dropped(daemon: OfflineStatusPages) -> None:
    discard(well(daemon), DiscardReason.NO_MEM, 3)
    daemon.steady_ms = 30_000
    assert daemon.losses().last_minute() == {}
    daemon.steady_ms = NOW_MS
    assert daemon.losses().last_minute() == {}


def test_half_a_sample_counts_for_nothing(daemon: OfflineStatusPages) -> None:
    discard(well(daemon), DiscardReason.NO_MEM, 3)
    rings = daemon.slab.row_at(lay.ROW_STATUS) + lay.ROW_STATUS_LOSSES
    place = daemon.slab.longs[rings >> 3 : (rings >> 3) + 62 * 32]
    [stored] = [index for index in range(0, len(place), 32) if place[index]]
    place[stored] = 0  # the time is stored last
    assert daemon.losses().last_minute() == {}


def test_exhausted_descriptors_are_a_problem_for_a_minute(daemon: OfflineStatusPages) -> None:
    daemon.filled.input.add(Counter.AcceptExhausted, 7)  # before status started
    daemon.histories.rates.sample(NOW_MS)
    assert well(daemon).json("/healthz")["ready"]
    daemon.filled.input.add(Counter.AcceptExhausted)
    (problem,) = daemon.json("/healthz", 503)["problems"]
    assert problem.startswith("Connections cannot be accepted: a process of the daemon was out of file descriptors")
    for second in (1, 60, 61):
        daemon.histories.rates.sample(NOW_MS + 1000 * second)
    assert daemon.json("/healthz")["ready"]


def test_discards_before_the_status_process_started_are_not_reported(daemon: OfflineStatusPages) -> None:
    daemon.filled.input.commit_landed(0, {discarded(DiscardReason.NO_MEM): 3, Counter.MsgReceived: 3})
    assert well(daemon).json("/healthz")["ready"]
