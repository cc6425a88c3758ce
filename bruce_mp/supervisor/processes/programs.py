"""Programs of the daemon's processes.

They are dotted module names, imported in the new process only. The supervisor thus stays small and loads no Kafka or
Flask code.
"""

from __future__ import annotations

from typing import Final, NamedTuple

__all__ = ["PROGRAMS", "Programs"]


class Programs(NamedTuple):
    """Modules with `main(start: Start, slab: Slab, control: Control) -> None`.

    A module may also have `prepare(slab: Slab) -> None`, which runs before its predecessor has ended.
    """

    input: str
    router: str
    dispatcher: str
    status: str
    stream: str


PROGRAMS: Final = Programs(
    input="bruce_mp.input.process",
    router="bruce_mp.router.process",
    dispatcher="bruce_mp.dispatcher.process",
    status="bruce_mp.status.process",
    stream="bruce_mp.input.stream_process",
)
