"""Programs of the daemon's processes.

They are dotted module names. The supervisor imports a program only before it first spawns a process with it.
"""

from __future__ import annotations

from typing import Final, NamedTuple

__all__ = ["PROGRAMS", "Programs"]


class Programs(NamedTuple):
    """Modules with `main(start: Start, slab: Slab, control: Control) -> None`.

    A module may also have `prepare(slab: Slab) -> None`. It runs before Begin, so during an upgrade the old process may
    still work at that time.
    """

    input: str
    router: str
    dispatcher: str
    status: str
    stream: str
    journal: str


PROGRAMS: Final = Programs(
    input="bruce_mp.input.datagram_process",
    router="bruce_mp.router.process",
    dispatcher="bruce_mp.dispatcher.process",
    status="bruce_mp.status.process",
    stream="bruce_mp.input.stream_process",
    journal="bruce_mp.journal.process",
)
