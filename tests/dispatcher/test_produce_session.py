"""A dispatcher's connection: repeated reports of pauses, brokers that look old, the end of a connection, throttling."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, cast

import pytest

from bruce_mp.config.model import Config
from bruce_mp.config.sections import Kafka
from bruce_mp.dispatcher import produce_session
from bruce_mp.dispatcher.core import PAUSE_REPEAT_S
from bruce_mp.dispatcher.produce_session import ProduceSession
from bruce_mp.errors import RemoteProtocolError
from bruce_mp.ipc.control_messages import Broker
from bruce_mp.ipc.frames import EVERYTHING, Parcel, ParcelKind
from bruce_mp.ipc.loop import Loop
from bruce_mp.ipc.start import Start
from bruce_mp.protocol.kafka.api_versions import BEFORE_API_VERSIONS, BrokerCapabilities
from bruce_mp.protocol.kafka.connection_events import (
    Closed,
    ConnectionReady,
    EncodedRequest,
    Failed,
    FailureCause,
    ProduceAcked,
)
from bruce_mp.protocol.kafka.kafka_types import PartitionAck, ProduceResponse
from bruce_mp.slab.producer_id import disable_idempotence, store_producer
from bruce_mp.slab.rows import ProcessRow
from bruce_mp.telemetry.counters import Counter
from bruce_mp.telemetry.event_output import EventOutput
from bruce_mp.telemetry.message_copies import CopyTarget
from support.dispatchers import assign, synced_dispatcher
from support.links import Nowhere
from support.record_batches import KafkaRecord
from support.slabs import DISPATCHER_ROW

if TYPE_CHECKING:
    from collections.abc import Callable

    from bruce_mp.dispatcher.core import Dispatcher
    from bruce_mp.dispatcher.encode import BatchEncoder
    from bruce_mp.ipc.loop import Timer
    from bruce_mp.network.broker_socket import BrokerSocket
    from bruce_mp.pipeline.msg_debug import WireTap
    from bruce_mp.protocol.kafka.connection_events import Event
    from bruce_mp.slab.file import Slab

NOT_LEADER: Final = 6
RECORD: Final = KafkaRecord(1_700_000_000_000, b"k", b"v")
NEW: Final = BrokerCapabilities(produce_version=9, metadata_version=9, init_producer_id_version=1)
BEFORE_CLIENT_THROTTLING: Final = BrokerCapabilities(5, metadata_version=5, init_producer_id_version=0)
CONNECTION_COUNTERS: Final = (
    Counter.ConnectorConnectFail,
    Counter.ConnectorSocketBrokerClose,
    Counter.ConnectorSocketError,
    Counter.ConnectorSocketTimeout,
    Counter.BadProduceResponse,
)
PAUSED: Final = Parcel(ParcelKind.PAUSED, 1, 0)
ALL_PAUSED: Final = Parcel(ParcelKind.PAUSED, partition=EVERYTHING)


class RecordingLoop(Loop):
    """A loop that never runs, with the calls that it was asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.later: list[tuple[float, Callable[[], None]]] = []

    def call_later(self, delay: float, callback: Callable[[], None]) -> Timer:
        self.later.append((delay, callback))
        return super().call_later(delay, callback)


class FakeSocket:
    """A socket without a broker."""

    certificate_ends_s = None

    def __init__(self, capabilities: BrokerCapabilities) -> None:
        self.connection = SimpleNamespace(
            capabilities=capabilities, request_produce=lambda *_, **__: EncodedRequest(1, [])
        )
        self.is_blocked = self.is_closed = False

    def open(self) -> None:
        """Connect to nothing."""

    def send(self, buffers: list[bytes]) -> None:
        """Accept all bytes."""

    def close(self) -> None:
        self.is_closed = True


def new_config(**kafka: Any) -> Config:
    return Config(kafka=Kafka(bootstrap_servers=("b1:9092",), **kafka))


def new_session(slab: Slab, core: Dispatcher, loop: Loop, tap: object = None, **kafka: Any) -> ProduceSession:
    """Create a session with a fake socket."""
    start = Start("dispatcher-0", DISPATCHER_ROW, new_config(**kafka), Path(), broker=Broker(7, "b1", 9092))
    session = ProduceSession(
        start,
        loop,
        ProcessRow(slab, DISPATCHER_ROW),
        slab=slab,
        core=core,
        encoder=cast("BatchEncoder", None),
        tap=cast("WireTap", tap or SimpleNamespace(is_active=False)),
        status_output=EventOutput(Nowhere(), core.traffic),
    )
    connect(session)
    return session


def connect(session: ProduceSession, capabilities: BrokerCapabilities = NEW) -> FakeSocket:
    """Replace the session's socket."""
    made = FakeSocket(capabilities)
    session._socket = cast("BrokerSocket", made)
    return made


def counted(slab: Slab) -> dict[Counter, int]:
    """Return the connection's counters that are not 0."""
    counters = ProcessRow(slab, DISPATCHER_ROW).counters
    return {counter: counters[counter] for counter in CONNECTION_COUNTERS if counters[counter]}


@pytest.mark.parametrize("error", [0, NOT_LEADER])
def test_a_pause_after_an_error_is_reported_repeatedly(slab: Slab, error: int) -> None:
    loop, core = RecordingLoop(), synced_dispatcher(slab)
    session = new_session(slab, core, loop)
    core.on_connected(broker_deduplicates=True)
    assign(slab, core, [[RECORD]])
    session._requests[1] = core.next_request(0, 0.0)
    core.drain_outbox()

    session._on_event(ProduceAcked(1, ProduceResponse((PartitionAck(b"t1", 0, error),))))
    assert (PAUSED in core.drain_outbox()) == bool(error)
    if not error:
        assert not loop.later
    for _ in range(3 if error else 0):
        [(delay, repeat)] = loop.later
        assert delay == PAUSE_REPEAT_S
        loop.later.clear()
        repeat()
        assert PAUSED in core.drain_outbox()


@pytest.mark.parametrize(
    ("is_idempotent", "broker_version", "brokers", "refused"),
    [
        (True, None, "old old old old", [True, True, False, False]),
        (True, None, "old old new old", [True, True, False, True]),
        (True, "0.9.0.1", "old", [False]),  # the configuration says so
        (False, None, "old", [False]),  # the cluster has no sequence numbers to lose
    ],
)
def test_a_broker_is_believed_to_be_old_only_at_its_third_connection(
    slab: Slab, is_idempotent: bool, broker_version: str | None, brokers: str, refused: list[bool]
) -> None:
    """It may only be slow to report its API versions."""
    if is_idempotent:
        store_producer(slab, 7)
    session = new_session(slab, synced_dispatcher(slab), RecordingLoop(), broker_version=broker_version)
    found = []
    for name in brokers.split():
        connect(session)
        session._on_event(ConnectionReady(BEFORE_API_VERSIONS if name == "old" else NEW))
        assert session._is_ready == (session._socket is not None)
        found.append(not session._is_ready)
    assert found == refused


@pytest.mark.parametrize(
    ("is_ready", "cause", "counter"),
    [
        (False, FailureCause.TIMED_OUT, Counter.ConnectorConnectFail),
        (True, FailureCause.TIMED_OUT, Counter.ConnectorSocketTimeout),
        (True, FailureCause.BAD_DATA, Counter.BadProduceResponse),
        (True, FailureCause.CLOSED_BY_BROKER, Counter.ConnectorSocketError),
    ],
)
def test_a_failed_connection_is_counted_by_its_cause_once_it_was_ready(
    slab: Slab, is_ready: bool, cause: FailureCause, counter: Counter
) -> None:
    session = new_session(slab, synced_dispatcher(slab), RecordingLoop())
    if is_ready:
        session._on_event(ConnectionReady(NEW))
    session._on_event(Failed(RemoteProtocolError("broken"), cause, ()))
    assert counted(slab) == {counter: 1}


@pytest.mark.parametrize("rest", ["none", "unwritten", "waiting"])
def test_a_connection_that_closes_is_lost_only_with_unwritten_or_waiting_messages(slab: Slab, rest: str) -> None:
    """Without a response (acks = 0), nothing else shows that batches were not written.

    Messages in back-off would otherwise open a connection at once, as often as the broker closes it.
    """
    core = synced_dispatcher(slab)
    session = new_session(slab, core, RecordingLoop())
    if rest != "none":
        assign(slab, core, [[RECORD]])
    if rest == "unwritten":
        session._unwritten = core.next_request(0, 0.0)
    core.drain_outbox()
    session._on_event(Closed())
    assert (ALL_PAUSED in core.drain_outbox()) == (rest != "none")
    assert core.wants_connection is False
    assert counted(slab) == {Counter.ConnectorSocketBrokerClose: 1}


@pytest.mark.parametrize("end", [Closed(), Failed(RemoteProtocolError("reset"), FailureCause.CLOSED_BY_BROKER, ())])
@pytest.mark.parametrize(("idle_s", "is_lost"), [(1, True), (600, False)])
def test_a_connection_that_ends_after_messages_without_acknowledgement_is_lost(
    slab: Slab,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    end: Event,
    idle_s: int,
    *,
    is_lost: bool,
) -> None:
    """The end is the only answer of a broker that no longer leads the partition."""
    core = synced_dispatcher(slab)
    session = new_session(slab, core, RecordingLoop(), required_acks=0)
    session._on_event(ConnectionReady(NEW))
    session._encoder = cast("BatchEncoder", SimpleNamespace(encode_uncompressed=lambda *_: ()))
    assign(slab, core, [[RECORD]])
    session.send_requests()
    assert core._row.counters[Counter.MsgDelivered] == 1
    now = time.monotonic() + idle_s
    monkeypatch.setattr(time, "monotonic", lambda: now)
    core.drain_outbox()
    session._on_event(end)
    assert (ALL_PAUSED in core.drain_outbox()) == is_lost
    assert ("may" in caplog.text) == is_lost


@pytest.mark.parametrize(("interval_s", "is_paused"), [(59, False), (61, True)])
def test_a_topic_that_is_always_refused_without_acknowledgement_pauses_the_others_rarely(
    slab: Slab, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, interval_s: int, *, is_paused: bool
) -> None:
    core = synced_dispatcher(slab)
    session = new_session(slab, core, RecordingLoop(), required_acks=0)
    session._encoder = cast("BatchEncoder", SimpleNamespace(encode_uncompressed=lambda *_: ()))
    pauses = []
    began = time.monotonic()
    for second in (0, interval_s):
        monkeypatch.setattr(time, "monotonic", lambda second=second: began + second)
        connect(session)
        session._may_refuse_until = time.monotonic() + 1
        core.drain_outbox()
        session._on_event(Closed())
        pauses.append(ALL_PAUSED in core.drain_outbox())
    assert pauses == [True, is_paused]
    assert caplog.text.count("may have refused its last messages") == len(pauses)


def test_an_outdated_connection_is_closed_when_its_bytes_are_sent(slab: Slab) -> None:
    session = new_session(slab, synced_dispatcher(slab), RecordingLoop())
    socket = connect(session)
    session.apply_config(new_config(client_id="new"), new_config())
    socket.is_blocked = True
    session.send_requests()
    assert not socket.is_closed
    socket.is_blocked = False
    session.send_requests()
    assert socket.is_closed


def test_a_producer_id_that_comes_late_replaces_the_connection(slab: Slab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the batches had no sequence numbers until the connection ends."""
    disable_idempotence(slab)
    core = synced_dispatcher(slab)
    session = new_session(slab, core, RecordingLoop())
    session._socket = None
    sockets: list[FakeSocket] = []

    def create_socket(*_: object, **__: object) -> FakeSocket:
        sockets.append(FakeSocket(NEW))
        return sockets[-1]

    monkeypatch.setattr(produce_session, "BrokerSocket", create_socket)
    assign(slab, core, [[RECORD]])
    for number in (None, 7, 7):
        if number:
            store_producer(slab, number)
        session.send_requests()
        session.send_requests()
    assert [socket.is_closed for socket in sockets] == [True, False]


def test_new_settings_without_a_connection_are_those_of_the_next(slab: Slab, monkeypatch: pytest.MonkeyPatch) -> None:
    """No connection is outdated, which would have to be closed first."""
    core = synced_dispatcher(slab)
    session = new_session(slab, core, RecordingLoop())
    session._socket = None
    session.apply_config(new_config(client_id="new"), new_config())
    client_ids = []
    monkeypatch.setattr(
        produce_session,
        "BrokerSocket",
        lambda *_, client_id, **__: SimpleNamespace(open=lambda: client_ids.append(client_id)),
    )
    assign(slab, core, [[RECORD]])
    session.send_requests()
    assert client_ids == ["new"]


@pytest.mark.parametrize(
    ("capabilities", "asked_s", "expected_s"), [(NEW, 3, 3), (NEW, 3600, 60), (BEFORE_CLIENT_THROTTLING, 3, None)]
)
def test_the_throttle_time_of_a_response_is_obeyed_up_to_a_minute(
    slab: Slab, capabilities: BrokerCapabilities, asked_s: int, expected_s: int | None
) -> None:
    """A broker that delays its response has throttled enough."""
    core = synced_dispatcher(slab)
    session = new_session(slab, core, RecordingLoop())
    connect(session, capabilities)
    core.on_connected(broker_deduplicates=True)
    assign(slab, core, [[RECORD]])
    session._requests[1] = core.next_request(0, 0.0)
    before = time.monotonic()
    session._on_event(ProduceAcked(1, ProduceResponse((PartitionAck(b"t1", 0, 0),), throttle_ms=asked_s * 1000)))
    waited_s = max(0.0, core._throttled_until - before)
    assert waited_s == pytest.approx(expected_s or 0, abs=1)


@pytest.mark.parametrize("error", [None, 0, NOT_LEADER])
def test_only_accepted_batches_are_copied_as_acknowledged(slab: Slab, error: int | None) -> None:
    copied: list[CopyTarget] = []
    core = synced_dispatcher(slab)
    tap = SimpleNamespace(is_active=True, copy=lambda target, *_: copied.append(target))
    session = new_session(slab, core, RecordingLoop(), tap)
    core.on_connected(broker_deduplicates=True)
    assign(slab, core, [[RECORD]])
    session._requests[1] = core.next_request(0, 0.0)
    acks = () if error is None else (PartitionAck(b"t1", 0, error),)
    session._on_event(ProduceAcked(1, ProduceResponse(acks)))
    assert copied == ([] if error else [CopyTarget.MSG_GOT_ACK])
