"""The state that a dispatcher changes when it puts a batch into a request."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from bruce_mp.slab.layout import FLAG_AFTER_GAP
from support.dispatchers import assign, synced_dispatcher
from support.record_batches import KafkaRecord

if TYPE_CHECKING:
    from bruce_mp.slab.file import Slab


@pytest.mark.parametrize("may_have_gap", [False, True])
def test_a_sent_batch_ends_the_back_off_and_stores_a_gap_before_it(slab: Slab, *, may_have_gap: bool) -> None:
    core = synced_dispatcher(slab)
    core.on_connected(broker_deduplicates=True)
    assign(slab, core, [[KafkaRecord(1_700_000_000_000, b"k", b"v")]])
    queue = core._queues[1, 0]
    queue.gap_end, queue.backoff_end = 0 if may_have_gap else None, 3.0
    assert not core.next_request(0, 2.0)
    (batch,) = core.next_request(0, 4.0)
    assert queue.backoff_end == 0
    assert core._builder.has_flag(batch, FLAG_AFTER_GAP) is may_have_gap
