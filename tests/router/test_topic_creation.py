"""Topic creation: the choice of broker and request, and the responses that end it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pytest

from bruce_mp.config.sections import Delivery
from bruce_mp.errors import RemoteProtocolError
from bruce_mp.protocol.kafka.api_versions import BrokerCapabilities
from bruce_mp.protocol.kafka.connection_events import (
    Closed,
    ConnectionReady,
    EncodedRequest,
    Failed,
    FailureCause,
    MetadataReceived,
    TopicsCreated,
)
from bruce_mp.protocol.kafka.kafka_types import BrokerAddress, ClusterMetadata, TopicMetadata
from bruce_mp.router.cluster import Address
from bruce_mp.router.topic_creation import TopicCreator

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from bruce_mp.protocol.kafka.connection_events import Event

BROKERS: Final = [Address("one", 9092), Address("two", 9092)]
NAMES: Final = [b"a", b"b"]
REFUSED: Final = Failed(RemoteProtocolError("Broker one:9092 cannot be reached."), FailureCause.CLOSED_BY_BROKER, ())
NOT_CONTROLLER: Final = 41


def ready(create_topics_version: int | None) -> ConnectionReady:
    return ConnectionReady(BrokerCapabilities(9, 9, 4, create_topics_version))


class FakeConnection:
    """Records the requests."""

    def __init__(self, asked: list[object]) -> None:
        self.asked = asked

    def request_topic_creation(self, names: Sequence[bytes], _now: float, **sizes: int) -> EncodedRequest:
        self.asked.append(("create", names, sizes["partitions"], sizes["replication"]))
        return EncodedRequest(1, [])

    def request_metadata(
        self, names: Sequence[bytes], _now: float, *, allow_auto_topic_creation: bool
    ) -> EncodedRequest:
        assert allow_auto_topic_creation
        self.asked.append(("metadata", names))
        return EncodedRequest(1, [])


class FakeSocket:
    """A fake `BrokerSocket` with events that the test defines."""

    opened: list[FakeSocket]
    asked: list[object]

    def __init__(self, address: Address, on_event: Any) -> None:
        self.host = address.host
        self.tell = on_event
        self.connection = FakeConnection(self.asked)
        self.is_open = True

    def open(self) -> None:
        self.opened.append(self)

    def send(self, _buffers: list[bytes]) -> None:
        assert self.is_open

    def close(self) -> None:
        self.is_open = False


@pytest.fixture(autouse=True)
def _sockets() -> None:
    FakeSocket.opened, FakeSocket.asked = [], []


def play(*stories: list[Event], partitions: int | None = None, replication: int | None = None) -> Mapping[bytes, int]:
    """Run a request in which each broker has its events, and return the result."""
    results: list[Mapping[bytes, int]] = []
    delivery = Delivery(topic_autocreate_partitions=partitions, topic_autocreate_replication=replication)
    maker = TopicCreator(FakeSocket, delivery, results.append)  # type: ignore[arg-type]
    maker.start(BROKERS, NAMES)
    for at, story in enumerate(stories):
        assert maker.is_busy
        for event in story:
            FakeSocket.opened[at].tell(event)
    assert len(FakeSocket.opened) == len(stories)
    assert not maker.is_busy
    (result,) = results
    return result


@pytest.mark.parametrize(("partitions", "replication"), [(None, None), (6, None), (None, 3), (6, 3)])
@pytest.mark.parametrize("version", [0, 3, 4, 7, None])
def test_topic_sizes_are_left_to_a_broker_that_supports_defaults(
    partitions: int | None, replication: int | None, version: int | None
) -> None:
    knows = version is not None and (version >= 4 or (partitions is not None and replication is not None))
    answer = TopicsCreated(1, {b"a": 0, b"b": 36}) if knows else metadata(a=5, b=0)
    played = play([ready(version), answer], partitions=partitions, replication=replication)
    assert played == ({b"a": 0, b"b": 36} if knows else {b"a": 5, b"b": 0})
    as_asked = ("create", NAMES, partitions or -1, replication or -1)
    assert FakeSocket.asked == [as_asked if knows else ("metadata", NAMES)]


def metadata(**errors: int) -> MetadataReceived:
    topics = {name.encode(): TopicMetadata(error, {}) for name, error in errors.items()}
    return MetadataReceived(1, ClusterMetadata({1: BrokerAddress("one", 9092)}, topics))


def test_a_topic_missing_from_the_response_has_no_code() -> None:
    assert play([ready(None), metadata(a=3)]) == {b"a": 3}


@pytest.mark.parametrize("fault", [[REFUSED], [ready(7), REFUSED], [ready(7), Closed()]])
def test_a_failed_broker_is_skipped(fault: list[Event]) -> None:
    assert play(fault, [ready(7), TopicsCreated(1, {b"a": 0, b"b": 0})]) == {b"a": 0, b"b": 0}
    assert [socket.host for socket in FakeSocket.opened] == ["one", "two"]


def test_no_code_is_returned_when_every_broker_fails() -> None:
    assert play([REFUSED], [REFUSED]) == {}


def test_not_controller_moves_to_the_next_broker() -> None:
    no = TopicsCreated(1, {b"a": NOT_CONTROLLER, b"b": NOT_CONTROLLER})
    assert play([ready(7), no], [ready(7), TopicsCreated(1, {b"a": 0, b"b": 37})]) == {b"a": 0, b"b": 37}
    assert not FakeSocket.opened[0].is_open


def test_not_controller_from_every_broker_is_the_result() -> None:
    no = TopicsCreated(1, dict.fromkeys(NAMES, NOT_CONTROLLER))
    assert set(play([ready(7), no], [ready(7), no]).values()) == {NOT_CONTROLLER}
