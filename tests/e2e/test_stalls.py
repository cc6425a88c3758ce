"""Health: brokers and partitions that take nothing although messages wait for them, and sockets out of reach."""

from __future__ import annotations

import os
import re
import signal
import time
from typing import TYPE_CHECKING

import pytest

from bruce_mp.devbroker.control import DevBroker
from bruce_mp.devbroker.faults import Fault, FaultAction
from support.daemon import Daemon
from support.endless_senders import UNLIMITED, EndlessSenders
from support.processes import run_bruce
from support.read_back import read_back_kafka, values_in
from support.traffic import Load, compare

if TYPE_CHECKING:
    from pathlib import Path

    from support.kafka_cluster import KafkaCluster

pytestmark = pytest.mark.process

STALL = re.compile(r"has acknowledged nothing for (\d+) s while (\d+) messages? waits? for")
PARTITION_STALL = re.compile(r"Nothing was acknowledged for news-0 for (\d+) s while (\d+) messages? waits?: (\w+)")


def monitor(daemon: Daemon) -> str:
    return run_bruce("monitor", "--url", daemon.url(""), "--state", daemon.directory / "state").stdout


def test_a_stopped_broker_is_a_problem_while_messages_wait(tmp_path: Path) -> None:
    with DevBroker(topics={"news": 1}) as broker, Daemon(tmp_path, broker.bootstrap) as daemon:
        first, second = [b"a%03d" % number for number in range(20)], [b"b%03d" % number for number in range(200)]
        daemon.send("news", *first)
        daemon.wait_settled(20)
        daemon.wait_for(lambda: daemon.health()["ready"], "health", 20)
        assert monitor(daemon).startswith("BRUCE OK: ")
        os.kill(broker.pid, signal.SIGSTOP)
        try:
            time.sleep(6)  # silence without messages is no stall
            assert daemon.health()["ready"]
            stopped = time.monotonic()
            daemon.send("news", *second)
            daemon.wait_for(lambda: not daemon.health()["ready"], "a red page", 15)
            assert time.monotonic() - stopped >= 5
            [found] = [STALL.search(text) for text in daemon.health()["problems"]]
            assert found is not None
            assert (5 <= int(found[1]) < 12, found[2]) == (True, "200")
            assert monitor(daemon).startswith("BRUCE CRITICAL: 1 problems on /healthz: Broker 1 at ")
            assert "\nbruce_stalled_messages 200\n" in daemon.get_text("/metrics")
        finally:
            os.kill(broker.pid, signal.SIGCONT)
        assert daemon.wait_settled(220).delivered == 220
        daemon.wait_for(lambda: daemon.health()["ready"], "health again", 10)
        assert values_in(broker, "news") == first + second


def test_a_removed_socket_file_is_a_problem_until_a_restart(tmp_path: Path) -> None:
    with DevBroker(topics={"news": 1}) as broker, Daemon(tmp_path, broker.bootstrap) as daemon:

        def problems() -> str:
            return " ".join(daemon.health()["problems"])

        daemon.send("news", b"a")
        daemon.wait_settled(1)
        assert problems() == ""
        daemon.socket_path.unlink()
        daemon.wait_for(lambda: f"The socket file {daemon.socket_path} is gone" in problems(), "the problem", 15)
        daemon.kill("status")
        daemon.wait_for(lambda: f"The socket file {daemon.socket_path} is gone" in problems(), "the problem again", 15)
        assert daemon.log().count("is gone or was replaced: remove what may be") == 1
        assert daemon.terminate() == 0
        daemon.start()
        daemon.send("news", b"b")
        assert daemon.wait_settled(1).delivered == 1
        assert problems() == ""
        assert values_in(broker, "news") == [b"a", b"b"]


def test_a_dead_bootstrap_is_a_warning_while_all_is_delivered(tmp_path: Path) -> None:
    with DevBroker(topics={"news": 1}) as broker, Daemon(tmp_path, broker.bootstrap) as daemon:
        daemon.send("news", b"a")
        daemon.wait_settled(1)
        daemon.reload({"kafka.bootstrap_servers": ["127.0.0.1:1"]})
        daemon.wait_for(lambda: "no metadata can be fetched" in " ".join(daemon.health()["warnings"]), "warning", 20)
        daemon.send("news", b"b")
        assert daemon.wait_settled(2).delivered == 2
        page = daemon.health()
        assert (page["ready"], page["problems"], len(page["warnings"])) == (True, [], 1)
        assert monitor(daemon).startswith("BRUCE WARNING: 1 warnings on /healthz: The brokers take messages")


def connections(daemon: Daemon) -> list[str]:
    return [line["connection"] for line in daemon.get("/brokers/json")["brokers"]]


def test_a_refused_partition_is_a_warning_that_grows_older(tmp_path: Path) -> None:
    """A pause moves the messages to the router and back, which does not end the stall."""
    with DevBroker(topics={"news": 2}) as broker, Daemon(tmp_path, broker.bootstrap) as daemon:
        broker.inject(Fault(action=FaultAction.ERROR, code=6, topic="news", partition=0, times=None))
        daemon.send("news", b"refused", partition_key=0)
        taken: list[bytes] = []

        def stall() -> re.Match[str] | None:
            return PARTITION_STALL.search(" ".join(daemon.health()["warnings"]))

        def is_old_despite_another() -> bool:
            taken.append(b"taken %03d" % len(taken))
            daemon.send("news", taken[-1], partition_key=1)
            time.sleep(0.2)
            return bool((found := stall()) and int(found[1]) >= 9)

        daemon.wait_for(is_old_despite_another, "an old stall", 30)
        found = stall()
        assert found is not None
        assert (found[2], found[3], daemon.health()["problems"]) == ("1", "NOT_LEADER_OR_FOLLOWER", [])
        broker.clear_faults()
        assert daemon.wait_settled(1 + len(taken)).delivered == 1 + len(taken)
        daemon.wait_for(lambda: stall() is None, "the end of the warning", 10)
        assert values_in(broker, "news") == [b"refused", *taken]


def test_a_restart_does_not_forget_the_discards_of_the_last_minute(tmp_path: Path) -> None:
    refusal = "3 messages were discarded within the last minute, KAFKA_ERROR_ACK"
    with DevBroker(topics={"news": 1}) as broker, Daemon(tmp_path, broker.bootstrap) as daemon:
        daemon.wait_for(lambda: daemon.health()["ready"], "health", 20)
        broker.inject(Fault(action=FaultAction.ERROR, code=42, topic="news", times=None))
        daemon.send("news", b"a", b"b", b"c")
        daemon.wait_for(lambda: refusal in " ".join(daemon.health()["problems"]), "the discards", 20)
        daemon.kill("status")
        daemon.wait_for(lambda: refusal in " ".join(daemon.health()["problems"]), "the same discards", 20)
        daemon.kill_all()
        daemon.start()
        daemon.wait_for(lambda: refusal in " ".join(daemon.health()["problems"]), "the same discards again", 20)
        books = daemon.wait_settled(3)
        assert (books.received, sum(books.discarded.values())) == (3, 3)


def test_a_pause_and_the_health_reach_log_and_program(tmp_path: Path) -> None:
    events = tmp_path / "events"
    hook = {
        "events.command": ["/bin/sh", "-c", f'echo "$BRUCE_EVENT $BRUCE_STATE" >> {events}'],
        "events.interval_s": 1,
    }
    with DevBroker(topics={"news": 1}) as broker, Daemon(tmp_path, broker.bootstrap) as daemon:
        daemon.wait_for(lambda: daemon.health()["ready"], "health", 20)
        assert not events.exists()
        daemon.reload(hook)

        def seen() -> list[str]:
            return events.read_text().splitlines() if events.exists() else []

        broker.broker_down(1)
        daemon.send("news", b"a")
        daemon.wait_for(lambda: {"paused paused", "health problem"} <= set(seen()), "the pause", 30)
        assert "so messages wait; see /brokers: " in daemon.log()
        broker.broker_up(1)
        assert daemon.wait_settled(1).delivered == 1
        daemon.wait_for(lambda: {"flowing flowing", "health healthy"} <= set(seen()), "the end of the pause", 30)
        assert "Messages flow again: " in daemon.log()


def test_a_stopped_broker_of_three_is_a_problem_and_the_others_take_messages(
    tmp_path: Path, kafka_3: KafkaCluster
) -> None:
    kafka_3.create_topic("halted", 6)
    load = Load(("halted",), senders=2, messages=UNLIMITED)
    with Daemon(tmp_path, kafka_3.bootstrap) as daemon, EndlessSenders(daemon, load, rate=1000) as senders:
        daemon.wait_for(lambda: connections(daemon) == ["connected"] * 3, "connections", 30)
        daemon.wait_for(lambda: daemon.health()["ready"] and daemon.books().delivered > 2000, "deliveries", 30)
        halted = kafka_3.leader("halted")
        kafka_3.suspend(halted)
        try:
            sentence = re.compile(
                rf"Broker {halted} at \S+ has acknowledged nothing for (\d+) s while \d+ messages wait"
            )
            daemon.wait_for(lambda: sentence.search(" ".join(daemon.health()["problems"])) is not None, "red", 20)
            before = daemon.books().delivered
            daemon.wait_for(lambda: daemon.books().delivered > before + 1000, "deliveries to the others", 20)
        finally:
            kafka_3.resume(halted)
        daemon.wait_for(lambda: daemon.health()["ready"], "health again", 60)
        senders.stop()
        books = daemon.wait_settled(sum(senders.sent.values()))
        assert books.received == books.delivered == sum(senders.sent.values())
    kafka_3.heal()
    account = compare(load, senders.sent, read_back_kafka(kafka_3, load.topics), {"halted": [6]})
    assert (account.read, account.repeated, account.missing) == (books.delivered, {}, {})
