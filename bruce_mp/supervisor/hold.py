"""`bruce hold`: keep the listening sockets of a daemon open, and pass them to each daemon that starts.

So the datagrams in the kernel's queue survive the death of all processes of the daemon, and clients see no error.
`bruce hold` reads nothing from the sockets. `sockets/kept_sockets.py` describes the messages between it and daemons.

At its start, `bruce hold` binds the sockets that the configuration names. If a daemon runs already, `bruce hold` binds
none, and gets the daemon's sockets. It reads the configuration again before it passes sockets to a starting daemon.
"""

from __future__ import annotations

import logging
import select
from pathlib import Path
from selectors import EVENT_READ, DefaultSelector
from signal import Signals
from typing import TYPE_CHECKING, Final

from setproctitle import setproctitle

from bruce_mp.config.addresses import UnixPath
from bruce_mp.errors import BruceError, ExitCode, StartError
from bruce_mp.supervisor.run_dir import create_run_dir, is_in_use
from bruce_mp.supervisor.signal_pipe import SignalPipe
from bruce_mp.supervisor.sockets.bound_sockets import DATAGRAM_SETTING, bind_hold_socket
from bruce_mp.supervisor.sockets.inherited_sockets import InheritedSocket, with_socket_file
from bruce_mp.supervisor.sockets.input_sockets import http_setting, input_settings
from bruce_mp.supervisor.sockets.kept_sockets import HOLD_SOCKET, receive_message, send_sockets
from bruce_mp.telemetry.logs import NOTICE, set_up_logging

if TYPE_CHECKING:
    import socket

    from bruce_mp.config.model import Config
    from bruce_mp.supervisor.reload import ConfigSource
    from bruce_mp.supervisor.sockets.bound_sockets import BoundSocket
    from bruce_mp.supervisor.sockets.input_sockets import SocketSetting

__all__ = ["keep_sockets"]

log = logging.getLogger(__name__)

_END_SIGNALS: Final = frozenset({Signals.SIGTERM, Signals.SIGINT})


def _socket_settings(config: Config) -> list[SocketSetting]:
    """Return the settings of the sockets that a daemon with this configuration uses."""
    return [*input_settings(config.input), http_setting(config.http)]


def keep_sockets(source: ConfigSource) -> int:
    """Keep the sockets open until SIGTERM, and return the exit code. Raise BruceError if the start fails."""
    setproctitle("bruce: hold")
    config = source.read()
    set_up_logging(config.logging, "hold", must_open=True)
    run_dir = Path(config.daemon.run_dir)
    create_run_dir(run_dir)
    # This must precede the check for a running daemon in `open_at_start`: a daemon that starts after that check finds
    # this socket, and requests the listening sockets.
    listener = bind_hold_socket(run_dir / HOLD_SOCKET)
    try:
        keeper = _SocketKeeper(source, run_dir, listener.socket)
        keeper.open_at_start(config)
        keeper.run(SignalPipe())
    finally:
        listener.remove_file()
    return ExitCode.OK


class _SocketKeeper:
    def __init__(self, source: ConfigSource, run_dir: Path, listener: socket.socket) -> None:
        self._source = source
        self._run_dir = run_dir
        self._kept_sockets: dict[str, BoundSocket] = {}
        """The open sockets by the name of their setting."""
        self._selector = DefaultSelector()
        self._selector.register(listener, EVENT_READ, lambda: self._accept(listener))

    def open_at_start(self, config: Config) -> None:
        """Bind the sockets of the configuration. Raise StartError if an address is in use or unusable.

        If a daemon runs, bind none: the daemon sends its sockets.
        """
        if is_in_use(self._run_dir):
            log.log(NOTICE, "A daemon runs: bruce hold gets the sockets from it.")
            return
        for setting in _socket_settings(config):
            self._kept_sockets[setting.name] = setting.bind()
        log.log(NOTICE, "bruce hold keeps open: %s.", ", ".join(self._kept_sockets))

    def run(self, signals: SignalPipe) -> None:
        """Serve daemons until a signal ends the program."""
        self._selector.register(signals, EVENT_READ, lambda: None)
        while _END_SIGNALS.isdisjoint(signals.read()):
            for key, _ in self._selector.select():
                key.data()  # the handler that was passed to `register`
        self._close_all()

    def _accept(self, listener: socket.socket) -> None:
        connection, _ = listener.accept()
        connection.setblocking(False)
        self._selector.register(connection, EVENT_READ, lambda: self._serve(connection))

    def _serve(self, connection: socket.socket) -> None:
        """Answer the request of a starting daemon, or keep the sockets of a running daemon in place of the old ones."""
        try:
            sockets = receive_message(connection)
            if sockets is None:  # a starting daemon requests the sockets
                self._apply_config()
                send_sockets(connection, self._kept_sockets.items())
            else:
                self._replace_sockets(sockets)
        except (EOFError, OSError, ValueError):
            self._selector.unregister(connection)
            connection.close()

    def _replace_sockets(self, sockets: list[InheritedSocket]) -> None:
        for bound in self._kept_sockets.values():
            bound.socket.close()
        self._kept_sockets = {each.name: with_socket_file(each.bound) for each in sockets}
        log.log(NOTICE, "bruce hold keeps the daemon's sockets open: %s.", ", ".join(self._kept_sockets))

    def _apply_config(self) -> None:
        """Read the configuration, and open and close sockets so that the starting daemon gets the configured ones."""
        try:
            configured = {setting.name: setting for setting in _socket_settings(self._source.read())}
        except BruceError as error:
            log.error("The configuration cannot be read, and the sockets stay as they are: %s", error)
            return
        for name, bound in list(self._kept_sockets.items()):
            if name not in configured or not _is_usable(bound, configured[name]):
                self._close(name)
        for name in configured.keys() - self._kept_sockets.keys():
            self._open(configured[name])

    def _open(self, setting: SocketSetting) -> None:
        try:
            self._kept_sockets[setting.name] = setting.bind()
        except StartError as error:
            log.error("%s", error)

    def _close(self, name: str) -> None:
        bound = self._kept_sockets.pop(name)
        bound.remove_file()
        bound.socket.close()

    def _close_all(self) -> None:
        """Close all sockets and remove their files at the end of the program, unless a running daemon uses them."""
        if is_in_use(self._run_dir):
            log.log(NOTICE, "bruce hold has ended; the daemon keeps its sockets open while it runs.")
            return
        bound = self._kept_sockets.get(DATAGRAM_SETTING)
        if bound is not None and bound.poll(select.POLLIN):
            log.error("Datagrams wait in the socket, and are lost with it: end bruce hold before the daemon.")
        for name in list(self._kept_sockets):
            self._close(name)


def _is_usable(bound: BoundSocket, setting: SocketSetting) -> bool:
    """Return True if a daemon can use the socket for a setting.

    The socket must be bound to the setting's address, still have its socket file, and not be shut down by a daemon.
    """
    if bound.poll(select.POLLRDHUP) or (isinstance(setting.address, UnixPath) and not bound.has_file()):
        return False
    return InheritedSocket(bound.socket, setting.name, is_ours=True).serves(setting.name, setting.address)
