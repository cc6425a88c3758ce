"""The settings that name sockets, the sockets of the inputs, and the slab rows of the processes that serve them.

The datagram input and the stream workers (together the *inputs*) have a row in the slab each. The configuration and the
slab determine which of them run. Even a disabled datagram input runs if the landing zone still has datagrams.
A worker also runs if no other process can deliver the messages in its spill files.
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
from bruce_mp.slab.spill import completed_message_count
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
    """A setting that names a socket, with the function that binds the socket."""

    name: str
    kind: socket.SocketKind
    address: HostPort | UnixPath
    bind: Callable[[], BoundSocket]

    def claim(self, inherited: InheritedSockets) -> BoundSocket | None:
        """Remove the socket for this setting from the inherited ones and return it, or return None if none fits."""
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
    """The bound sockets of the inputs; None for an input that is not configured."""

    datagrams: BoundSocket | None = None
    unix_stream: BoundSocket | None = None
    tcp: BoundSocket | None = None

    def _all(self) -> Iterator[BoundSocket]:
        return (bound for bound in self if bound is not None)

    @property
    def datagram_socket_stays_open(self) -> bool:
        """Return True if a service manager keeps the datagram socket open after the daemon has ended."""
        return self.datagrams is not None and not self.datagrams.is_ours

    def refuse_senders(self) -> None:
        """Remove the socket files, and shut the sockets down so that sends to them fail.

        The daemon can still read the data that the kernel has queued. Sockets of a service manager are not shut down:
        data that is sent to them waits for the next daemon.
        """
        self.remove_files()
        for bound in self._all():
            if bound.is_ours:
                with suppress(OSError):  # the socket is already shut down, or has no connection
                    bound.socket.shutdown(socket.SHUT_RD)

    def remove_files(self) -> None:
        for bound in self._all():
            bound.remove_file()


def open_input_sockets(config: Input, inherited: InheritedSockets) -> InputSockets:
    """Claim the configured sockets from the inherited ones, and bind the others.

    Raise StartError, and close the opened sockets, if an address is in use or unusable, or if another program passes a
    socket that no setting claims. The caller claims the socket of the status pages first, or else it counts as
    unclaimed.
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


def input_rows(config: Input, slab: Slab, *, replaced_code_has_datagram_input: bool = False) -> tuple[int, ...]:
    """Return the slab rows of the inputs that must run: the datagram input's, if any, then those of the stream workers.

    In an upgrade, `replaced_code_has_datagram_input` is True if the replaced version of the daemon still runs a
    datagram input, which may leave datagrams in the landing zone when it ends.
    """
    needs_datagram_input = config.unix_datagram.enable or replaced_code_has_datagram_input or bool(landed_lengths(slab))
    has_streams = config.unix_stream.enable or config.tcp.enable
    worker_count = config.streams.worker_count if has_streams else 0
    datagram_row = lay.ROW_FIRST_INPUT
    # All messages of a complete fenced attempt must be delivered. The messages in a spill file can be delivered only by
    # a worker that has the same row as the worker that wrote the file.
    rows_with_spills = [
        row for row in lay.STREAM_ROWS if completed_message_count(slab, row) or completing_attempt(slab, row)
    ]
    # Worker N has the row `datagram_row + N`.
    worker_count = max([worker_count, *(row - datagram_row for row in rows_with_spills)])
    stream_rows = tuple(range(datagram_row + 1, datagram_row + 1 + worker_count))
    return (datagram_row, *stream_rows) if needs_datagram_input else stream_rows
