"""The socket of one connection to a broker, under an event loop, around the sans-IO `BrokerConnection`.

Used by the dispatchers and by the router's metadata requests.  It never blocks.  All addresses of the name are tried
in turn; one that does not answer gets its share of the time, so that the others have theirs.  A broker that does not
say which versions it speaks gets a connection for each opening that is left (`protocol.opening`).  The owner hears of
everything else through one callback: the events of `protocol.connection_events`, with `Failed` also for a broker that
cannot be reached.
"""

from __future__ import annotations

import errno
import logging
import os
import socket
import time
from collections import deque
from typing import TYPE_CHECKING, Final

import zmq

from bruce_mp.errors import RemoteProtocolError
from bruce_mp.pipes.openings import Openings
from bruce_mp.protocol.broker_connection import BrokerConnection
from bruce_mp.protocol.connection_events import Cause, Closed, Failed, Ready, Send, State

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from bruce_mp.pipes.loop import Loop, Timer
    from bruce_mp.pipes.resolver import Address, Resolver
    from bruce_mp.protocol.connection_events import Event
    from bruce_mp.protocol.opening import Opening

__all__ = ["BrokerSocket"]

_LOG = logging.getLogger(__name__)
_READ_BYTES: Final = 256 * 1024
_BUFFERS_A_CALL: Final = 64


class BrokerSocket:
    """One connection, from `open` to `Failed`, `Closed` or `close`; then of no more use.

    `openings` is what the process knows of its brokers; without it nothing is known.
    """

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
        openings: Openings | None = None,
    ) -> None:
        self._loop = loop
        self._resolver = resolver
        self._host, self._port = host, port
        self._name = f"{host or '(unknown)'}:{port}"
        self._timeout_s = timeout_s
        self._on_event = on_event
        self._client_id = client_id
        self._openings = openings or Openings()
        self._opening = self._openings.begin((host, port), time.monotonic())
        self.connection = self._new_connection()
        self._socket: socket.socket | None = None
        self._addresses: deque[Address] = deque()
        self._unsent: deque[memoryview] = deque()
        self._alarm: Timer | None = None
        self._alarm_at = 0.0
        self._patience: Timer | None = None
        self._is_over = False

    def _new_connection(self) -> BrokerConnection:
        return BrokerConnection(self._client_id, self._name, timeout=self._timeout_s, opening=self._opening)

    def open(self) -> None:
        """Begin to connect."""
        self.connection.connecting(time.monotonic())
        self._arm()
        self._resolver.resolve(self._host, self._port, self._on_resolved)

    def _open_again(self, opening: Opening) -> None:
        """Begin anew, in another way."""
        self._drop_socket()
        self._unsent.clear()
        self._opening = opening
        self.connection = self._new_connection()
        self.open()

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
                last_error = (isinstance(error, OSError) and error.strerror) or str(error)
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
            if self.connection.state is not State.NEGOTIATING:
                self._fail(f"The connection to broker {self._name} broke: {error.strerror}.", Cause.CLOSED_BY_BROKER)
                return
            data = b""  # some systems close so
        self._deliver(self.connection.receive(data, time.monotonic()) if data else self.connection.eof())
        self._arm()

    def _deliver(self, events: Iterable[Event]) -> None:
        for event in events:
            if self._is_over:
                return
            if isinstance(event, Send):
                self.send([event.data])
                continue
            if isinstance(event, Ready):
                self._openings.succeeded((self._host, self._port), self._opening, time.monotonic())
            elif isinstance(event, Failed) and self._tries_again(event):
                return
            elif isinstance(event, Failed | Closed):
                self.close()
            self._on_event(event)

    def _tries_again(self, event: Failed) -> bool:
        """Whether there is another way to open the conversation that failed; then it has begun."""
        self._openings.failed((self._host, self._port))
        fallback = self._opening.fallback
        if event.cause is not Cause.NO_API_VERSIONS or fallback is None:
            return False
        _LOG.info("%s Another connection will tell whether it is older than Kafka 0.10.", event.error)
        self._open_again(fallback)
        return True

    def _fail(self, text: str, cause: Cause) -> None:
        self._openings.failed((self._host, self._port))
        unanswered = self.connection.close()
        self.close()
        self._on_event(Failed(RemoteProtocolError(text), cause, unanswered))

    # --- deadlines ---------------------------------------------------------------------------------------------------

    def _arm(self) -> None:
        """Wake up at the next deadline, if no earlier alarm does; one that comes too early sets another."""
        deadline = self.connection.next_deadline()
        if self._is_over or deadline is None or (self._alarm is not None and self._alarm_at <= deadline):
            return
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm_at = deadline
        self._alarm = self._loop.call_at(deadline, self._on_alarm)

    def _on_alarm(self) -> None:
        self._alarm = None
        self._deliver(self.connection.check_deadline(time.monotonic()))
        self._arm()
