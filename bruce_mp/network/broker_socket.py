"""Run one connection to a broker: a non-blocking socket on an event loop, which feeds the sans-IO `BrokerConnection`.

* The socket tries all addresses of the host in turn. One timeout bounds the resolution of the name and all tries: each
  address gets the remaining time, divided by the number of addresses that were not tried yet.
* If a broker does not report its API versions, the socket closes the connection and opens another one for each
  fallback (`protocol.kafka.version_negotiation`).
* With TLS, the Kafka protocol starts after the TLS handshake, and all its bytes pass through the TLS session.
* If `renews_login` is True, the socket renews a login before the login's lifetime ends. The timeout also bounds each
  wait for credentials, from a Kerberos KDC or from the program `kafka.sasl.token_command`.

The socket handles the events `BytesToSend` and `LoggedIn` itself. It passes all other events of
`protocol.kafka.connection_events` to the owner through one callback. An unreachable broker, too, is a `Failed` event.
"""

from __future__ import annotations

import errno
import logging
import os
import select
import socket
import time
from collections import deque
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final

from bruce_mp.errors import ConfigError, RemoteProtocolError, TlsError
from bruce_mp.network.connection_security import Security
from bruce_mp.protocol.kafka.broker_connection import BrokerConnection
from bruce_mp.protocol.kafka.connection_events import (
    BytesToSend,
    Closed,
    ConnectionReady,
    ConnectionState,
    Failed,
    FailureCause,
    LoggedIn,
)
from bruce_mp.protocol.kafka.version_negotiation import NegotiationCache

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from bruce_mp.ipc.loop import Loop, Timer
    from bruce_mp.network.resolver import Address, Resolver
    from bruce_mp.network.sasl_sessions import SaslSessions
    from bruce_mp.network.tls import TlsContexts, TlsSession
    from bruce_mp.protocol.kafka.connection_events import Event
    from bruce_mp.protocol.kafka.sasl import Mechanism
    from bruce_mp.protocol.kafka.version_negotiation import Negotiation

__all__ = ["BrokerSocket"]

log = logging.getLogger(__name__)
_READ_BYTES: Final = 64 * 1024
"""Maximum number of bytes of one read; a produce response is far shorter."""
_MAX_BUFFERS: Final = 64
"""Maximum number of buffers of one `sendmsg()`, far below Linux' limit of 1,024."""
_RENEWAL_FRACTION: Final = 0.8
"""The login is renewed after this fraction of its lifetime; the Java client's `sasl.login.refresh.window.factor` has
the same default.

The broker closes the connection when the login expires."""
_RETRY_FRACTION: Final = 0.05
"""Time between two tries to renew a login, as a fraction of the login's lifetime. So three more tries fit between the
first try and the expiry."""
_MIN_RETRY_S: Final = 1.0
"""The shortest time between two tries to renew a login with a short lifetime."""
_BEFORE_READY: Final = frozenset({ConnectionState.CONNECTING, ConnectionState.NEGOTIATING, ConnectionState.LOGGING_IN})
"""States in which a TCP reset counts as an end of stream: a broker that closes the connection before it has read all
requests causes a reset."""


class BrokerSocket:
    """One connection, from `open` to the event `Failed` or `Closed`, or to `close`; it cannot be opened a second time.

    All sockets of a process share `negotiation_cache`; if it is None, each socket starts with a version request. If
    `security` is None, the connection is plain text. If `renews_login` is True, the owner must check `is_blocked`
    before it sends, because no request may be sent during a renewal.
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
        negotiation_cache: NegotiationCache | None = None,
        security: Security | None = None,
        renews_login: bool = False,
    ) -> None:
        self._loop = loop
        self._resolver = resolver
        self._host, self._port = host, port
        self._name = f"{host or '(unknown)'}:{port}"
        self._timeout_s = timeout_s
        self._on_event = on_event
        self._client_id = client_id
        self._negotiation_cache = negotiation_cache or NegotiationCache()
        self._security = security or Security()
        self._renews_login = renews_login
        self._mechanism: Mechanism | None = None
        self._tls: TlsSession | None = None
        self._renewal_timer: Timer | None = None
        self._credentials_timer: Timer | None = None
        """The time limit of the wait for credentials."""
        self._negotiation = self._negotiation_cache.choose((host, port), time.monotonic())
        self.connection = self._new_connection()
        self._socket: socket.socket | None = None
        self._addresses: deque[Address] = deque()
        self._unsent: deque[memoryview] = deque()
        self._write_deadline: float | None = None
        """The time until which the kernel must accept a byte of `_unsent`; None if it has not refused any."""
        self._deadline_timer: Timer | None = None
        """The timer for the connection's next deadline."""
        self._deadline_timer_time = 0.0
        self._address_timer: Timer | None = None
        """The time limit of the address that is being tried. The last address has no timer: the deadline of the whole
        connect limits it."""
        self._is_closed = False

    def _new_connection(self) -> BrokerConnection:
        return BrokerConnection(self._client_id, self._name, timeout=self._timeout_s, negotiation=self._negotiation)

    def open(self) -> None:
        """Begin to connect; if a login is configured, first request the credentials for it."""
        if self._security.logins is not None:
            self._request_credentials(self._security.logins, self._on_first_credentials)
        else:
            self._connect()

    def _request_credentials(self, logins: SaslSessions, on_answer: Callable[[Mechanism | None, str], None]) -> None:
        """Call `on_answer(mechanism, "")` with a SASL exchange, or `on_answer(None, reason)` if none is available.

        The call comes once, before this function returns or later from the loop.
        """
        reason = f"No credentials came within {self._timeout_s:g} s. Check the KDC, or kafka.sasl.token_command."
        timer = self._credentials_timer = self._loop.call_later(self._timeout_s, lambda: on_answer(None, reason))

        def answer(mechanism: Mechanism | None, reason: str) -> None:
            # `close` cancels the timer, and the loop marks an expired timer as cancelled: then this answer is void
            if not timer.cancelled:
                timer.cancel()
                on_answer(mechanism, reason)

        logins.request(self._host, answer)

    def _on_first_credentials(self, mechanism: Mechanism | None, reason: str) -> None:
        if mechanism is None:
            self._fail(f"The daemon cannot log in to broker {self._name}. {reason}", FailureCause.NO_CREDENTIALS)
            return
        self._mechanism = mechanism
        self._connect()

    def _connect(self) -> None:
        self.connection.on_connecting(time.monotonic())
        self._set_deadline_timer()
        self._resolver.resolve(self._host, self._port, self._on_resolved)

    def _reopen(self, negotiation: Negotiation) -> None:
        """Open another connection to the broker, with another version negotiation."""
        self._drop_socket()
        self._negotiation = negotiation
        self.connection = self._new_connection()
        self.open()

    @property
    def is_blocked(self) -> bool:
        """True while the owner must not send: the kernel accepts no bytes, or the login is being renewed."""
        return bool(self._unsent) or self.connection.state is ConnectionState.RENEWING

    @property
    def certificate_ends_s(self) -> float | None:
        """The expiry of the broker's certificate in seconds since the epoch; None if no TLS handshake is complete."""
        return None if self._tls is None else self._tls.certificate_ends_s

    def send(self, buffers: Iterable[bytes]) -> None:
        """Queue the buffers behind buffers of earlier calls, and write as many queued bytes as the kernel accepts."""
        views = [memoryview(buffer) for buffer in buffers if buffer]
        if self._tls is None:
            self._unsent += views
        else:
            for view in views:
                self._tls.send(view)
            self._unsent += _as_views(self._tls.read_outgoing())
        self._write()
        self._set_deadline_timer()

    def close(self) -> None:
        """Close the connection and make no further callback."""
        self._is_closed = True
        for timer in (self._deadline_timer, self._renewal_timer, self._credentials_timer):
            if timer is not None:
                timer.cancel()
        self._drop_socket()

    def _drop_socket(self) -> None:
        if self._address_timer is not None:
            self._address_timer.cancel()
            self._address_timer = None
        if self._socket is not None:
            self._loop.unwatch(self._socket)
            self._socket.close()
            self._socket = None
        self._tls = self._write_deadline = None
        self._unsent.clear()

    # --- connecting --------------------------------------------------------------------------------------------------

    def _on_resolved(self, addresses: list[Address], error: str) -> None:
        if self._is_closed:
            return
        self._addresses = deque(addresses)
        self._connect_next(error or "it has no address")

    def _connect_next(self, last_error: str) -> None:
        """Try the next address; if none remains, fail with the text `last_error`."""
        while self._addresses:
            connect_deadline = self.connection.next_deadline()
            assert connect_deadline is not None
            limit_s = (connect_deadline - time.monotonic()) / len(self._addresses)
            try:
                self._start_connect(self._addresses.popleft())
            except (OSError, OverflowError) as error:  # for example, this host has no IPv6, or the port is out of range
                last_error = getattr(error, "strerror", None) or str(error)
                self._drop_socket()
                continue
            if self._addresses:
                self._address_timer = self._loop.call_later(limit_s, self._on_address_timeout)
            return
        self._fail(f"Broker {self._name} cannot be reached: {last_error}.", FailureCause.CLOSED_BY_BROKER)

    def _start_connect(self, address: Address) -> None:
        """Start a non-blocking connect. Raises OSError or OverflowError if it fails at once."""
        family, numeric_host, port = address
        self._socket = socket.socket(family, socket.SOCK_STREAM)
        self._socket.setblocking(False)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        code = self._socket.connect_ex((numeric_host, port))
        if code not in {0, errno.EINPROGRESS}:
            raise OSError(code, os.strerror(code))
        self._loop.watch(self._socket, lambda _: self._on_connected(), select.POLLOUT)

    def _on_address_timeout(self) -> None:
        """Try the next address, because the present one did not answer within its part of the timeout."""
        self._drop_socket()
        self._connect_next("it does not answer")

    def _on_connected(self) -> None:
        assert self._socket is not None
        code = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            self._drop_socket()
            self._connect_next(os.strerror(code))
            return
        if self._address_timer is not None:
            self._address_timer.cancel()
        self._loop.watch(self._socket, self._on_socket_events, select.POLLIN)
        if self._security.tls is None:
            self._start_protocol()
        else:
            self._start_tls(self._security.tls)

    def _start_tls(self, contexts: TlsContexts) -> None:
        try:
            self._tls = contexts.create_session(self._host, f"Broker {self._name}")
            self._tls.handshake()
        except ConfigError as error:
            self._fail(f"TLS with broker {self._name} is not possible. {error}", FailureCause.NO_CREDENTIALS)
        except TlsError as error:
            self._fail(str(error), FailureCause.TLS_FAILED)
        else:
            self._flush_tls(self._tls)

    def _flush_tls(self, tls: TlsSession) -> None:
        """Send the bytes that the TLS session itself produced: handshake messages, alerts, key updates."""
        self._unsent += _as_views(tls.read_outgoing())
        self._write()

    def _start_protocol(self) -> None:
        self.send(self.connection.on_connected(time.monotonic(), self._mechanism))

    # --- traffic -----------------------------------------------------------------------------------------------------

    def _on_socket_events(self, events: int) -> None:
        if events & select.POLLOUT:
            self._write()
        if events & ~select.POLLOUT and not self._is_closed:
            self._read()

    def _write(self) -> None:
        if self._socket is None:
            return
        try:
            while self._unsent:
                buffers = [self._unsent[index] for index in range(min(_MAX_BUFFERS, len(self._unsent)))]
                self._remove_sent(self._socket.sendmsg(buffers))
                self._write_deadline = None
        except BlockingIOError:
            self._write_deadline = self._write_deadline or time.monotonic() + self._timeout_s
            self._loop.watch(self._socket, self._on_socket_events, select.POLLIN | select.POLLOUT)
            return
        except OSError as error:
            self._fail(f"The connection to broker {self._name} broke: {error.strerror}.", FailureCause.CLOSED_BY_BROKER)
            return
        self._loop.watch(self._socket, self._on_socket_events, select.POLLIN)

    def _remove_sent(self, size: int) -> None:
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
            if self.connection.state not in _BEFORE_READY:
                self._fail(
                    f"The connection to broker {self._name} broke: {error.strerror}.", FailureCause.CLOSED_BY_BROKER
                )
                return
            data = b""  # as at an end of stream, see `_BEFORE_READY`
        if self._tls is None:
            self._feed_protocol(data, is_end=not data)
        else:
            self._on_tls_data(self._tls, data)

    def _on_tls_data(self, tls: TlsSession, data: bytes) -> None:
        try:
            decrypted = tls.receive(data)
        except TlsError as error:
            self._send_alert(tls)
            self._fail(str(error), FailureCause.CLOSED_BY_BROKER if error.is_closed else FailureCause.TLS_FAILED)
            return
        self._flush_tls(tls)
        if self._is_closed or not tls.is_open:
            return
        if self.connection.state is ConnectionState.CONNECTING:  # `data` has completed the handshake
            self._start_protocol()
        if decrypted and not self._is_closed:
            self._feed_protocol(decrypted, is_end=False)
        if tls.has_ended and not self._is_closed:
            self._feed_protocol(b"", is_end=True)

    def _send_alert(self, tls: TlsSession) -> None:
        """Send the broker the TLS alert that explains the failure; drop the alert if the kernel does not accept it."""
        if self._socket is not None:
            with suppress(OSError):
                self._socket.send(tls.read_outgoing())

    def _feed_protocol(self, data: bytes, *, is_end: bool) -> None:
        self._handle_events(self.connection.on_eof() if is_end else self.connection.receive(data, time.monotonic()))
        self._set_deadline_timer()

    def _handle_events(self, events: Iterable[Event]) -> None:
        for event in events:
            if self._is_closed:
                return
            if isinstance(event, BytesToSend):
                self.send([event.data])
                continue
            if isinstance(event, LoggedIn):
                if event.lifetime_s > 0 and self._renews_login:
                    self._schedule_renewal(event.lifetime_s, event.lifetime_s * _RENEWAL_FRACTION)
                continue
            if isinstance(event, ConnectionReady):
                self._negotiation_cache.on_ready((self._host, self._port), self._negotiation, time.monotonic())
            elif isinstance(event, Failed) and self._try_fallback(event):
                return
            elif isinstance(event, Failed | Closed):
                self._on_connection_end(event)
            self._on_event(event)

    def _on_connection_end(self, event: Failed | Closed) -> None:
        is_refused = isinstance(event, Failed) and event.cause is FailureCause.LOGIN_REFUSED
        if is_refused and self._security.logins is not None:
            self._security.logins.on_refused()
        self.close()

    def _try_fallback(self, event: Failed) -> bool:
        """If the broker reported no versions and there is a fallback negotiation, reconnect with it and return True."""
        # The cached negotiation is dropped after any failure, because the broker may have been upgraded or downgraded.
        self._negotiation_cache.on_failed((self._host, self._port))
        fallback = self._negotiation.fallback
        if event.cause is not FailureCause.NO_API_VERSIONS or fallback is None:
            return False
        log.info("%s The next connection tries the requests of releases before Kafka 0.10.", event.error)
        self._reopen(fallback)
        return True

    def _fail(self, text: str, cause: FailureCause) -> None:
        self._negotiation_cache.on_failed((self._host, self._port))
        unanswered = self.connection.close()
        self.close()
        self._on_event(Failed(RemoteProtocolError(text), cause, unanswered))

    # --- login -------------------------------------------------------------------------------------------------------

    def _schedule_renewal(self, lifetime_s: float, delay_s: float) -> None:
        """Renew the login after `delay_s`; `lifetime_s` is the lifetime of the present login."""
        assert self._security.logins is not None
        on_answer = partial(self._on_renewal_credentials, lifetime_s)
        renew = partial(self._request_credentials, self._security.logins, on_answer)
        self._renewal_timer = self._loop.call_later(delay_s, renew)

    def _on_renewal_credentials(self, lifetime_s: float, mechanism: Mechanism | None, reason: str) -> None:
        if mechanism is not None:
            self.send(self.connection.renew_login(mechanism, time.monotonic()))
            return
        log.error("The login at broker %s cannot be renewed, and will expire. %s", self._name, reason)
        self._schedule_renewal(lifetime_s, max(_MIN_RETRY_S, lifetime_s * _RETRY_FRACTION))

    # --- deadlines ---------------------------------------------------------------------------------------------------

    def _set_deadline_timer(self) -> None:
        """Set the timer for the next deadline.

        A timer that fires before this deadline stays set: when it fires, it calls this function again.
        """
        deadlines = [each for each in (self.connection.next_deadline(), self._write_deadline) if each is not None]
        if self._is_closed or not deadlines:
            return
        deadline = min(deadlines)
        if self._deadline_timer is not None:
            if self._deadline_timer_time <= deadline:
                return
            self._deadline_timer.cancel()
        self._deadline_timer_time = deadline
        self._deadline_timer = self._loop.call_at(deadline, self._on_deadline_timer)

    def _on_deadline_timer(self) -> None:
        self._deadline_timer = None
        now = time.monotonic()
        self._handle_events(self.connection.check_deadline(now))
        if self._write_deadline is not None and now >= self._write_deadline:
            text = f"Broker {self._name} accepted no bytes for {self._timeout_s:g} s."
            self._fail(text, FailureCause.TIMED_OUT)
        self._set_deadline_timer()


def _as_views(data: bytes) -> list[memoryview]:
    return [memoryview(data)] if data else []
