"""A main that ignores all control messages."""

from __future__ import annotations

import select
from typing import TYPE_CHECKING

from bruce_mp.ipc.control_messages import Control, Ready

if TYPE_CHECKING:
    from bruce_mp.ipc.start import Start
    from bruce_mp.slab.file import Slab


def main(start: Start, slab: Slab, control: Control) -> None:
    control.send(Ready())
    select.poll().poll()
