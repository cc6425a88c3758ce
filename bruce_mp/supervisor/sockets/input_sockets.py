"""Input sockets, and the processes that serve them.

The set of inputs follows from the configuration and from the slab: the datagram input also runs when it is disabled but
the landing zone still has datagrams.
"""

from __future__ import annotations

import socket
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from bruce_mp.config.addresses import HostPort, UnixPath, is_loopback
from bruce_mp.errors import StartError
from bruce_mp.slab import layout as lay
from bruce_mp.slab.handover_tickets import completing_attempt
from bruce_mp.slab.landing_zone import landed_lengths
from bruce_mp.slab.spill import completed_messages
from bruce_mp.supervisor.sockets.bound_sockets import (
    DATAGRAM_SETTING,
    STREAM_SETTING,
    TCP_SETTING,
    BoundSocket,
    bind_datagrams,
    bind_tcp,
    bind_unix_stream,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bruce_mp.config.inputs import Input, Tcp
    from bruce_mp.slab.file import Slab
    from bruce_mp.supervisor.sockets.inherited_sockets import InheritedSockets

__all__ = ["InputSockets", "input_rows", "open_input_sockets"]


class InputSockets(NamedTuple):
    """Bound sockets; None if not configured."""

    datagrams: BoundSocket | None = None
    unix_stream: BoundSocket | None = None
    tcp: BoundSocket | None = None

    def _all(self) -> Iterator[BoundSocket]:
        return (bound for bound in self if bound is not None)

    @property
    def datagrams_stay_open(self) -> bool:
        """Return True if a service manager keeps the datagram socket open after the daemon has ended."""
        return self.datagrams is not None and not self.datagrams.is_ours

    def refuse_senders(self) -> None:
        """Remove the socket files, and shut the sockets down for senders.

        The daemon can still read the data in the kernel. A service manager's sockets stay open: their senders wait for
        the next daemon.
        """
        self.remove_files()
        for bound in self._all():
            if bound.is_ours:
                with suppress(OSError):  # already shut down, or never connected
                    bound.socket.shutdown(socket.SHUT_RD)

    def remove_files(self) -> None:
        for bound in self._all():
            bound.remove_file()

    def close(self) -> None:
        """Close the sockets, and remove their files, after a failed start."""
        self.remove_files()
        for bound in self._all():
            bound.socket.close()


def open_input_sockets(config: Input, inherited: InheritedSockets) -> InputSockets:
    """Claim the configured sockets from the inherited ones, or bind them.

    Raise StartError, and close all sockets, if an address is in use or unusable.
    """
    opened: dict[str, BoundSocket] = {}
    try:
        if (datagrams := config.unix_datagram).enable:
            claimed = inherited.claim(DATAGRAM_SETTING, socket.SOCK_DGRAM, UnixPath(datagrams.path))
            opened["datagrams"] = claimed or bind_datagrams(datagrams)
        if (stream := config.unix_stream).enable:
            claimed = inherited.claim(STREAM_SETTING, socket.SOCK_STREAM, UnixPath(stream.path))
            opened["unix_stream"] = claimed or bind_unix_stream(stream)
        if config.tcp.enable:
            opened["tcp"] = _open_tcp(config.tcp, inherited)
        inherited.refuse_unclaimed()
    except BaseException:
        InputSockets(**opened).close()
        raise
    return InputSockets(**opened)


def _open_tcp(config: Tcp, inherited: InheritedSockets) -> BoundSocket:
    claimed = inherited.claim(TCP_SETTING, socket.SOCK_STREAM, HostPort(config.host, config.port))
    if claimed is None:
        return bind_tcp(config)
    host = claimed.socket.getsockname()[0]
    if config.loopback_only and not is_loopback(host):
        raise StartError(
            f"{TCP_SETTING}: the open socket that the daemon was given listens at {host}, which other hosts can reach. "
            "Let it listen at 127.0.0.1, or set input.tcp.loopback_only = false."
        )
    return claimed


def _rows_with_spill(slab: Slab) -> Iterator[int]:
    """Yield the rows with spilled messages of complete attempts: only a worker with the same row can deliver them."""
    for row in lay.STREAM_ROWS:
        if completed_messages(slab, row) or completing_attempt(slab, row):
            yield row


def input_rows(config: Input, slab: Slab, *, had_datagrams: bool = False) -> tuple[int, ...]:
    """Return the rows of the inputs: that of the datagram input, then those of the stream workers.

    `had_datagrams` is True if the replaced code runs a datagram input, whose end may leave datagrams in the landing
    zone.
    """
    has_datagrams = config.unix_datagram.enable or had_datagrams or bool(landed_lengths(slab))
    has_streams = config.unix_stream.enable or config.tcp.enable
    workers = config.streams.worker_count if has_streams else 0
    first = lay.ROW_FIRST_INPUT
    workers = max([workers, *(row - first for row in _rows_with_spill(slab))])  # worker N has the row `first + N`
    stream_rows = tuple(range(first + 1, first + 1 + workers))
    return (first, *stream_rows) if has_datagrams else stream_rows
