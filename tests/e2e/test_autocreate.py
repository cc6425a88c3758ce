"""Unknown topics: created on demand or refused, while messages of other topics flow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

from bruce_mp.client import DatagramClient
from bruce_mp.devbroker.codes import ApiKey
from bruce_mp.devbroker.faults import Fault, FaultAction
from bruce_mp.telemetry.counters import Counter
from support.daemon import Daemon
from support.read_back import broker_fixture, read_back
from support.traffic import Load, assert_all_there, deliver

if TYPE_CHECKING:
    from pathlib import Path

    from bruce_mp.devbroker.control import DevBroker

pytestmark = pytest.mark.process

SETTINGS: Final = {"input.unix_datagram.when_full": "block", "delivery.topic_autocreate": "true"}
POLICY_VIOLATION: Final = 44
broker = broker_fixture(brokers=2, topics={"there": 2})


@pytest.mark.parametrize("sizes", [{}, {"delivery.topic_autocreate_partitions": 5}])
def test_new_topics_get_every_message(tmp_path: Path, broker: DevBroker, sizes: dict[str, object]) -> None:
    load = Load(("there", "new-1", "new-2", "new-3"), senders=2, messages=1000, largest=500)
    with Daemon(tmp_path, broker.bootstrap, {**SETTINGS, **sizes}) as daemon:
        deliver(load, daemon)
        assert daemon.counters()[Counter.TopicAutocreateSuccess.name] == 3
    assert len(broker.fetch("new-1")) == sizes.get("delivery.topic_autocreate_partitions", 1)
    assert_all_there(load, read_back(broker, load.topics))


def test_a_refused_topic_costs_one_request_and_blocks_no_other(tmp_path: Path, broker: DevBroker) -> None:
    refuse = Fault(
        action=FaultAction.ERROR, api=ApiKey.CREATE_TOPICS, topic="forbidden", code=POLICY_VIOLATION, times=None
    )
    broker.inject(refuse)
    with Daemon(tmp_path, broker.bootstrap, SETTINGS) as daemon, DatagramClient(daemon.socket_path) as client:
        for number in range(200):
            client.send("forbidden", b"%d" % number)
            client.send("there", b"%d" % number)
        client.send("no/topic", b"")
        books = daemon.wait_settled(401)
        assert (books.delivered, books.discarded) == (200, {"TOPIC_AUTOCREATE_FAIL": 201})
        assert daemon.counters()[Counter.TopicAutocreateGotErrorResponse.name] == 1
        assert daemon.counters()[Counter.DiscardOnTopicAutocreateFail.name] == 201
        assert "Topic forbidden cannot be created: the broker answered POLICY_VIOLATION (44)." in daemon.log()
