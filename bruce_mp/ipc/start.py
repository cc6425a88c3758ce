"""The arguments with which the supervisor spawns a process of the daemon."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path
    from socket import socket

    from bruce_mp.config.model import Config
    from bruce_mp.ipc.control_messages import Broker

__all__ = ["Start"]


@dataclass(frozen=True, slots=True)
class Start:
    """The arguments of a process besides slab and control pipe.

    * `row`: the process's row in the slab
    * `listener`: the socket that an input or status process serves; the supervisor keeps it open across restarts
    * `queue_length`: maximum number of datagrams that the kernel queues on an input's socket; 0 if unknown
    * `slot`, `broker`: a dispatcher's slot and broker
    * `inputs`: the rows of all inputs
    * `unix_stream`, `tcp`: the listening sockets that stream workers share
    * `clock_offset_ms`: offset of the supervisor's steady clock (`telemetry.clock`); None = the process's own
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
    queue_length: int = 0

    def descriptors(self) -> set[int]:
        """Return the descriptors of the sockets that the process serves."""
        return {each.fileno() for each in (self.listener, self.unix_stream, self.tcp) if each is not None}
