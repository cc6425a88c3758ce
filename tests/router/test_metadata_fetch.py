"""One fetch goes from broker to broker until one answers all that is asked."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any, Final

import pytest

from bruce_mp.errors import RemoteProtocolError
from bruce_mp.protocol.kafka.api_versions import BEFORE_API_VERSIONS, BrokerCapabilities
from bruce_mp.protocol.kafka.connection_events import (
    Closed,
    ConnectionReady,
    EncodedRequest,
    Failed,
    FailureCause,
    MetadataReceived,
    ProducerIdReceived,
)
from bruce_mp.protocol.kafka.kafka_types import (
    BrokerAddress,
    ClusterMetadata,
    PartitionMetadata,
    ProducerIdResponse,
    TopicMetadata,
)
from bruce_mp.router import metadata_fetch
from bruce_mp.router.cluster import Address, view_of
from bruce_mp.router.metadata_fetch import MetadataFetcher

if TYPE_CHECKING:
    from bruce_mp.protocol.kafka.connection_events import Event
    from bruce_mp.router.metadata_fetch import FetchResult

BOOTSTRAP: Final = [Address("seed", 9092)]
METADATA: Final = ClusterMetadata({1: BrokerAddress("one", 9092)}, {})
REFUSED: Final = Failed(RemoteProtocolError("Broker one:9092 cannot be reached."), FailureCause.CLOSED_BY_BROKER, ())
READY: Final = ConnectionReady(BrokerCapabilities(9, 9, 4))
TOO_OLD: Final = ConnectionReady(BrokerCapabilities(2, 1, None))
LOOKS_OLD: Final = ConnectionReady(BEFORE_API_VERSIONS)
ANSWERED: Final = MetadataReceived(1, METADATA)


def producer(error: int) -> ProducerIdReceived:
    return ProducerIdReceived(2, ProducerIdResponse(error, -1, -1) if error else ProducerIdResponse(0, 7, 0))


class FakeConnection:
    """Requests without bytes."""

    def __init__(self) -> None:
        self.asked: list[list[bytes] | None] = []

    def request_metadata(self, topics: list[bytes] | None, _now: float) -> EncodedRequest:
        self.asked.append(topics)
        return EncodedRequest(1, [])

    def request_producer_id(self, _now: float) -> EncodedRequest:
        return EncodedRequest(2, [])


class FakeSocket:
    """A fake `BrokerSocket` with events that the test defines."""

    opened: list[FakeSocket]

    def __init__(self, address: Address, on_event: Any) -> None:
        self.host = address.host
        self.tell = on_event
        self.connection = FakeConnection()
        self.is_open = True

    def open(self) -> None:
        self.opened.append(self)

    def send(self, _buffers: list[bytes]) -> None:
        assert self.is_open

    def close(self) -> None:
        self.is_open = False


@pytest.fixture
def results() -> list[FetchResult | None]:
    FakeSocket.opened = []
    return []


def make_fetcher(results: list[FetchResult | None], cluster: str = "") -> MetadataFetcher:
    return MetadataFetcher(
        FakeSocket,  # type: ignore[arg-type]
        rng=random.Random(1),
        on_done=results.append,
        find_required_cluster=lambda: cluster,
    )


def play(
    results: list[FetchResult | None],
    *stories: list[Event],
    known: tuple[Address, ...] = (),
    needs_producer_id: bool = True,
) -> list[str]:
    """A fetch in which each broker that is asked tells its story; the names of those asked."""
    fetcher = make_fetcher(results)
    fetcher.start(known, BOOTSTRAP, needs_producer_id=needs_producer_id)
    for at, story in enumerate(stories):
        for event in story:
            FakeSocket.opened[at].tell(event)
    assert fetcher.is_busy is not bool(results)
    assert [socket.is_open for socket in FakeSocket.opened[len(stories) :]] == [True] * (
        len(FakeSocket.opened) - len(stories)
    )
    return [socket.host for socket in FakeSocket.opened]


def test_metadata_and_a_producer_id_come_from_one_broker(results: list[FetchResult | None]) -> None:
    assert play(results, [READY, ANSWERED, producer(0)]) == ["seed"]
    assert results == [metadata_fetch.FetchResult(METADATA, 7)]


def test_a_fetch_without_a_producer_id_ends_with_metadata(results: list[FetchResult | None]) -> None:
    play(results, [READY, ANSWERED], needs_producer_id=False)
    assert results == [metadata_fetch.FetchResult(METADATA, None)]


def test_brokers_without_producer_ids_are_not_asked_for_one(results: list[FetchResult | None]) -> None:
    play(results, [TOO_OLD, ANSWERED])
    assert results == [metadata_fetch.FetchResult(METADATA, None)]


def test_a_slow_broker_that_looks_old_does_not_end_exactly_once(results: list[FetchResult | None]) -> None:
    """A frozen or starting broker responds to Metadata, but perhaps too late to ApiVersions."""
    assert play(results, [LOOKS_OLD, ANSWERED], [READY, ANSWERED, producer(0)]) == ["seed", "one"]
    assert results == [metadata_fetch.FetchResult(METADATA, 7)]


def test_brokers_are_old_if_three_of_them_look_so(results: list[FetchResult | None]) -> None:
    known = tuple(Address(name, 1) for name in "abcd")
    story: list[Event] = [LOOKS_OLD, ANSWERED]
    assert len(play(results, story, story, story, known=known)) == 3
    assert results == [metadata_fetch.FetchResult(METADATA, None)]


@pytest.mark.parametrize("other", [[REFUSED], [LOOKS_OLD, REFUSED], [LOOKS_OLD, ANSWERED]])
def test_a_broker_is_old_if_no_other_differs(results: list[FetchResult | None], other: list[Event]) -> None:
    assert play(results, [LOOKS_OLD, ANSWERED], other) == ["seed", "one"]
    assert results == [metadata_fetch.FetchResult(METADATA, None)]


def test_a_broker_that_failed_after_an_old_one_is_asked_last(results: list[FetchResult | None]) -> None:
    fetcher = make_fetcher(results)
    fetcher.start((), BOOTSTRAP, needs_producer_id=True)
    for socket, story in ((0, [LOOKS_OLD, ANSWERED]), (1, [REFUSED])):
        for event in story:
            FakeSocket.opened[socket].tell(event)
    assert [socket.host for socket in FakeSocket.opened] == ["seed", "one"]
    fetcher.start([Address("one", 9092)], BOOTSTRAP, needs_producer_id=True)
    assert FakeSocket.opened[-1].host == "seed"


def test_a_broker_that_failed_before_an_old_one_is_not_asked_again(results: list[FetchResult | None]) -> None:
    """The metadata of the old broker lists it, and after a failure it may cost the whole timeout."""
    known = (Address("one", 9092),)
    assert play(results, [REFUSED], [LOOKS_OLD, ANSWERED], known=known) == ["one", "seed"]
    assert results == [metadata_fetch.FetchResult(METADATA, None)]


def test_the_age_of_a_broker_matters_only_for_a_producer_id(results: list[FetchResult | None]) -> None:
    assert play(results, [LOOKS_OLD, ANSWERED], needs_producer_id=False) == ["seed"]
    assert results == [metadata_fetch.FetchResult(METADATA, None)]


@pytest.mark.parametrize("found", ["ours", "", "other"])
def test_brokers_of_another_cluster_are_passed_over(results: list[FetchResult | None], found: str) -> None:
    metadata = ClusterMetadata({1: BrokerAddress("one", 9092)}, {}, cluster_id=found)
    fetcher = make_fetcher(results, "ours")
    fetcher.start((), BOOTSTRAP, needs_producer_id=False)
    for event in (READY, MetadataReceived(1, metadata)):
        FakeSocket.opened[0].tell(event)
    if found == "other":
        assert results == [None]
        assert (fetcher.foreign_cluster, fetcher.needs_operator) == ("other", True)
        assert fetcher.last_error.startswith("Broker seed:9092 belongs to the cluster other, but the messages are for")
    else:
        assert results == [metadata_fetch.FetchResult(metadata, None)]
        assert fetcher.foreign_cluster == ""


@pytest.mark.parametrize("story", [[REFUSED], [READY, REFUSED], [READY, Closed()], [READY, ANSWERED, REFUSED]])
def test_a_failed_broker_is_followed_by_known_ones_before_bootstrap_servers(
    results: list[FetchResult | None], story: list[Event]
) -> None:
    known = (Address("one", 1), Address("two", 2))
    asked = play(results, story, story, [READY, ANSWERED, producer(0)], known=known)
    assert (sorted(asked[:2]), asked[2:]) == (["one", "two"], ["seed"])
    assert len(results) == 1


def test_each_known_broker_may_be_asked_first(results: list[FetchResult | None]) -> None:
    known = [Address(name, 1) for name in ("one", "two", "three")]
    fetcher = make_fetcher(results)
    asked_first = set()
    for _ in range(30):
        FakeSocket.opened = []
        fetcher.start(known, BOOTSTRAP, needs_producer_id=False)
        asked_first.add(FakeSocket.opened[0].host)
        for event in (READY, ANSWERED):
            FakeSocket.opened[0].tell(event)
    assert asked_first == {"one", "two", "three"}


def test_the_attempt_names_the_present_and_the_failed_broker(results: list[FetchResult | None]) -> None:
    fetcher = make_fetcher(results)
    assert fetcher.progress == ("", "")
    for _ in range(2):  # a fetch starts without the error of the fetch before
        FakeSocket.opened = []
        fetcher.start([Address("one", 9092)], BOOTSTRAP, needs_producer_id=False)
        first, second = sorted(["one:9092", "seed:9092"], key=lambda name: name != f"{FakeSocket.opened[0].host}:9092")
        assert fetcher.progress == (first, "")
        FakeSocket.opened[0].tell(REFUSED)
        assert fetcher.progress == (second, "Broker one:9092 cannot be reached.")
        FakeSocket.opened[1].tell(REFUSED)
        assert fetcher.progress == ("", "")
    assert results == [None, None]


def test_the_broker_that_failed_last_is_asked_last(results: list[FetchResult | None]) -> None:
    """A silent broker costs its time once, not each time that chance picks it first."""
    fetcher = make_fetcher(results)
    silent, good = Address("silent", 1), Address("good", 2)
    while not FakeSocket.opened or FakeSocket.opened[-1].host != "silent":
        FakeSocket.opened = []
        fetcher.start([silent, good], [], needs_producer_id=False)
    for event in ([REFUSED], [READY, ANSWERED]):
        for one in event:
            FakeSocket.opened[-1].tell(one)
    for _ in range(20):
        fetcher.start([silent, good], BOOTSTRAP, needs_producer_id=False)
        assert FakeSocket.opened[-1].host == "good"
        for one in (READY, ANSWERED):
            FakeSocket.opened[-1].tell(one)
    fetcher.start([silent, good], [], needs_producer_id=False)
    for one in (REFUSED, READY, ANSWERED):
        FakeSocket.opened[-1].tell(one)
    for _ in range(20):
        fetcher.start([silent, good], [], needs_producer_id=False)
        assert FakeSocket.opened[-1].host == "silent", "it has responded since, and the other has failed"
        for one in (READY, ANSWERED):
            FakeSocket.opened[-1].tell(one)


def test_a_failed_broker_that_left_the_cluster_comes_back_as_a_new_one(results: list[FetchResult | None]) -> None:
    fetcher = make_fetcher(results)
    first, other = Address("first", 1), Address("other", 2)
    for brokers, events in (([first], [REFUSED]), ([other], [READY, ANSWERED])):
        fetcher.start(brokers, [], needs_producer_id=False)
        for event in events:
            FakeSocket.opened[-1].tell(event)
    asked = set()
    for _ in range(20):
        fetcher.start([first, other], [], needs_producer_id=False)
        asked.add(FakeSocket.opened[-1].host)
    assert asked == {"first", "other"}


def test_a_broker_without_its_dispatchers_connection_is_asked_last(results: list[FetchResult | None]) -> None:
    fetcher = make_fetcher(results)
    lost, good = Address("lost", 1), Address("good", 2)
    first = set()
    for failing in [*[[lost]] * 20, *[[]] * 20]:
        fetcher.start([lost, good], [], needs_producer_id=False, ask_last=failing)
        first.add((bool(failing), FakeSocket.opened[-1].host))
        for one in (READY, ANSWERED):
            FakeSocket.opened[-1].tell(one)
    assert first == {(True, "good"), (False, "good"), (False, "lost")}


def test_a_fetch_without_any_response_fails(results: list[FetchResult | None]) -> None:
    play(results, [REFUSED])
    assert results == [None]


@pytest.mark.parametrize("error", [14, 15, 16, 7, -1])
def test_a_retriable_producer_id_error_fails_the_fetch(results: list[FetchResult | None], error: int) -> None:
    """A new cluster responds so for a while, but a decision holds for the life of the slab."""
    play(results, [READY, ANSWERED, producer(error)])
    assert results == [None]


def test_a_refused_producer_id_is_returned_with_its_error(results: list[FetchResult | None]) -> None:
    play(results, [READY, ANSWERED, producer(31)])
    assert results == [metadata_fetch.FetchResult(METADATA, None, 31)]


def test_a_broker_that_refused_a_producer_id_is_asked_again(results: list[FetchResult | None]) -> None:
    """An operator may have granted the permission since."""
    fetcher = make_fetcher(results)
    for story in ([READY, ANSWERED, producer(31)], [READY, ANSWERED, producer(0)]):
        fetcher.start([], BOOTSTRAP, needs_producer_id=True)
        for event in story:
            FakeSocket.opened[-1].tell(event)
    assert results == [metadata_fetch.FetchResult(METADATA, None, 31), metadata_fetch.FetchResult(METADATA, 7)]


@pytest.mark.parametrize("last", [FailureCause.LOGIN_REFUSED, FailureCause.CLOSED_BY_BROKER])
def test_the_error_that_needs_the_operator_is_reported(results: list[FetchResult | None], last: FailureCause) -> None:
    fetcher = make_fetcher(results)
    fetcher.start([], [Address("one", 1), Address("two", 2)], needs_producer_id=False)
    FakeSocket.opened[-1].tell(Failed(RemoteProtocolError("Expired."), FailureCause.TLS_FAILED, ()))
    FakeSocket.opened[-1].tell(Failed(RemoteProtocolError("The last."), last, ()))
    assert results == [None]
    assert (fetcher.needs_operator, fetcher.last_error) == (True, "The last." if last.needs_operator else "Expired.")


def test_a_missing_topic_is_requested_by_name(results: list[FetchResult | None]) -> None:
    """Brokers hide forbidden topics, and report them only for a request by name."""
    fetcher = make_fetcher(results)
    shown = ClusterMetadata(METADATA.brokers, {b"shown": TopicMetadata(0, {})})
    fetcher.start([], BOOTSTRAP, needs_producer_id=True, names=[b"shown", b"hidden", b"gone"])
    socket = FakeSocket.opened[-1]
    socket.tell(READY)
    socket.tell(MetadataReceived(1, shown))
    assert not results
    named = {b"hidden": TopicMetadata(29, {}), b"gone": TopicMetadata(3, {})}
    socket.tell(MetadataReceived(2, ClusterMetadata(METADATA.brokers, named)))
    socket.tell(producer(0))
    assert results == [metadata_fetch.FetchResult(shown, 7, 0, frozenset([b"hidden"]))]
    assert socket.connection.asked == [None, [b"hidden", b"gone"]]


def test_an_old_broker_is_not_asked_for_a_missing_topic(results: list[FetchResult | None]) -> None:
    fetcher = make_fetcher(results)
    fetcher.start([], BOOTSTRAP, needs_producer_id=False, names=[b"gone"])
    FakeSocket.opened[-1].tell(TOO_OLD)
    FakeSocket.opened[-1].tell(ANSWERED)
    assert results == [metadata_fetch.FetchResult(METADATA, None)]


def test_view_of_metadata_has_leaders_and_partitions() -> None:
    partitions = {
        2: PartitionMetadata(0, 1),
        0: PartitionMetadata(9, 1),  # a follower is missing: the leader is good
        1: PartitionMetadata(5, -1),
    }
    topics = {b"t": TopicMetadata(0, partitions), b"new": TopicMetadata(5, {}), b"gone": TopicMetadata(3, partitions)}
    view = view_of(ClusterMetadata({1: BrokerAddress("one", 9092), 2: BrokerAddress("two", 9092)}, topics))
    assert view.brokers == {1: Address("one", 9092), 2: Address("two", 9092)}
    assert view.topics.keys() == {b"t", b"new"}
    assert view.topics[b"t"].partitions == (0, 1, 2)
    assert view.topics[b"t"].leaders == {0: 1, 2: 1}
    assert view.topics[b"t"].key_partitions() == [0, 2, 2]
    assert view.leading_brokers == {1}
