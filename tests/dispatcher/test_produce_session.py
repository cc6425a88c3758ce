"""A dispatcher's connection: the reports of paused partitions to the router are repeated."""

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
from bruce_mp.protocol.kafka.connection_events import ProduceAcked
from bruce_mp.protocol.kafka.kafka_types import PartitionAck, ProduceResponse
from bruce_mp.slab.rows import ProcessRow
from bruce_mp.telemetry.event_output import EventOutput
from bruce_mp.telemetry.traffic import TrafficSums
from support.dispatchers import assign, synced_dispatcher
from support.links import Nowhere
from support.record_batches import KafkaRecord
from support.slabs import DISPATCHER_ROW

if TYPE_CHECKING:
    from collections.abc import Callable

    from bruce_mp.dispatcher.encode import BatchEncoder
    from bruce_mp.ipc.loop import Timer
    from bruce_mp.network.broker_socket import BrokerSocket
    from bruce_mp.pipeline.msg_debug import WireTap
    from bruce_mp.slab.file import Slab

NOT_LEADER: Final = 6
RECORD: Final = KafkaRecord(1_700_000_000_000, b"k", b"v")
PAUSED: Final = Parcel(ParcelKind.PAUSED, 1, 0)


class RecordingLoop(Loop):
    """A loop that never runs, with the calls that it was asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.later: list[tuple[float, Callable[[], None]]] = []

    def call_later(self, delay: float, callback: Callable[[], None]) -> Timer:
        self.later.append((delay, callback))
        return super().call_later(delay, callback)


@pytest.mark.parametrize("error", [0, NOT_LEADER])
def test_a_pause_after_an_error_is_reported_repeatedly(slab: Slab, error: int) -> None:
    config = Config(kafka=Kafka(bootstrap_servers=("b1:9092",)))
    row, loop = ProcessRow(slab, DISPATCHER_ROW), RecordingLoop()
    core = synced_dispatcher(slab)
    start = Start("dispatcher-0", DISPATCHER_ROW, config, Path(), Path(), broker=Broker(7, "b1", 9092))
    session = ProduceSession(
        start,
        loop,
        row,
        slab=slab,
        core=core,
        encoder=cast("BatchEncoder", None),
        tap=cast("WireTap", SimpleNamespace(is_active=False)),
        status_output=EventOutput(Nowhere(), TrafficSums()),
    )
    session._socket = cast("BrokerSocket", object())
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
