"""Outages from an operator's view: the health page turns red with the cause, and the log reports the end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from bruce_mp.devbroker.control import DevBroker
from bruce_mp.devbroker.faults import Fault, FaultAction
from support.daemon import Daemon

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.process


def problems(daemon: Daemon) -> str:
    return " ".join(daemon.health()["problems"])


def send(daemon: Daemon, topic: str, count: int = 1) -> None:
    for number in range(count):
        daemon.send(topic, b"value", partition_key=number)


def brokers(daemon: Daemon) -> dict[int, dict[str, Any]]:
    return {line["node"]: line for line in daemon.get("/brokers/json")["brokers"]}


def test_the_pages_show_brokers_that_go_down_and_return(tmp_path: Path) -> None:
    with DevBroker(brokers=2, topics={"news": 2}) as broker, Daemon(tmp_path, broker.bootstrap) as daemon:
        send(daemon, "news", 2)
        daemon.wait_settled(2)
        daemon.wait_for(
            lambda: [line["connection"] for line in brokers(daemon).values()] == ["connected"] * 2, "both", 20
        )
        assert {line["delivery"] for line in brokers(daemon).values()} == {"exactly once"}
        daemon.wait_for(lambda: daemon.health()["ready"], "health", 20)
        for node in (1, 2):
            broker.broker_down(node)
        send(daemon, "news", 2)
        daemon.wait_for(lambda: "No broker can be reached" in problems(daemon), "a red page", 30)
        page = daemon.get("/brokers/json")
        assert page["metadata_failing_since"]
        assert page["metadata_error"]
        assert page["paused_count"] >= 1
        assert {each["state"] for each in page["paused"]} <= {"handing back", "waiting"}
        for node in (1, 2):
            broker.broker_up(node)
        daemon.wait_settled(4)
        daemon.wait_for(lambda: daemon.health()["ready"], "health again", 20)
        daemon.wait_for(lambda: "A broker answers again, after " in daemon.log(), "a word in the log", 10)
        daemon.wait_for(lambda: not daemon.get("/brokers/json")["paused_count"], "no pause", 10)


def test_the_pages_show_a_topic_refused_and_accepted_again(tmp_path: Path) -> None:
    with DevBroker(topics={"news": 1, "secret": 1}) as broker, Daemon(tmp_path, broker.bootstrap) as daemon:
        broker.inject(Fault(action=FaultAction.ERROR, code=42, topic="secret", times=None))
        send(daemon, "secret")
        daemon.wait_for(lambda: "refuse topic secret: INVALID_REQUEST" in problems(daemon), "red", 20)
        assert "1 message was discarded within the last minute, KAFKA_ERROR_ACK" in problems(daemon)
        broker.clear_faults()
        send(daemon, "secret")
        daemon.wait_settled(2)
        daemon.wait_for(lambda: "secret" not in problems(daemon), "green", 10)


def test_messages_of_an_unauthorized_topic_wait_for_permission(tmp_path: Path) -> None:
    with DevBroker(topics={"news": 1, "secret": 1}) as broker, Daemon(tmp_path, broker.bootstrap) as daemon:
        broker.inject(Fault(action=FaultAction.ERROR, code=29, topic="secret", times=None))
        send(daemon, "secret", 3)
        daemon.wait_for(lambda: "refuse topic secret: TOPIC_AUTHORIZATION_FAILED" in problems(daemon), "red", 20)
        assert "Its messages wait in the slab" in problems(daemon)
        assert "the daemon's user may not write to that topic (ACL WRITE)" in daemon.log()
        send(daemon, "news", 2)
        daemon.wait_for(lambda: daemon.books().delivered == 2, "the other topic", 20)
        broker.clear_faults()
        assert daemon.wait_settled(5).delivered == 5
        daemon.wait_for(lambda: "secret" not in problems(daemon), "green", 10)


def test_the_pages_name_a_partition_that_is_retried(tmp_path: Path) -> None:
    with DevBroker(topics={"news": 1}) as broker, Daemon(tmp_path, broker.bootstrap) as daemon:
        broker.inject(Fault(action=FaultAction.ERROR, code=19, topic="news", times=None))
        send(daemon, "news", 3)
        daemon.wait_for(lambda: any(line["troubles"] for line in brokers(daemon).values()), "the trouble", 20)
        (line,) = brokers(daemon).values()
        (trouble,) = line["troubles"]
        assert (trouble["topic"], trouble["partition"], trouble["error"]) == ("news", 0, "NOT_ENOUGH_REPLICAS")
        assert line["queued"] + line["in_flight"] == 3
        assert line["oldest_ms"] > 0
        broker.clear_faults()
        daemon.wait_settled(3)
        daemon.wait_for(lambda: not any(line["troubles"] for line in brokers(daemon).values()), "the end of it", 10)
        assert brokers(daemon)[1]["retries"] > 0
