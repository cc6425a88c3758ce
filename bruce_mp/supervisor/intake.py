"""The sockets on which messages come, and the processes that serve them.

Which inputs there are follows from the configuration, and from what the slab holds: datagrams that a predecessor had
received are taken in even if the datagram socket is switched off now.
"""

from __future__ import annotations

import socket
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from bruce_mp.slab import layout as lay
from bruce_mp.slab.landing import landed_lengths
from bruce_mp.supervisor.sockets import Bound, bind_datagrams, bind_tcp, bind_unix_stream

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bruce_mp.config.inputs import Input
    from bruce_mp.slab.file import Slab

__all__ = ["Intake", "bind_intake", "input_rows"]


class Intake(NamedTuple):
    """The bound sockets; None: not configured."""

    datagrams: Bound | None
    unix_stream: Bound | None
    tcp: Bound | None

    def _all(self) -> Iterator[Bound]:
        return (bound for bound in self if bound is not None)

    def close(self) -> None:
        """Let senders know that nobody receives any more; what the kernel has already can still be read."""
        self.remove_files()
        for bound in self._all():
            with suppress(OSError):  # somebody was faster, or never was connected
                bound.socket.shutdown(socket.SHUT_RD)

    def remove_files(self) -> None:
        """Remove the socket files."""
        for bound in self._all():
            bound.remove_file()

    def forget(self) -> None:
        """Close the sockets: the daemon does not start after all."""
        self.remove_files()
        for bound in self._all():
            bound.socket.close()


def bind_intake(config: Input) -> Intake:
    """Bind what is configured.  Raises StartError, and leaves nothing behind, when a place is taken or unusable."""
    found: dict[str, Bound] = {}
    try:
        if config.unix_datagram.enable:
            found["datagrams"] = bind_datagrams(config.unix_datagram)
        if config.unix_stream.enable:
            found["unix_stream"] = bind_unix_stream(config.unix_stream)
        if config.tcp.enable:
            found["tcp"] = bind_tcp(config.tcp)
    except BaseException:
        Intake(found.get("datagrams"), found.get("unix_stream"), None).forget()
        raise
    return Intake(found.get("datagrams"), found.get("unix_stream"), found.get("tcp"))


def input_rows(config: Input, slab: Slab) -> tuple[int, ...]:
    """The rows of the inputs that there should be: that of the datagram input, then those of the stream workers."""
    has_datagrams = config.unix_datagram.enable or bool(landed_lengths(slab))
    has_streams = config.unix_stream.enable or config.tcp.enable
    workers = config.streams.processes if has_streams else 0
    first = lay.ROW_FIRST_INPUT
    return (first,) * has_datagrams + tuple(range(first + 1, first + 1 + workers))
