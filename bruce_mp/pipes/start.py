"""What a process of the daemon is given when it starts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path
    from socket import socket

    from bruce_mp.config.model import Config
    from bruce_mp.pipes.control import Broker

__all__ = ["Start"]


@dataclass(frozen=True, slots=True)
class Start:
    """Everything that a process needs besides the slab; picklable while a process is being spawned.

    `row` is the process's row in the slab.  `listener` is the socket that an input or status process serves; the
    supervisor keeps it open over restarts.  `queue` datagrams may wait at an input's; 0: nobody knows how many.  `slot`
    and `broker` are a dispatcher's.
    `inputs` are the rows of all inputs; `unix_stream` and `tcp` are the listening sockets that stream workers share.
    `clock_offset_ms` is that of the supervisor's steady clock; None: have one's own.
    """

    name: str
    row: int
    config: Config
    run_dir: Path
    slab_path: Path
    listener: socket | None = None
    slot: int = 0
    broker: Broker | None = None
    clock_offset_ms: int | None = None
    inputs: tuple[int, ...] = ()
    unix_stream: socket | None = None
    tcp: socket | None = None
    queue: int = 0
