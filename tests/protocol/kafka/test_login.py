"""A login on a connection, without a broker: the requests, their order, and every refusal."""

from __future__ import annotations

from typing import Any, Final

import pytest
from kafka.protocol.sasl import SaslAuthenticateResponse, SaslHandshakeResponse

from bruce_mp.errors import LocalProtocolError
from bruce_mp.protocol.kafka.broker_connection import BrokerConnection
from bruce_mp.protocol.kafka.connection_events import (
    BytesToSend,
    ConnectionReady,
    ConnectionState,
    Event,
    Failed,
    FailureCause,
    LoggedIn,
)
from bruce_mp.protocol.kafka.kafka_types import PartitionData
from bruce_mp.protocol.kafka.sasl import Plain
from bruce_mp.protocol.kafka.scram import Scram
from bruce_mp.protocol.kafka.version_negotiation import VERSIONS_ONLY, negotiation_for
from support.kafka_answers import framed, versions

APIS: Final = {0: (0, 9), 3: (0, 9), 17: (0, 1), 18: (0, 3), 22: (0, 4), 36: (0, 2)}
BEFORE_1_0: Final = {0: (0, 2), 3: (0, 2), 17: (0, 0), 18: (0, 0)}
WITHOUT: Final = {0: (0, 9), 3: (0, 9), 18: (0, 3)}
TIMEOUT: Final = 30.0
HANDSHAKE, TOKEN = 17, 36


def allowed(correlation_id: int, error: int = 0, version: int = 1, mechanisms: tuple[str, ...] = ("PLAIN",)) -> bytes:
    return framed(SaslHandshakeResponse[version](error_code=error, mechanisms=list(mechanisms)), correlation_id)


def token(correlation_id: int, *, error: int = 0, message: str | None = None, lifetime_ms: int = 0) -> bytes:
    response = SaslAuthenticateResponse[2](
        error_code=error, error_message=message, auth_bytes=b"", session_lifetime_ms=lifetime_ms
    )
    return framed(response, correlation_id)


def raw(data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + data


def connection_with(apis: dict[int, tuple[int, int]], mechanism: Any = None) -> tuple[BrokerConnection, list[Event]]:
    """Return a connection after the ApiVersions response, with the resulting events."""
    connection = BrokerConnection("bruce", "b1:9092", timeout=TIMEOUT, negotiation=VERSIONS_ONLY)
    connection.on_connecting(0.0)
    connection.on_connected(0.0, mechanism or Plain("alice", "hidden"))
    return connection, connection.receive(versions(apis), 1.0)


def logging_in(apis: dict[int, tuple[int, int]] = APIS, mechanism: Any = None) -> BrokerConnection:
    connection, (sent,) = connection_with(apis, mechanism)
    assert isinstance(sent, BytesToSend)
    assert key_of(sent.data) == HANDSHAKE
    return connection


def logged_in(lifetime_ms: int = 0) -> BrokerConnection:
    connection = logging_in()
    connection.receive(allowed(2), 2.0)
    connection.receive(token(3, lifetime_ms=lifetime_ms), 3.0)
    assert connection.state is ConnectionState.READY
    return connection


def key_of(request: bytes) -> int:
    return int.from_bytes(request[4:6], "big")


def the_failure(events: list[Event]) -> Failed:
    assert isinstance(events[-1], Failed)
    return events[-1]


def produce(connection: BrokerConnection) -> int:
    return connection.request_produce([PartitionData(b"t", 0, b"r")], 5.0, acks=-1, timeout_ms=1).correlation_id


# --- logins -----------------------------------------------------------------------------------------------------------
def test_login_precedes_the_ready_state() -> None:
    connection = logging_in()
    assert connection.state is ConnectionState.LOGGING_IN
    with pytest.raises(LocalProtocolError, match="logging in"):
        connection.request_metadata(None, 2.0)
    (sent,) = connection.receive(allowed(2), 2.0)
    assert isinstance(sent, BytesToSend)
    assert key_of(sent.data) == TOKEN
    assert b"\0alice\0hidden" in sent.data
    first, second = connection.receive(token(3, lifetime_ms=1500), 3.0)
    assert first == LoggedIn(1.5)
    assert isinstance(second, ConnectionReady)
    assert connection.next_deadline() is None


def test_tokens_are_sent_without_headers_before_kafka_1_0() -> None:
    connection = logging_in(BEFORE_1_0, Scram("SCRAM-SHA-256", "user", "pencil", "rOprNGfwEbeRWgbNEkqO"))
    (sent,) = connection.receive(allowed(2, version=0), 2.0)
    assert sent == BytesToSend(raw(b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"))
    first = b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    (proof,) = connection.receive(raw(first), 3.0)
    assert isinstance(proof, BytesToSend)
    assert proof.data[4:].endswith(b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=")
    events = connection.receive(raw(b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="), 4.0)
    assert events[0] == LoggedIn(0.0)
    assert connection.state is ConnectionState.READY


def test_an_empty_token_without_a_header_is_accepted() -> None:
    connection = logging_in(BEFORE_1_0)
    connection.receive(allowed(2, version=0), 2.0)
    assert connection.receive(raw(b""), 3.0)[0] == LoggedIn(0.0)


def test_a_login_is_renewed_between_requests() -> None:
    connection = logged_in(lifetime_ms=1000)
    asked = produce(connection)
    (request,) = connection.renew_login(Plain("alice", "newer"), 6.0)
    assert key_of(request) == HANDSHAKE
    assert connection.unanswered == (asked,)
    with pytest.raises(LocalProtocolError, match="renewing the login"):
        produce(connection)
    assert connection.next_deadline() == 5.0 + TIMEOUT


def test_a_renewal_reports_the_login_and_not_ready() -> None:
    connection = logged_in(lifetime_ms=1000)
    connection.renew_login(Plain("alice", "newer"), 6.0)
    (sent,) = connection.receive(allowed(4), 7.0)
    assert isinstance(sent, BytesToSend)
    assert b"newer" in sent.data
    assert connection.receive(token(5, lifetime_ms=2000), 8.0) == [LoggedIn(2.0)]
    produce(connection)


# --- refusals ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("error", "words"),
    [
        (33, "does not accept PLAIN on this port, but: SCRAM-SHA-256, GSSAPI. Set kafka.sasl.mechanism"),
        (34, "expects no login on this port"),
        (35, "UNSUPPORTED_VERSION (35)"),
    ],
)
def test_a_refused_mechanism_is_explained(error: int, words: str) -> None:
    failure = the_failure(logging_in().receive(allowed(2, error, mechanisms=("SCRAM-SHA-256", "GSSAPI")), 2.0))
    assert failure.cause is FailureCause.LOGIN_REFUSED
    assert words in str(failure.error)


def test_a_refused_password_is_explained() -> None:
    connection = logging_in()
    connection.receive(allowed(2), 2.0)
    failure = the_failure(connection.receive(token(3, error=58, message="Invalid username."), 3.0))
    assert (failure.cause, failure.cause.needs_operator, failure.unanswered) == (FailureCause.LOGIN_REFUSED, True, ())
    assert 'user "alice" by PLAIN: SASL_AUTHENTICATION_FAILED (58). It says: Invalid username.' in str(failure.error)
    assert "hidden" not in str(failure.error)


def test_a_refused_renewal_names_unanswered_requests() -> None:
    connection = logged_in(lifetime_ms=1000)
    connection.renew_login(Plain("alice", "newer"), 6.0)
    failure = the_failure(connection.receive(allowed(4, 33), 7.0))
    assert failure.unanswered == ()
    other = logged_in(lifetime_ms=1000)
    asked = produce(other)
    other.renew_login(Plain("alice", "newer"), 6.0)
    assert the_failure(other.on_eof()).unanswered == (asked,)


@pytest.mark.parametrize(
    ("apis", "version", "cause", "words"),
    [
        (APIS, 1, FailureCause.CLOSED_BY_BROKER, "during the login; it may be shutting down"),
        (BEFORE_1_0, 0, FailureCause.LOGIN_REFUSED, 'refuses the login of user "alice" by PLAIN'),
    ],
)
def test_a_close_during_the_login_is_explained(
    apis: dict[int, tuple[int, int]], version: int, cause: FailureCause, words: str
) -> None:
    connection = logging_in(apis)
    connection.receive(allowed(2, version=version), 2.0)
    failure = the_failure(connection.on_eof())
    assert failure.cause is cause
    assert words in str(failure.error)


def test_a_broker_without_login_support_is_explained() -> None:
    _, events = connection_with(WITHOUT)
    assert the_failure(events).cause is FailureCause.LOGIN_REFUSED
    assert "Remove kafka.sasl.mechanism" in str(the_failure(events).error)


def test_a_silent_broker_times_out_during_the_login() -> None:
    connection = logging_in()
    assert connection.next_deadline() == 1.0 + TIMEOUT
    assert the_failure(connection.check_deadline(1.0 + TIMEOUT)).cause is FailureCause.TIMED_OUT


def test_an_invalid_token_response_fails_the_connection() -> None:
    connection = logging_in()
    connection.receive(allowed(2), 2.0)
    assert the_failure(connection.receive(raw(b"\0\0\0\x03\xff"), 3.0)).cause is FailureCause.BAD_DATA


def test_a_login_allows_no_fallback_request() -> None:
    assert negotiation_for("0.9.0.1", logs_in=True) is VERSIONS_ONLY
    assert VERSIONS_ONLY.fallback is None
