"""The state that a dispatcher changes when it puts a batch into a request."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from bruce_mp.config.model import Config
from bruce_mp.config.sections import Kafka
from bruce_mp.discards.reporter import DiscardReporter
from bruce_mp.dispatcher.core import Dispatcher
from bruce_mp.ipc.frames import Parcel, ParcelKind
from bruce_mp.slab.layout import FLAG_AFTER_GAP, RunState, state_word
from bruce_mp.slab.rows import ProcessRow
from support.links import Nowhere
from support.put_records import put_records
from support.record_batches import KafkaRecord
from support.slabs import DISPATCHER_ROW, set_state

if TYPE_CHECKING:
    from bruce_mp.slab.file import Slab


@pytest.mark.parametrize("may_have_gap", [False, True])
def test_a_sent_batch_ends_the_back_off_and_stores_a_gap_before_it(slab: Slab, *, may_have_gap: bool) -> None:
    row, config = ProcessRow(slab, DISPATCHER_ROW), Config(kafka=Kafka(bootstrap_servers=("b1:9092",)))
    core = Dispatcher(slab, row, config, 0, DiscardReporter(Nowhere(), 100), incarnation=1)
    core.on_parcels([Parcel(ParcelKind.SENDER, 0, 1), Parcel(ParcelKind.RESYNC, 1)], 0)
    core.on_connected(broker_deduplicates=True)
    segments = put_records(slab, [[KafkaRecord(1_700_000_000_000, b"k", b"v")]])
    set_state(slab, segments, state_word(RunState.ASSIGNED, 0))
    core.on_parcels([Parcel(ParcelKind.SENDER, 0, 1), Parcel(ParcelKind.BATCH, 1, 0, segments)], 0)
    queue = core._queues[1, 0]
    queue.may_have_gap, queue.not_before = may_have_gap, 3.0
    assert not core.next_request(0, 2.0)
    (batch,) = core.next_request(0, 4.0)
    assert queue.not_before == 0
    assert core._builder.has_flag(batch, FLAG_AFTER_GAP) is may_have_gap
