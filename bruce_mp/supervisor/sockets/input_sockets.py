"""The settings that name sockets; the input sockets, and the processes that serve them.

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
    HTTP_SETTING,
    STREAM_SETTING,
    TCP_SETTING,
    BoundSocket,
    bind_datagrams,
    bind_http,
    bind_tcp,
    bind_unix_stream,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from bruce_mp.config.inputs import Input
    from bruce_mp.config.sections import Http
    from bruce_mp.slab.file import Slab
    from bruce_mp.supervisor.sockets.inherited_sockets import InheritedSockets

__all__ = ["InputSockets", "SocketSetting", "http_setting", "input_rows", "input_settings", "open_input_sockets"]


class SocketSetting(NamedTuple):
    """A setting that names a socket, with the function that binds it."""

    name: str
    kind: socket.SocketKind
    address: HostPort | UnixPath
    bind: Callable[[], BoundSocket]

    def claim(self, inherited: InheritedSockets) -> BoundSocket | None:
        """Claim the socket from the inherited ones, if they have it."""
        return inherited.claim(self.name, self.kind, self.address)


def input_settings(config: Input) -> Iterator[SocketSetting]:
    """Yield the settings of the enabled inputs."""
    datagrams, stream, tcp = config.unix_datagram, config.unix_stream, config.tcp
    if datagrams.enable:
        path = UnixPath(datagrams.path)
        yield SocketSetting(DATAGRAM_SETTING, socket.SOCK_DGRAM, path, lambda: bind_datagrams(datagrams))
    if stream.enable:
        path = UnixPath(stream.path)
        yield SocketSetting(STREAM_SETTING, socket.SOCK_STREAM, path, lambda: bind_unix_stream(stream))
    if tcp.enable:
        yield SocketSetting(TCP_SETTING, socket.SOCK_STREAM, HostPort(tcp.host, tcp.port), lambda: bind_tcp(tcp))


def http_setting(config: Http) -> SocketSetting:
    return SocketSetting(HTTP_SETTING, socket.SOCK_STREAM, config.address, lambda: bind_http(config))


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


def open_input_sockets(config: Input, inherited: InheritedSockets) -> InputSockets:
    """Claim the configured sockets from the inherited ones, or bind them.

    Raise StartError, and close all sockets, if an address is in use or unusable.
    """
    opened: dict[str, BoundSocket] = {}
    try:
        for setting in input_settings(config):
            claimed = setting.claim(inherited)
            if claimed is not None and setting.name == TCP_SETTING and config.tcp.loopback_only:
                _require_loopback(claimed.socket.getsockname()[0])
            opened[setting.name] = claimed or setting.bind()
        inherited.refuse_unclaimed()
    except BaseException:
        for bound in opened.values():
            bound.remove_file()
            bound.socket.close()
        raise
    return InputSockets(opened.get(DATAGRAM_SETTING), opened.get(STREAM_SETTING), opened.get(TCP_SETTING))


def _require_loopback(host: str) -> None:
    if not is_loopback(host):
        raise StartError(
            f"{TCP_SETTING}: the open socket that the daemon was given listens at {host}, which other hosts can reach. "
            "Let it listen at 127.0.0.1, or set input.tcp.loopback_only = false."
        )


def input_rows(config: Input, slab: Slab, *, had_datagrams: bool = False) -> tuple[int, ...]:
    """Return the rows of the inputs: that of the datagram input, then those of the stream workers.

    `had_datagrams` is True if the replaced code runs a datagram input, whose end may leave datagrams in the landing
    zone.
    """
    has_datagrams = config.unix_datagram.enable or had_datagrams or bool(landed_lengths(slab))
    has_streams = config.unix_stream.enable or config.tcp.enable
    workers = config.streams.worker_count if has_streams else 0
    first = lay.ROW_FIRST_INPUT
    # Only a worker with the same row can deliver the spilled messages of complete attempts.
    spilled = [row for row in lay.STREAM_ROWS if completed_messages(slab, row) or completing_attempt(slab, row)]
    workers = max([workers, *(row - first for row in spilled)])  # worker N has the row `first + N`
    stream_rows = tuple(range(first + 1, first + 1 + workers))
    return (first, *stream_rows) if has_datagrams else stream_rows
