"""The programs that the daemon's processes run.

They are named by dotted string and imported in the new process only, so that the supervisor stays small and nothing
of Kafka or Flask is loaded into it.
"""

from __future__ import annotations

from typing import Final, NamedTuple

__all__ = ["PROGRAMS", "Programs"]


class Programs(NamedTuple):
    """Modules with `main(start: Start, slab: Slab, control: Control) -> None`.

    One that has something to do before its place is free has `prepare(slab: Slab) -> None` as well.
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
