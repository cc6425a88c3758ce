"""A router that delivers all messages of the slab when it is told to drain."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from bruce_mp.pipes.control import Control, Drain, Ready
from bruce_mp.slab.layout import State
from bruce_mp.slab.recovery import sweep
from bruce_mp.slab.rows import Row
from bruce_mp.telemetry.counters import Counter
from support.fake_daemon.obedient import ends

if TYPE_CHECKING:
    from bruce_mp.pipes.start import Start
    from bruce_mp.slab.file import Slab


def main(start: Start, slab: Slab, control: Control) -> None:
    row = Row(slab, start.row)
    row.begin(os.getpid(), 0)
    control.send(Ready())
    while True:
        word = control.receive()
        if isinstance(word, Drain):
            segments = [found.segment for found in sweep(slab, {State.FILLED})]
            row.settle(segments, State.DELIVERED, 0, {Counter.MsgDelivered: sum(part.records for part in segments)})
        if ends(start, word):
            return
