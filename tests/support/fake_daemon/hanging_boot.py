"""A main that hangs in its first boot, and is obedient from its second on."""

from __future__ import annotations

import select
from typing import TYPE_CHECKING

from support.fake_daemon import obedient

if TYPE_CHECKING:
    from bruce_mp.ipc.control_messages import Control
    from bruce_mp.ipc.start import Start
    from bruce_mp.slab.file import Slab


def main(start: Start, slab: Slab, control: Control) -> None:
    mark = start.run_dir / "stuck"
    if not mark.exists():
        mark.touch()
        select.poll().poll()
    obedient.main(start, slab, control)
