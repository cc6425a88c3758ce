"""A main that fails to start with a reason."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bruce_mp.errors import StartError

if TYPE_CHECKING:
    from bruce_mp.ipc.control_messages import Control
    from bruce_mp.ipc.start import Start
    from bruce_mp.slab.file import Slab


def main(start: Start, slab: Slab, control: Control) -> None:
    raise StartError("The moon is in the wrong phase; wait a week.")
