"""A dispatcher without a connection, and messages for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bruce_mp.config.model import Config
from bruce_mp.config.sections import Kafka
from bruce_mp.discards.reporter import DiscardReporter
from bruce_mp.dispatcher.core import Dispatcher
from bruce_mp.ipc.frames import Parcel, ParcelKind
from bruce_mp.slab.layout import RunState, state_word
from bruce_mp.slab.rows import ProcessRow
from support.links import Nowhere
from support.put_records import put_records
from support.slabs import DISPATCHER_ROW, set_state

if TYPE_CHECKING:
    from bruce_mp.slab.file import Slab
    from support.record_batches import KafkaRecord

__all__ = ["assign", "synced_dispatcher"]


def synced_dispatcher(slab: Slab) -> Dispatcher:
    """Create the dispatcher of slot 0, and answer its HELLO."""
    row, config = ProcessRow(slab, DISPATCHER_ROW), Config(kafka=Kafka(bootstrap_servers=("b1:9092",)))
    made = Dispatcher(slab, row, config, 0, DiscardReporter(Nowhere(), 100), incarnation=1)
    made.on_parcels([Parcel(ParcelKind.SENDER, 0, 1), Parcel(ParcelKind.RESYNC, 1)], 0)
    return made


def assign(slab: Slab, to: Dispatcher, runs: list[list[KafkaRecord]], topic: int = 1, partition: int = 0) -> None:
    """Put a segment with these records for each run into the slab, and give them to a dispatcher as a batch."""
    segments = put_records(slab, runs, topic)
    set_state(slab, segments, state_word(RunState.ASSIGNED, 0))
    to.on_parcels([Parcel(ParcelKind.SENDER, 0, 1), Parcel(ParcelKind.BATCH, topic, partition, segments)], 0)
