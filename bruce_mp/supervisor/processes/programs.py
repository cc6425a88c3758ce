"""Programs of the daemon's processes, as dotted module names.

The supervisor imports a program just before it spawns the first process that runs the program.
"""

from __future__ import annotations

from typing import Final, NamedTuple

__all__ = ["PROGRAMS", "Programs"]


class Programs(NamedTuple):
    """The names of the modules that the processes run.

    Each module has a function `main(start: Start, slab: Slab, control: Control) -> None`. It may also have a function
    `prepare(slab: Slab) -> None`, which runs before the supervisor's message Begin. During an upgrade, the old process
    may still work on the slab at that time.
    """

    datagram_input: str
    router: str
    dispatcher: str
    status: str
    stream_input: str
    journal: str


PROGRAMS: Final = Programs(
    datagram_input="bruce_mp.input.datagram_process",
    router="bruce_mp.router.process",
    dispatcher="bruce_mp.dispatcher.process",
    status="bruce_mp.status.process",
    stream_input="bruce_mp.input.stream_process",
    journal="bruce_mp.journal.process",
)
