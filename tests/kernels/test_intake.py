"""The intake waits for more behind the first datagram, and never longer than it was told to."""

from __future__ import annotations

import socket
from threading import Timer
from typing import Final

import pytest

from bruce_mp.kernels import ChunkPool, Intake, Lanes, PlainCounters, Receiver, Row
from bruce_mp.slab.tables import TopicTable
from bruce_mp.telemetry.clock import steady_ms
from bruce_mp.telemetry.counters import Counter
from support.slabs import INPUT_ROW, SMALL, datagram, new_slab

COUNTERS: Final = PlainCounters(
    Counter.MsgReceived,
    Counter.UnixDgInputAgentForwardMsg,
    Counter.InputAgentProcessAnyPartitionMsg,
    Counter.InputAgentProcessPartitionKeyMsg,
)
TOO_LATE_S: Final = 5.0


@pytest.mark.parametrize("wait_ms", range(7, 14))
def test_its_first_wait_ends_in_time_however_short_it_is(wait_ms: int) -> None:
    """What comes when it should be long over is not taken: a timer that was never set would wait for it."""
    with new_slab() as slab:
        number = TopicTable(slab).add(b"t1", 1)
        assert number
        lanes = Lanes(slab, ChunkPool(slab, INPUT_ROW), TopicTable(slab), lambda _: 1000)
        intake = Intake(Receiver(slab), lanes, Row(slab, INPUT_ROW), SMALL.landing_slot_size, COUNTERS)
        sender, receiver = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        with sender, receiver:
            sender.send(datagram())
            late = Timer(TOO_LATE_S, sender.send, [datagram()])
            late.start()
            now_ms = steady_ms()
            taken = intake.run(receiver.fileno(), 8, 64, now_ms, now_ms + wait_ms)
            late.cancel()
            late.join()
            assert taken.landed + taken.waiting == 1
