"""A main that records one of its initial settings, and then obeys."""

from __future__ import annotations

from typing import TYPE_CHECKING

from support.fake_daemon import obedient

if TYPE_CHECKING:
    from bruce_mp.ipc.control_messages import Control
    from bruce_mp.ipc.start import Start
    from bruce_mp.slab.file import Slab


def main(start: Start, slab: Slab, control: Control) -> None:
    with (start.run_dir / f"{start.name}.heard").open("a") as heard:
        heard.write(f"max_in_flight={start.config.delivery.max_in_flight}\n")
    obedient.main(start, slab, control)
