"""A dispatcher's connection: repeated reports of paused partitions to the router, and brokers that look old."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Final, cast

import pytest

from bruce_mp.config.model import Config
from bruce_mp.config.sections import Kafka
from bruce_mp.dispatcher.core import PAUSE_REPEAT_S
from bruce_mp.dispatcher.produce_session import ProduceSession
from bruce_mp.ipc.control_messages import Broker
from bruce_mp.ipc.frames import Parcel, ParcelKind
from bruce_mp.ipc.loop import Loop
from bruce_mp.ipc.start import Start
from bruce_mp.protocol.kafka.api_versions import BEFORE_API_VERSIONS, BrokerCapabilities
from bruce_mp.protocol.kafka.connection_events import ConnectionReady, ProduceAcked
from bruce_mp.protocol.kafka.kafka_types import PartitionAck, ProduceResponse
from bruce_mp.slab.producer_id import store_producer
from bruce_mp.slab.rows import ProcessRow
from bruce_mp.telemetry.event_output import EventOutput
from bruce_mp.telemetry.traffic import TrafficSums
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
    from bruce_mp.slab.file import Slab

NOT_LEADER: Final = 6
RECORD: Final = KafkaRecord(1_700_000_000_000, b"k", b"v")
NEW: Final = BrokerCapabilities(produce_version=9, metadata_version=9, init_producer_id_version=1)
PAUSED: Final = Parcel(ParcelKind.PAUSED, 1, 0)


class RecordingLoop(Loop):
    """A loop that never runs, with the calls that it was asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.later: list[tuple[float, Callable[[], None]]] = []

    def call_later(self, delay: float, callback: Callable[[], None]) -> Timer:
        self.later.append((delay, callback))
        return super().call_later(delay, callback)


def new_session(slab: Slab, core: Dispatcher, loop: Loop, broker_version: str | None = None) -> ProduceSession:
    """Create a session whose socket does nothing."""
    config = Config(kafka=Kafka(bootstrap_servers=("b1:9092",), broker_version=broker_version))
    start = Start("dispatcher-0", DISPATCHER_ROW, config, Path(), Path(), broker=Broker(7, "b1", 9092))
    session = ProduceSession(
        start,
        loop,
        ProcessRow(slab, DISPATCHER_ROW),
        slab=slab,
        core=core,
        encoder=cast("BatchEncoder", None),
        tap=cast("WireTap", SimpleNamespace(is_active=False)),
        status_output=EventOutput(Nowhere(), TrafficSums()),
    )
    session._socket = idle_socket()
    return session


def idle_socket() -> BrokerSocket:
    return cast("BrokerSocket", SimpleNamespace(close=lambda: None, certificate_ends_s=None))


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
    session = new_session(slab, synced_dispatcher(slab), RecordingLoop(), broker_version)
    found = []
    for name in brokers.split():
        session._socket = idle_socket()
        session._on_event(ConnectionReady(BEFORE_API_VERSIONS if name == "old" else NEW))
        assert session._is_ready == (session._socket is not None)
        found.append(not session._is_ready)
    assert found == refused
