"""Connections to a real broker: each security protocol, and each way in which it fails."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

import pytest

from bruce_mp.config.sections import Kafka
from bruce_mp.config.security import Sasl, Tls
from bruce_mp.ipc.loop import Loop
from bruce_mp.network.broker_socket import BrokerSocket
from bruce_mp.network.connection_security import create_security
from bruce_mp.network.resolver import Resolver
from bruce_mp.protocol.kafka.connection_events import ConnectionReady, Failed, FailureCause, MetadataReceived
from bruce_mp.protocol.kafka.scram import SCRAM_HASHES
from bruce_mp.protocol.kafka.version_negotiation import NegotiationCache
from support.certificates import Authority
from support.kafka_secure import OLD_PASSWORD, PASSWORDS, SESSION_MS, OldKafka, SecureKafka
from support.signed_tokens import unsigned_token

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import ExitStack
    from pathlib import Path

    from bruce_mp.protocol.kafka.connection_events import Event

pytestmark = [pytest.mark.kafka, pytest.mark.process]

TIMEOUT_S: Final = 40.0


@pytest.fixture
def kafka(secure_kafka: SecureKafka) -> SecureKafka:
    return secure_kafka


class Client:
    """A connection to a listener, with its own loop."""

    def __init__(self, stack: ExitStack, place: tuple[str, int], tls: Tls, sasl: Sasl) -> None:
        self.loop = Loop()
        self.events: list[Event] = []
        host, port = place
        settings = Kafka(bootstrap_servers=("unused:1",), tls=tls, sasl=sasl)
        resolver = Resolver(self.loop)
        security = create_security(settings, self.loop)
        self.socket = BrokerSocket(
            self.loop, resolver, host=host, port=port, client_id="test", timeout_s=TIMEOUT_S,
            on_event=self.events.append, negotiation_cache=NegotiationCache(logs_in=security.logins is not None),
            security=security, renews_login=True,
        )  # fmt: skip
        stack.callback(self.socket.close)
        self.socket.open()

    def run_until(self, condition: Callable[[], Any]) -> None:
        deadline = time.monotonic() + TIMEOUT_S
        while not condition():
            assert time.monotonic() < deadline, self.events
            self.run_for(0.02)

    def run_for(self, seconds: float) -> None:
        self.loop.call_later(seconds, self.loop.stop)
        self.loop.run()

    def ask_for_metadata(self) -> None:
        self.socket.send(self.socket.connection.request_metadata(None, time.monotonic()).buffers)
        self.run_until(lambda: isinstance(self.events[-1], MetadataReceived | Failed))
        assert isinstance(self.events[-1], MetadataReceived), self.events[-1]

    def assert_good(self) -> None:
        self.run_until(lambda: self.events)
        assert isinstance(self.events[-1], ConnectionReady), self.events[-1]
        self.ask_for_metadata()

    def failure(self) -> Failed:
        self.run_until(lambda: self.events)
        assert isinstance(self.events[-1], Failed), self.events
        return self.events[-1]


def a_file(directory: Path, name: str, content: str) -> str:
    path = directory / name
    path.write_text(content + "\n")
    return str(path)


def as_user(mechanism: Any, file: str, user: str = "alice") -> Sasl:
    return Sasl(mechanism=mechanism, username=user, password_file=file)


# --- successes --------------------------------------------------------------------------------------------------------
def test_tls_connects_with_a_private_authority(stack: ExitStack, kafka: SecureKafka) -> None:
    client = Client(stack, kafka.at("SSL"), Tls(enable=True, ca_file=str(kafka.authority.certificate)), Sasl())
    client.assert_good()
    ends_s = client.socket.certificate_ends_s
    assert ends_s is not None
    assert 0 < ends_s - time.time() <= 2 * 86400


@pytest.mark.parametrize("version", ["1.2", "1.3"])
def test_mutual_tls_connects_with_an_encrypted_key(
    stack: ExitStack, kafka: SecureKafka, tmp_path: Path, version: Any
) -> None:
    ours = kafka.authority.issue("client", password="of the key")
    tls = Tls(
        enable=True,
        ca_file=str(kafka.authority.certificate),
        certificate_file=str(ours.certificate),
        key_file=str(ours.key),
        key_password_file=a_file(tmp_path, "key-password", "of the key"),
        min_version=version,
    )
    Client(stack, kafka.at("MTLS"), tls, Sasl()).assert_good()


def test_host_name_verification_can_be_disabled(stack: ExitStack, kafka: SecureKafka) -> None:
    tls = Tls(enable=True, ca_file=str(kafka.authority.certificate), verify_host_name=False)
    Client(stack, kafka.at("ELSEWHERE"), tls, Sasl()).assert_good()


@pytest.mark.parametrize("listener", ["SASL_SSL", "SASL_PLAIN"])
@pytest.mark.parametrize("mechanism", ["PLAIN", *SCRAM_HASHES])
def test_a_password_logs_in(
    stack: ExitStack, kafka: SecureKafka, monkeypatch: pytest.MonkeyPatch, mechanism: Any, listener: str
) -> None:
    monkeypatch.setenv("KAFKA_PASSWORD", PASSWORDS["alice"])
    sasl = Sasl(mechanism=mechanism, username="alice", password_env="KAFKA_PASSWORD")
    tls = Tls(enable=listener == "SASL_SSL", ca_file=str(kafka.authority.certificate))
    Client(stack, kafka.at(listener), tls, sasl).assert_good()


def test_a_token_file_logs_in(stack: ExitStack, kafka: SecureKafka, tmp_path: Path) -> None:
    sasl = Sasl(mechanism="OAUTHBEARER", token_file=a_file(tmp_path, "token", unsigned_token("carol")))
    tls = Tls(enable=True, ca_file=str(kafka.authority.certificate))
    Client(stack, kafka.at("SASL_SSL"), tls, sasl).assert_good()


def test_a_token_command_logs_in(stack: ExitStack, kafka: SecureKafka, tmp_path: Path) -> None:
    file = a_file(tmp_path, "token", unsigned_token("carol"))
    sasl = Sasl(mechanism="OAUTHBEARER", token_command=("/bin/cat", file))
    Client(stack, kafka.at("SASL_PLAIN"), Tls(), sasl).assert_good()


def test_a_login_is_renewed_before_it_expires(stack: ExitStack, kafka: SecureKafka, tmp_path: Path) -> None:
    """The broker closes a connection at its first use after the login has expired."""
    password = a_file(tmp_path, "password", PASSWORDS["alice"])
    command = ("/bin/cat", a_file(tmp_path, "token", unsigned_token("carol")))
    logins = {
        "PLAIN": as_user("PLAIN", password),
        "SCRAM-SHA-512": as_user("SCRAM-SHA-512", password),
        "OAUTHBEARER": Sasl(mechanism="OAUTHBEARER", token_command=command),
    }
    clients = {mechanism: Client(stack, kafka.at("SHORT"), Tls(), sasl) for mechanism, sasl in logins.items()}
    for client in clients.values():
        client.assert_good()
    until = time.monotonic() + 2.5 * SESSION_MS / 1000
    while time.monotonic() < until:  # all at the same time, because only time passes
        for client in clients.values():
            client.run_until(lambda client=client: not client.socket.is_blocked)  # type: ignore[misc]
            client.ask_for_metadata()
            client.run_for(0.05)
    again = [name for name, client in clients.items() if ConnectionReady in map(type, client.events[1:])]
    assert again == [], "the broker ended these connections"


# --- failures ---------------------------------------------------------------------------------------------------------
def test_an_unknown_authority_is_explained(stack: ExitStack, kafka: SecureKafka, tmp_path: Path) -> None:
    other = Authority(tmp_path)
    failure = Client(stack, kafka.at("SSL"), Tls(enable=True, ca_file=str(other.certificate)), Sasl()).failure()
    assert failure.cause is FailureCause.TLS_FAILED
    assert f"Broker {kafka.server('SSL')} has a certificate from an authority that the daemon does not trust." in str(
        failure.error
    )
    assert "kafka.tls.ca_file" in str(failure.error)


@pytest.mark.parametrize(
    ("listener", "words"),
    [
        ("EXPIRED", "has an expired certificate, or its authority's certificate has expired"),
        ("ELSEWHERE", "certificate for other hosts"),
    ],
)
def test_an_invalid_broker_certificate_is_explained(
    stack: ExitStack, kafka: SecureKafka, listener: str, words: str
) -> None:
    tls = Tls(enable=True, ca_file=str(kafka.authority.certificate))
    failure = Client(stack, kafka.at(listener), tls, Sasl()).failure()
    assert failure.cause is FailureCause.TLS_FAILED
    assert words in str(failure.error)


@pytest.mark.parametrize("version", ["1.2", "1.3"])
def test_a_missing_client_certificate_is_explained(stack: ExitStack, kafka: SecureKafka, version: Any) -> None:
    tls = Tls(enable=True, ca_file=str(kafka.authority.certificate), min_version=version)
    failure = Client(stack, kafka.at("MTLS"), tls, Sasl()).failure()
    assert "kafka.tls.certificate_file" in str(failure.error)
    assert failure.cause is FailureCause.TLS_FAILED


def test_an_untrusted_client_certificate_is_explained(stack: ExitStack, kafka: SecureKafka, tmp_path: Path) -> None:
    ours = Authority(tmp_path).issue("client")
    tls = Tls(enable=True, ca_file=str(kafka.authority.certificate), certificate_file=str(ours.both))
    failure = Client(stack, kafka.at("MTLS"), tls, Sasl()).failure()
    assert "kafka.tls.certificate_file" in str(failure.error)
    assert failure.cause is FailureCause.TLS_FAILED


def test_plain_text_to_a_tls_listener_is_explained(stack: ExitStack, kafka: SecureKafka) -> None:
    failure = Client(stack, kafka.at("SSL"), Tls(), Sasl()).failure()
    assert "TLS on this port" in str(failure.error)


def test_tls_to_a_plain_listener_is_explained(stack: ExitStack, kafka: SecureKafka) -> None:
    tls = Tls(enable=True, ca_file=str(kafka.authority.certificate))
    failure = Client(stack, kafka.at("SASL_PLAIN"), tls, Sasl()).failure()
    assert "may speak plain text on this port: then set kafka.tls.enable = false" in str(failure.error)


@pytest.mark.parametrize("mechanism", ["PLAIN", *SCRAM_HASHES])
def test_a_wrong_password_is_explained(stack: ExitStack, kafka: SecureKafka, tmp_path: Path, mechanism: Any) -> None:
    failure = Client(
        stack, kafka.at("SASL_PLAIN"), Tls(), as_user(mechanism, a_file(tmp_path, "p", "wrong!"))
    ).failure()
    assert failure.cause is FailureCause.LOGIN_REFUSED
    text = str(failure.error)
    assert f'refuses the login of user "alice" by {mechanism}: SASL_AUTHENTICATION_FAILED (58). It says: ' in text
    assert "Correct [kafka.sasl], or the user on the brokers" in text
    assert "wrong!" not in text


def test_an_expired_token_is_explained(stack: ExitStack, kafka: SecureKafka, tmp_path: Path) -> None:
    token = unsigned_token("carol", -120)
    sasl = Sasl(mechanism="OAUTHBEARER", token_file=a_file(tmp_path, "token", token))
    failure = Client(stack, kafka.at("SASL_PLAIN"), Tls(), sasl).failure()
    assert failure.cause is FailureCause.LOGIN_REFUSED
    assert "the holder of the token" in str(failure.error)
    assert token not in str(failure.error)


def test_an_unexpected_login_is_explained(stack: ExitStack, kafka: SecureKafka, tmp_path: Path) -> None:
    tls = Tls(enable=True, ca_file=str(kafka.authority.certificate))
    sasl = as_user("PLAIN", a_file(tmp_path, "p", PASSWORDS["alice"]))
    failure = Client(stack, kafka.at("SSL"), tls, sasl).failure()
    assert failure.cause is FailureCause.LOGIN_REFUSED
    assert "expects no login on this port. Remove kafka.sasl.mechanism" in str(failure.error)


def test_a_missing_login_is_explained(stack: ExitStack, kafka: SecureKafka) -> None:
    client = Client(stack, kafka.at("SASL_PLAIN"), Tls(), Sasl())
    client.run_until(lambda: client.events)
    assert isinstance(client.events[-1], ConnectionReady)
    client.socket.send(client.socket.connection.request_metadata(None, time.monotonic()).buffers)
    client.run_until(lambda: len(client.events) > 1)
    failure = client.events[-1]
    assert isinstance(failure, Failed)
    assert "expect a login on this port (kafka.sasl.mechanism)" in str(failure.error)


@pytest.mark.parametrize("content", ["", None])
def test_a_missing_password_is_explained(
    stack: ExitStack, kafka: SecureKafka, tmp_path: Path, content: str | None
) -> None:
    path = tmp_path / "password"
    if content is not None:
        path.write_text(content)
    failure = Client(stack, kafka.at("SASL_PLAIN"), Tls(), as_user("PLAIN", str(path))).failure()
    assert failure.cause is FailureCause.NO_CREDENTIALS
    assert str(path) in str(failure.error)


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (("/bin/false",), "ended with code 1. Run it as the daemon's user"),
        (("/bin/true",), "wrote no token"),
        (("/nowhere/program",), "cannot be started: No such file"),
    ],
)
def test_a_failed_token_command_is_explained(
    stack: ExitStack, kafka: SecureKafka, command: tuple[str, ...], words: str
) -> None:
    sasl = Sasl(mechanism="OAUTHBEARER", token_command=command)
    failure = Client(stack, kafka.at("SASL_PLAIN"), Tls(), sasl).failure()
    assert failure.cause is FailureCause.NO_CREDENTIALS
    assert words in str(failure.error)


# --- before Kafka 1.0 -------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def old_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OldKafka]:
    with OldKafka(tmp_path_factory.mktemp("old"), "0.10.2.2") as cluster:
        yield cluster


@pytest.mark.parametrize("mechanism", ["PLAIN", *SCRAM_HASHES])
def test_a_password_logs_in_to_an_old_broker(
    stack: ExitStack, old_kafka: OldKafka, tmp_path: Path, mechanism: Any
) -> None:
    password = PASSWORDS["alice"] if mechanism == "PLAIN" else OLD_PASSWORD
    Client(stack, old_kafka.at(), Tls(), as_user(mechanism, a_file(tmp_path, "p", password))).assert_good()


@pytest.mark.parametrize("mechanism", ["PLAIN", *SCRAM_HASHES])
def test_a_wrong_password_on_an_old_broker_is_explained(
    stack: ExitStack, old_kafka: OldKafka, tmp_path: Path, mechanism: Any
) -> None:
    """An old broker only closes the connection."""
    failure = Client(stack, old_kafka.at(), Tls(), as_user(mechanism, a_file(tmp_path, "p", "wrong!"))).failure()
    assert failure.cause is FailureCause.LOGIN_REFUSED
    assert f'refuses the login of user "alice" by {mechanism}. Correct [kafka.sasl]' in str(failure.error)
