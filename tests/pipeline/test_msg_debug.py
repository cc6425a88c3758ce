"""Message debugging: the copies of messages on their way."""

from __future__ import annotations

from bruce_mp.ipc.control_messages import DebugTopics
from bruce_mp.pipeline.msg_debug import WireTap
from bruce_mp.telemetry.message_copies import CopyTarget, decode_copies
from support.links import Keeping
from support.put_records import put_records
from support.record_batches import KafkaRecord
from support.slabs import new_slab


def test_damaged_messages_are_not_copied_and_others_are() -> None:
    link = Keeping()
    with new_slab() as slab:
        tap = WireTap(slab, link, lambda *_: None)
        tap.choose(DebugTopics((b"t1",)))
        first, second, third = put_records(slab, [[KafkaRecord(0, None, value)] for value in (b"a", b"b", b"c")])
        tap.copy(CopyTarget.MSG_GOT_ACK, b"t1", [first, second._replace(generation=second.generation + 1), third])
        tap.flush()
    assert [copy.value for data in link.sent for copy in decode_copies(data)] == [b"a", b"c"]
