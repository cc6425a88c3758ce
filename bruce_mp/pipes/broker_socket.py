"""The socket of one connection to a broker, under an event loop, around the sans-IO `BrokerConnection`.

Used by the dispatchers and by the router's metadata requests.  It never blocks.  All addresses of the name are tried
in turn; one that does not answer gets its share of the time, so that the others have theirs.  The owner hears of
everything through one callback: the events of `protocol.connection_events`, with `Failed` also for a broker that cannot
be reached.
"""

from __future__ import annotations

import errno
import os
import socket
import time
from collections import deque
from typing import TYPE_CHECKING, Final

import zmq

from bruce_mp.errors import RemoteProtocolError
from bruce_mp.protocol.broker_connection import BrokerConnection
from bruce_mp.protocol.connection_events import Cause, Closed, Failed, Send

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from bruce_mp.pipes.loop import Loop, Timer
    from bruce_mp.pipes.resolver import Address, Resolver
    from bruce_mp.protocol.connection_events import Event

__all__ = ["BrokerSocket"]

_READ_BYTES: Final = 256 * 1024
_BUFFERS_A_CALL: Final = 64


class BrokerSocket:
    """One connection, from `open` to `Failed`, `Closed` or `close`; then of no more use."""

    def __init__(
        self,
        loop: Loop,
        resolver: Resolver,
        *,
        host: str,
        port: int,
        client_id: str,
        timeout_s: float,
        on_event: Callable[[Event], None],
    ) -> None:
        self._loop = loop
        self._resolver = resolver
        self._host, self._port = host, port
        self._name = f"{host or '(unknown)'}:{port}"
        self._timeout_s = timeout_s
        self._on_event = on_event
        self.connection = BrokerConnection(client_id, self._name, timeout=timeout_s)
        self._socket: socket.socket | None = None
        self._addresses: deque[Address] = deque()
        self._unsent: deque[memoryview] = deque()
        self._alarm: Timer | None = None
        self._patience: Timer | None = None
        self._is_over = False

    def open(self) -> None:
        """Begin to connect."""
        self.connection.connecting(time.monotonic())
        self._arm()
        self._resolver.resolve(self._host, self._port, self._on_resolved)

    @property
    def is_writing(self) -> bool:
        """Whether bytes wait to be taken by the kernel."""
        return bool(self._unsent)

    def send(self, buffers: Iterable[bytes]) -> None:
        """Send buffers after what was sent before."""
        self._unsent += [memoryview(buffer) for buffer in buffers if buffer]
        self._write()
        self._arm()

    def close(self) -> None:
        """End the connection; nothing is called back any more."""
        self._is_over = True
        if self._alarm is not None:
            self._alarm.cancel()
        self._drop_socket()
        self._unsent.clear()

    def _drop_socket(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None
        if self._socket is not None:
            self._loop.forget(self._socket)
            self._socket.close()
            self._socket = None

    # --- connecting --------------------------------------------------------------------------------------------------

    def _on_resolved(self, addresses: list[Address], error: str) -> None:
        if self._is_over:
            return
        self._addresses = deque(addresses)
        self._connect_next(error or "it has no address")

    def _connect_next(self, last_error: str) -> None:
        """Try the next address; when none is left, the broker cannot be reached."""
        while self._addresses:
            share_s = self._timeout_s / len(self._addresses)
            try:
                self._begin(self._addresses.popleft())
            except (OSError, OverflowError) as error:  # this machine has no IPv6, the port is none, ...
                last_error = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else str(error)
                self._drop_socket()
                continue
            if self._addresses:
                self._patience = self._loop.call_later(share_s, self._on_no_answer)
            return
        self._fail(f"Broker {self._name} cannot be reached: {last_error}.", Cause.CLOSED_BY_BROKER)

    def _begin(self, address: Address) -> None:
        """Begin to connect to an address.  OSError or OverflowError when that is known to be in vain."""
        family, host, port = address
        self._socket = socket.socket(family, socket.SOCK_STREAM)
        self._socket.setblocking(False)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        code = self._socket.connect_ex((host, port))
        if code not in {0, errno.EINPROGRESS}:
            raise OSError(code, os.strerror(code))
        self._loop.watch(self._socket, lambda _: self._on_connected(), zmq.POLLOUT)

    def _on_no_answer(self) -> None:
        """An address kept silent for its share of the time."""
        self._drop_socket()
        self._connect_next("it does not answer")

    def _on_connected(self) -> None:
        assert self._socket is not None
        code = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            self._drop_socket()
            self._connect_next(os.strerror(code))
            return
        if self._patience is not None:
            self._patience.cancel()
        self._loop.watch(self._socket, self._on_ready, zmq.POLLIN)
        self.send(self.connection.connected(time.monotonic()))

    # --- traffic -----------------------------------------------------------------------------------------------------

    def _on_ready(self, events: int) -> None:
        if events & zmq.POLLOUT:
            self._write()
        if events & (zmq.POLLIN | zmq.POLLERR) and not self._is_over:
            self._read()

    def _write(self) -> None:
        if self._socket is None:
            return
        try:
            while self._unsent:
                buffers = [self._unsent[at] for at in range(min(_BUFFERS_A_CALL, len(self._unsent)))]
                self._sent(self._socket.sendmsg(buffers))
        except BlockingIOError:
            self._loop.watch(self._socket, self._on_ready, zmq.POLLIN | zmq.POLLOUT)
            return
        except OSError as error:
            self._fail(f"The connection to broker {self._name} broke: {error.strerror}.", Cause.CLOSED_BY_BROKER)
            return
        self._loop.watch(self._socket, self._on_ready, zmq.POLLIN)

    def _sent(self, size: int) -> None:
        while size:
            buffer = self._unsent.popleft()
            if size < len(buffer):
                self._unsent.appendleft(buffer[size:])
                return
            size -= len(buffer)

    def _read(self) -> None:
        assert self._socket is not None
        try:
            data = self._socket.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except OSError as error:
            self._fail(f"The connection to broker {self._name} broke: {error.strerror}.", Cause.CLOSED_BY_BROKER)
            return
        self._deliver(self.connection.receive(data, time.monotonic()) if data else self.connection.eof())
        self._arm()

    def _deliver(self, events: Iterable[Event]) -> None:
        for event in events:
            if self._is_over:
                return
            if isinstance(event, Send):
                self.send([event.data])
                continue
            if isinstance(event, Failed | Closed):
                self.close()
            self._on_event(event)

    def _fail(self, text: str, cause: Cause) -> None:
        unanswered = self.connection.close()
        self.close()
        self._on_event(Failed(RemoteProtocolError(text), cause, unanswered))

    # --- deadlines ---------------------------------------------------------------------------------------------------

    def _arm(self) -> None:
        """Wake up at the next deadline, if no earlier alarm does; one that comes too early sets another."""
        if self._alarm is not None or self._is_over:
            return
        deadline = self.connection.next_deadline()
        if deadline is not None:
            self._alarm = self._loop.call_at(deadline, self._on_alarm)

    def _on_alarm(self) -> None:
        self._alarm = None
        self._deliver(self.connection.check_deadline(time.monotonic()))
        self._arm()
