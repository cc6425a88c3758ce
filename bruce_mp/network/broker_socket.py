"""Run one connection to a broker: a non-blocking socket on an event loop around the sans-IO `BrokerConnection`.

The dispatchers use it, and so do the router's metadata requests. The socket tries all addresses of the host in turn.
Each address gets an equal share of the timeout. A broker that does not report its API versions gets one connection for
each remaining opening (`protocol.opening`). TLS lies between the socket and the conversation, which begins after the
handshake. A login with a lifetime is renewed before it expires. The owner receives all other events of
`protocol.connection_events` through one callback; `Failed` also reports an unreachable broker.
"""

from __future__ import annotations

import errno
import logging
import os
import socket
import time
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import zmq

from bruce_mp.errors import ConfigError, RemoteProtocolError, TlsError
from bruce_mp.network.connection_security import Security
from bruce_mp.network.version_probe import VersionProbes
from bruce_mp.protocol.kafka.broker_connection import BrokerConnection
from bruce_mp.protocol.kafka.connection_events import (
    Closed,
    ConnectionReady,
    ConnectionState,
    Failed,
    FailureCause,
    LoggedIn,
    Send,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from bruce_mp.ipc.loop import Loop, Timer
    from bruce_mp.network.resolver import Address, Resolver
    from bruce_mp.network.tls import TlsSession
    from bruce_mp.network.tls_context import TlsContexts
    from bruce_mp.protocol.kafka.connection_events import Event
    from bruce_mp.protocol.kafka.opening import Opening
    from bruce_mp.protocol.kafka.sasl import Mechanism

__all__ = ["BrokerSocket"]

_LOG = logging.getLogger(__name__)
_READ_BYTES: Final = 64 * 1024
_BUFFERS_A_CALL: Final = 64
_RENEWED_SHARE: Final = 0.8
"""Fraction of a login's lifetime after which it is renewed. The broker closes the connection when the login expires."""
_RETRY_SHARE: Final = 0.05


_CLOSED_BY_RESET: Final = frozenset(
    {ConnectionState.CONNECTING, ConnectionState.NEGOTIATING, ConnectionState.LOGGING_IN}
)
"""States in which a reset counts as an end of stream: some systems close a connection with a reset."""


class BrokerSocket:
    """One connection, from `open` to `Failed`, `Closed` or `close`; it cannot be opened a second time.

    `openings` caches the API versions of the process's brokers; without it, the connection asks. Without `security`,
    the connection is plain text. `keeps_login` renews the login: the owner must then check `is_writing` before it
    sends.
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
        openings: VersionProbes | None = None,
        security: Security | None = None,
        keeps_login: bool = False,
    ) -> None:
        self._loop = loop
        self._resolver = resolver
        self._host, self._port = host, port
        self._name = f"{host or '(unknown)'}:{port}"
        self._timeout_s = timeout_s
        self._on_event = on_event
        self._client_id = client_id
        self._openings = openings or VersionProbes()
        self._security = security or Security()
        self._keeps_login = keeps_login
        self._mechanism: Mechanism | None = None
        self._tls: TlsSession | None = None
        self._renewal: Timer | None = None
        self._opening = self._openings.start((host, port), time.monotonic())
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
        """Start connecting."""
        if self._security.logins is not None:
            self._security.logins.get(self._on_login)
        else:
            self._connect()

    def _on_login(self, mechanism: Mechanism | None, trouble: str) -> None:
        if self._is_over:
            return
        if mechanism is None:
            self._fail(f"We cannot log in to broker {self._name}. {trouble}", FailureCause.NO_CREDENTIALS)
            return
        self._mechanism = mechanism
        self._connect()

    def _connect(self) -> None:
        self.connection.on_connecting(time.monotonic())
        self._arm()
        self._resolver.resolve(self._host, self._port, self._on_resolved)

    def _open_again(self, opening: Opening) -> None:
        """Reconnect with another opening."""
        self._drop_socket()
        self._unsent.clear()
        self._opening = opening
        self.connection = self._new_connection()
        self.open()

    @property
    def is_writing(self) -> bool:
        """Return True while the owner must not send: the kernel accepts no bytes, or the login is being renewed."""
        return bool(self._unsent) or self.connection.state is ConnectionState.RENEWING

    @property
    def certificate_ends_s(self) -> float | None:
        """Return the expiry of the broker's certificate in seconds since the epoch, or None without a certificate."""
        return None if self._tls is None else self._tls.certificate_ends_s

    def send(self, buffers: Iterable[bytes]) -> None:
        """Send buffers behind all earlier ones."""
        parts = [memoryview(buffer) for buffer in buffers if buffer]
        if self._tls is None:
            self._unsent += parts
        else:
            for part in parts:
                self._tls.send(part)
            self._unsent += _parts(self._tls.feed())
        self._write()
        self._arm()

    def close(self) -> None:
        """Close the connection and make no further callback."""
        self._is_over = True
        for timer in (self._alarm, self._renewal):
            if timer is not None:
                timer.cancel()
        self._drop_socket()
        self._unsent.clear()

    def _drop_socket(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None
        if self._socket is not None:
            self._loop.unwatch(self._socket)
            self._socket.close()
            self._socket = None
        self._tls = None

    # --- connecting --------------------------------------------------------------------------------------------------

    def _on_resolved(self, addresses: list[Address], error: str) -> None:
        if self._is_over:
            return
        self._addresses = deque(addresses)
        self._connect_next(error or "it has no address")

    def _connect_next(self, last_error: str) -> None:
        """Try the next address; fail when none remains."""
        while self._addresses:
            share_s = self._timeout_s / len(self._addresses)
            try:
                self._begin(self._addresses.popleft())
            except (OSError, OverflowError) as error:  # no IPv6 on this host, a port out of range, ...
                last_error = (isinstance(error, OSError) and error.strerror) or str(error)
                self._drop_socket()
                continue
            if self._addresses:
                self._patience = self._loop.call_later(share_s, self._on_no_answer)
            return
        self._fail(f"Broker {self._name} cannot be reached: {last_error}.", FailureCause.CLOSED_BY_BROKER)

    def _begin(self, address: Address) -> None:
        """Start connecting to an address. Raises OSError or OverflowError if the attempt fails at once."""
        family, host, port = address
        self._socket = socket.socket(family, socket.SOCK_STREAM)
        self._socket.setblocking(False)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        code = self._socket.connect_ex((host, port))
        if code not in {0, errno.EINPROGRESS}:
            raise OSError(code, os.strerror(code))
        self._loop.watch(self._socket, lambda _: self._on_connected(), zmq.POLLOUT)

    def _on_no_answer(self) -> None:
        """Give up on an address that did not answer within its share of the timeout."""
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
        if self._security.tls is None:
            self._begin_conversation()
        else:
            self._begin_tls(self._security.tls)

    def _begin_tls(self, contexts: TlsContexts) -> None:
        try:
            self._tls = contexts.session(self._host, f"Broker {self._name}")
            self._tls.start()
        except ConfigError as error:
            self._fail(f"There can be no TLS with broker {self._name}. {error}", FailureCause.NO_CREDENTIALS)
        except TlsError as error:
            self._fail(str(error), FailureCause.TLS_FAILED)
        else:
            self._flush_tls(self._tls)

    def _flush_tls(self, tls: TlsSession) -> None:
        """Send the bytes that TLS itself produced: handshake, alerts, key updates."""
        self._unsent += _parts(tls.feed())
        self._write()

    def _begin_conversation(self) -> None:
        self.send(self.connection.on_connected(time.monotonic(), self._mechanism))

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
            self._fail(f"The connection to broker {self._name} broke: {error.strerror}.", FailureCause.CLOSED_BY_BROKER)
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
            if self.connection.state not in _CLOSED_BY_RESET:
                self._fail(
                    f"The connection to broker {self._name} broke: {error.strerror}.", FailureCause.CLOSED_BY_BROKER
                )
                return
            data = b""
        if self._tls is None:
            self._converse(data, is_end=not data)
        else:
            self._decrypt(self._tls, data)

    def _decrypt(self, tls: TlsSession, data: bytes) -> None:
        try:
            plain = tls.receive(data)
        except TlsError as error:
            self._last_words(tls)
            self._fail(str(error), FailureCause.CLOSED_BY_BROKER if error.is_closed else FailureCause.TLS_FAILED)
            return
        self._flush_tls(tls)
        if self._is_over or not tls.is_open:
            return
        if self.connection.state is ConnectionState.CONNECTING:
            self._begin_conversation()
        if plain:
            self._converse(plain, is_end=False)
        if tls.is_over and not self._is_over:
            self._converse(b"", is_end=True)

    def _last_words(self, tls: TlsSession) -> None:
        """Send the TLS alert that explains the failure to the broker, as far as the kernel accepts it at once."""
        if self._socket is not None:
            with suppress(OSError):
                self._socket.send(tls.feed())

    def _converse(self, data: bytes, *, is_end: bool) -> None:
        self._deliver(self.connection.on_eof() if is_end else self.connection.receive(data, time.monotonic()))
        self._arm()

    def _deliver(self, events: Iterable[Event]) -> None:
        for event in events:
            if self._is_over:
                return
            if isinstance(event, Send):
                self.send([event.data])
                continue
            if isinstance(event, LoggedIn):
                self._renew_later(event.lifetime_s)
                continue
            if isinstance(event, ConnectionReady):
                self._openings.succeeded((self._host, self._port), self._opening, time.monotonic())
            elif isinstance(event, Failed) and self._tries_again(event):
                return
            elif isinstance(event, Failed | Closed):
                self.close()
            self._on_event(event)

    def _tries_again(self, event: Failed) -> bool:
        """Reconnect with the fallback opening, if the failure calls for it and one exists; return True if so."""
        self._openings.failed((self._host, self._port))
        fallback = self._opening.fallback
        if event.cause is not FailureCause.NO_API_VERSIONS or fallback is None:
            return False
        _LOG.info("%s The next connection tries the requests of releases before Kafka 0.10.", event.error)
        self._open_again(fallback)
        return True

    def _fail(self, text: str, cause: FailureCause) -> None:
        self._openings.failed((self._host, self._port))
        unanswered = self.connection.close()
        self.close()
        self._on_event(Failed(RemoteProtocolError(text), cause, unanswered))

    # --- login -------------------------------------------------------------------------------------------------------

    def _renew_later(self, lifetime_s: float) -> None:
        if lifetime_s > 0 and self._keeps_login:
            self._renewal = self._loop.call_later(lifetime_s * _RENEWED_SHARE, lambda: self._renew(lifetime_s))

    def _renew(self, lifetime_s: float) -> None:
        assert self._security.logins is not None
        self._security.logins.get(lambda mechanism, trouble: self._on_renewal(lifetime_s, mechanism, trouble))

    def _on_renewal(self, lifetime_s: float, mechanism: Mechanism | None, trouble: str) -> None:
        if self._is_over:
            return
        if mechanism is not None:
            self.send(self.connection.renew_login(mechanism, time.monotonic()))
            return
        _LOG.error("The login at broker %s cannot be renewed, and will end. %s", self._name, trouble)
        self._renewal = self._loop.call_later(max(1.0, lifetime_s * _RETRY_SHARE), lambda: self._renew(lifetime_s))

    # --- deadlines ---------------------------------------------------------------------------------------------------

    def _arm(self) -> None:
        """Wake up at the next deadline, unless an earlier alarm is set; an alarm that fires too early sets the next."""
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


def _parts(data: bytes) -> list[memoryview]:
    return [memoryview(data)] if data else []
