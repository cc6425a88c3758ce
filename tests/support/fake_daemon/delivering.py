"""A router that delivers all messages of the slab when it is told to drain."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from bruce_mp.ipc.control_messages import Control, Drain, Ready
from bruce_mp.slab.layout import RunState
from bruce_mp.slab.recovery import sweep
from bruce_mp.slab.rows import ProcessRow
from bruce_mp.telemetry.counters import Counter
from support.fake_daemon.obedient import ends

if TYPE_CHECKING:
    from bruce_mp.ipc.start import Start
    from bruce_mp.slab.file import Slab


def main(start: Start, slab: Slab, control: Control) -> None:
    row = ProcessRow(slab, start.row)
    row.begin(os.getpid(), 0)
    control.send(Ready())
    while True:
        message = control.receive()
        if isinstance(message, Drain):
            segments = [found.segment for found in sweep(slab, {RunState.FILLED})]
            row.settle(segments, RunState.DELIVERED, 0, {Counter.MsgDelivered: sum(part.records for part in segments)})
        if ends(start, message):
            return
