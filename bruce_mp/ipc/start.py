"""The arguments with which the supervisor starts a process of the daemon."""

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
    """The arguments of a process, except its control pipe.

    * `row`: the number of the process row
    * `listener`: the socket of the datagram input or of the status process; the supervisor keeps the socket open while
      the process restarts
    * `queue_length`: maximum number of datagrams that the kernel queues in the datagram input's socket; 0 if unknown
    * `slot`, `broker`: for a dispatcher, its slot and the broker to which it sends
    * `input_rows`: for an input, the numbers of the process rows of all inputs
    * `unix_stream`, `tcp`: the listening sockets that all stream workers (inputs for stream connections) share
    * `clock_offset_ms`: the offset of the supervisor's steady clock (`telemetry.clock`), which the process adopts; None
      if the process computes its own offset
    """

    name: str
    row: int
    config: Config
    run_dir: Path
    listener: socket | None = None
    slot: int = 0
    broker: Broker | None = None
    clock_offset_ms: int | None = None
    input_rows: tuple[int, ...] = ()
    unix_stream: socket | None = None
    tcp: socket | None = None
    queue_length: int = 0

    def descriptors(self) -> set[int]:
        """Return the descriptors of the sockets that the process serves."""
        return {each.fileno() for each in (self.listener, self.unix_stream, self.tcp) if each is not None}
