"""Secrets from files, variables and programs; changed certificates; and no secret in any output."""

from __future__ import annotations

import logging
import os
import ssl
import time
from base64 import urlsafe_b64encode
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import psutil
import pytest
from msgspec.structs import replace

from bruce_mp.config.load import load_config
from bruce_mp.config.model import Config
from bruce_mp.config.risky_settings import risk_warnings
from bruce_mp.config.sections import Http, Kafka
from bruce_mp.config.security import Sasl, Tls
from bruce_mp.errors import ConfigError, TlsError
from bruce_mp.ipc.loop import Loop
from bruce_mp.network import token_command
from bruce_mp.network.credentials import exposed_file_warnings, read_secret, unreadable_file_warnings
from bruce_mp.network.sasl_sessions import SaslSessions
from bruce_mp.network.tls import TlsContexts, TlsSession
from support.certificates import Authority

if TYPE_CHECKING:
    from pathlib import Path

    from bruce_mp.protocol.kafka.sasl import Mechanism

TIMEOUT_S: Final = 20.0


# --- secrets ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("content", "secret"), [("a\n", "a"), ("a\r\n", "a"), ("a", "a"), (" a \n\n", " a \n"), ("ä", "ä")]
)
def test_a_secret_loses_one_trailing_line_feed(tmp_path: Path, content: str, secret: str) -> None:
    file = tmp_path / "secret"
    file.write_bytes(content.encode())
    assert read_secret(str(file), None, "The password") == secret


def test_a_missing_secret_is_named_by_its_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_SUCH", raising=False)
    with pytest.raises(ConfigError, match="environment variable NO_SUCH"):
        read_secret(None, "NO_SUCH", "The password")
    with pytest.raises(
        ConfigError, match=f"cannot be read from {tmp_path}/none: No such file or directory. Create the file, or"
    ):
        read_secret(f"{tmp_path}/none", None, "The password")
    assert read_secret(None, None, "The password") is None


def test_undecodable_secret_bytes_are_not_shown(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_bytes(b"hidden\xff")
    with pytest.raises(ConfigError, match=f"The password in {file} is not UTF-8") as caught:
        read_secret(str(file), None, "The password")
    assert caught.value.__cause__ is None


def test_undecodable_bytes_in_a_variable_are_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", os.fsdecode(b"hidden\xff"))
    with pytest.raises(ConfigError, match="in the environment variable SECRET is not UTF-8") as caught:
        read_secret(None, "SECRET", "The password")
    assert caught.value.__cause__ is None
    monkeypatch.setenv("SECRET", os.fsdecode("ä".encode()))
    assert read_secret(None, "SECRET", "The password") == "ä"


@pytest.mark.parametrize(
    ("mode", "access"), [(0o600, None), (0o640, None), (0o644, "read"), (0o602, "written"), (0o666, "read and written")]
)
def test_world_accessible_secret_files_are_named(tmp_path: Path, mode: int, access: str | None) -> None:
    file = tmp_path / "secret"
    file.write_text("x")
    file.chmod(mode)
    kafka = Kafka(("b:1",), tls=Tls(certificate_file=str(file)), sasl=Sasl(password_file=str(file)))
    found = list(exposed_file_warnings(Config(kafka, http=Http(token_file=str(file)))))
    exposed = ["kafka.tls.certificate_file", "kafka.sasl.password_file", "http.token_file"]
    assert [text.partition(" = ")[0] for text in found] == (exposed if access else [])
    assert all(f"can be {access} by every user" in text and f"chmod o-rw {file}" in text for text in found)


def test_missing_files_are_named(tmp_path: Path) -> None:
    there, away = tmp_path / "there", str(tmp_path / "away")
    there.write_text("x")
    kafka = Kafka(("b:1",), tls=Tls(ca_file=str(there), certificate_file=away), sasl=Sasl(password_file=away))
    settings = [text.partition(" = ")[0] for text in unreadable_file_warnings(Config(kafka))]
    assert sorted(settings) == ["kafka.sasl.password_file", "kafka.tls.certificate_file"]


def test_files_closed_to_the_present_user_are_named() -> None:
    kafka = Kafka(("b:1",), sasl=Sasl(password_file="/etc/shadow"))
    user = os.geteuid()
    os.seteuid(user or 40001)  # root can read every file
    try:
        [text] = unreadable_file_warnings(Config(kafka))
    finally:
        os.seteuid(user)
    assert "kafka.sasl.password_file = /etc/shadow cannot be read by the current user" in text


# --- logins -----------------------------------------------------------------------------------------------------------
def get(logins: SaslSessions, loop: Loop) -> tuple[Mechanism | None, str]:
    found: list[tuple[Mechanism | None, str]] = []
    logins.request("broker", lambda mechanism, trouble: found.append((mechanism, trouble)))
    deadline = time.monotonic() + TIMEOUT_S
    while not found:
        assert time.monotonic() < deadline
        loop.call_later(0.02, loop.stop)
        loop.run()
    return found[0]


def jwt(lifetime_s: float) -> str:
    claims = urlsafe_b64encode(b'{"exp": %f}' % (time.time() + lifetime_s)).decode().rstrip("=")
    return f"head.{claims}.signature"


def command_that_counts(tmp_path: Path, output: str) -> tuple[SaslSessions, Loop, Path]:
    """Return the logins with a token command that writes `output`, and the file that gets a line for each run."""
    count, file, loop = tmp_path / "count", tmp_path / "output", Loop()
    file.write_text(output)
    command = ("/bin/sh", "-c", f"echo >> {count}; cat {file}")
    return SaslSessions(Sasl(mechanism="OAUTHBEARER", token_command=command), loop), loop, count


@pytest.mark.process
@pytest.mark.parametrize(
    ("token", "form", "runs"),
    [
        ("opaque", "{}", 3),
        (1000.0, "{}", 1),
        (-1.0, "{}", 3),
        ("a.b.c", "{}", 3),
        ("opaque", '{{"access_token": "{}", "token_type": "Bearer", "expires_in": 1000}}', 1),
        ("opaque", '{{"access_token": "{}", "expires_in": "1000"}}', 1),  # some servers write numbers as strings
        ("opaque", '{{"access_token": "{}", "expires_in": 0}}', 3),
        ("opaque", '{{"access_token": "{}"}}', 3),
        (1000.0, '{{"access_token": "{}"}}', 1),
        (1000.0, '{{"access_token": "{}", "expires_in": 0}}', 3),
    ],
)
def test_a_token_is_cached_until_it_expires(tmp_path: Path, token: str | float, form: str, runs: int) -> None:
    if isinstance(token, float):  # a token from the time of collection would have expired
        token = jwt(lifetime_s=token)
    logins, loop, count = command_that_counts(tmp_path, form.format(token))
    for _ in range(3):
        mechanism, trouble = get(logins, loop)
        assert mechanism is not None, trouble
        assert mechanism.start() == b"n,,\x01auth=Bearer %s\x01\x01" % token.encode()
    assert count.read_text().count("\n") == runs


@pytest.mark.process
def test_a_refused_token_is_requested_again(tmp_path: Path) -> None:
    logins, loop, count = command_that_counts(tmp_path, jwt(lifetime_s=1000))
    for _ in range(2):
        get(logins, loop)
        get(logins, loop)
        logins.on_refused()
    assert count.read_text().count("\n") == 2


@pytest.mark.process
def test_a_token_stays_in_use_while_its_renewal_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    token = jwt(lifetime_s=1000)
    logins, loop, count = command_that_counts(tmp_path, token)
    start_s = time.time()
    assert get(logins, loop)[1] == ""
    (tmp_path / "output").write_text('{"error": "temporarily_unavailable", "error_description": "busy"}')
    monkeypatch.setattr(time, "time", lambda: start_s + 900)
    mechanism, trouble = get(logins, loop)
    assert mechanism is not None, trouble
    assert token.encode() in mechanism.start()
    assert "reports temporarily_unavailable: busy. The present token stays in use for " in caplog.text
    monkeypatch.setattr(time, "time", lambda: start_s + 1001)
    assert get(logins, loop) == (None, "kafka.sasl.token_command (/bin/sh) reports temporarily_unavailable: busy.")
    assert count.read_text().count("\n") == 3


@pytest.mark.process
@pytest.mark.parametrize(
    ("script", "reason"),
    [
        (
            """echo '{"error": "invalid_client", "error_description": "No such\\u001b client."}'; exit 1""",
            "reports invalid_client: No such client.",
        ),
        ("""echo '{"error": "invalid_client"}'""", "reports invalid_client: the issuer gives no reason."),
        ("""echo '{"access_token": "hidden", '""", "wrote no token. Run it as the daemon's user to see why."),
        ("""echo '{"access_token": ["hidden"]}'""", "wrote no token. Run it as the daemon's user to see why."),
        ("yes | head -c 99999", "wrote more than 64 KiB, and was killed. Name a program that prints a token."),
        ("echo hidden; exit 3", "ended with code 3. Run it as the daemon's user to see why."),
    ],
)
def test_a_failed_token_command_gives_its_reason_and_no_token(script: str, reason: str) -> None:
    loop = Loop()
    logins = SaslSessions(Sasl(mechanism="OAUTHBEARER", token_command=("/bin/sh", "-c", script)), loop)
    assert get(logins, loop) == (None, f"kafka.sasl.token_command (/bin/sh) {reason}")


@pytest.mark.process
def test_a_token_command_over_its_time_limit_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_command, "_TIMEOUT_S", 0.2)
    loop = Loop()
    logins = SaslSessions(Sasl(mechanism="OAUTHBEARER", token_command=("/bin/sleep", "100")), loop)
    mechanism, trouble = get(logins, loop)
    assert mechanism is None
    assert "did not end within 0.2 s, and was killed" in trouble


@pytest.mark.process
@pytest.mark.parametrize("script", ["sleep 100 & echo $! >$0; wait", "sleep 100 & echo $! >$0"])
def test_the_children_of_a_token_command_over_its_time_limit_are_killed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, script: str
) -> None:
    monkeypatch.setattr(token_command, "_TIMEOUT_S", 0.4)
    loop, file = Loop(), tmp_path / "child"
    command = ("/bin/sh", "-c", script, str(file))
    logins = SaslSessions(Sasl(mechanism="OAUTHBEARER", token_command=command), loop)
    assert "and was killed" in get(logins, loop)[1]
    with suppress(psutil.NoSuchProcess):
        psutil.Process(int(file.read_text())).wait(TIMEOUT_S)


@pytest.mark.process
@pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning")
@pytest.mark.parametrize("script", ["exec sleep 100", "exec sleep 100 >&-"])
@pytest.mark.parametrize(
    ("has_changed_user", "outcome"), [(False, "was killed."), (True, "runs on, because it has changed its user.")]
)
def test_a_token_command_that_outlives_its_kill_does_not_block_the_logins(
    monkeypatch: pytest.MonkeyPatch, script: str, has_changed_user: bool, outcome: str
) -> None:
    tried: list[int] = []

    def kill(group: int, _: int) -> None:
        tried.append(group)  # and the program runs on, as in an uninterruptible call
        if has_changed_user:  # as sudo does
            raise PermissionError

    monkeypatch.setattr(token_command, "_TIMEOUT_S", 0.2)
    monkeypatch.setattr(os, "killpg", kill)
    loop = Loop()
    logins = SaslSessions(Sasl(mechanism="OAUTHBEARER", token_command=("/bin/sh", "-c", script)), loop)
    assert f"did not end within 0.2 s, and {outcome}" in get(logins, loop)[1]
    program = psutil.Process(tried[0])
    assert program.is_running()
    program.terminate()
    program.wait(TIMEOUT_S)


def test_a_changed_password_is_used(tmp_path: Path) -> None:
    file = tmp_path / "password"
    logins = SaslSessions(Sasl(mechanism="PLAIN", username="alice", password_file=str(file)), Loop())
    for password in ("one", "other"):
        file.write_text(password)
        mechanism, _ = get(logins, Loop())
        assert mechanism is not None
        assert mechanism.start() == f"\0alice\0{password}".encode()


# --- TLS --------------------------------------------------------------------------------------------------------------
def shake_hands(client: ssl.SSLContext, server: ssl.SSLContext, host: str = "localhost") -> TlsSession:
    """Run both sides of a handshake in memory to its end."""
    session = TlsSession(client, host, "Broker b:1")
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    other = server.wrap_bio(incoming, outgoing, server_side=True)
    session.handshake()
    for _ in range(4):
        incoming.write(session.read_outgoing())
        with suppress(ssl.SSLWantReadError):
            other.do_handshake()
        if data := outgoing.read():
            session.receive(data)
    return session


def server_of(certificate: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    return context


@pytest.mark.process
def test_a_replaced_authority_is_used(tmp_path: Path) -> None:
    old, new = Authority(tmp_path, "old"), Authority(tmp_path, "new")
    file = tmp_path / "ca.pem"
    file.write_bytes(old.certificate.read_bytes())
    contexts = TlsContexts(Tls(enable=True, ca_file=str(file)))
    server = server_of(new.issue("broker").both)
    assert contexts.current_context() is contexts.current_context()
    with pytest.raises(TlsError, match="an authority that the daemon does not trust"):
        shake_hands(contexts.current_context(), server)
    new.certificate.replace(file)
    assert shake_hands(contexts.current_context(), server).is_open


@pytest.mark.process
def test_mismatched_certificate_files_keep_the_previous_context(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    authority = Authority(tmp_path)
    first, second = authority.issue("first"), authority.issue("second")
    tls = Tls(
        enable=True,
        ca_file=str(authority.certificate),
        certificate_file=str(first.certificate),
        key_file=str(first.key),
    )
    contexts = TlsContexts(tls)
    before = contexts.current_context()
    second.certificate.replace(first.certificate)
    with caplog.at_level(logging.ERROR):
        assert contexts.current_context() is before
    assert "does not belong to the certificate" in caplog.text
    second.key.replace(first.key)
    assert contexts.current_context() is not before


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (
            {"ca_file": "/nowhere/ca.pem"},
            "kafka.tls.ca_file = /nowhere/ca.pem cannot be used: No such file or directory. Create",
        ),
        (
            {"ca_file": "/etc/hostname"},
            "kafka.tls.ca_file = /etc/hostname cannot be used: it contains no certificate in PEM",
        ),
        ({"certificate_file": "/nowhere/c.pem"}, "kafka.tls.certificate_file = /nowhere/c.pem cannot be used"),
    ],
)
def test_an_unusable_file_is_named(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        TlsContexts(Tls(enable=True, **settings)).current_context()
    assert words in str(caught.value)


@pytest.mark.process
def test_a_wrong_key_password_fails_without_a_prompt(tmp_path: Path) -> None:
    made = Authority(tmp_path).issue("ours", password="right")
    wrong = tmp_path / "password"
    wrong.write_text("not it")
    for password in (None, str(wrong)):
        tls = Tls(
            enable=True,
            certificate_file=str(made.certificate),
            key_file=str(made.key),
            key_password_file=password,
        )
        with pytest.raises(ConfigError, match=r"if it is encrypted, kafka\.tls\.key_password_file must contain"):
            TlsContexts(tls).current_context()


@pytest.mark.process
def test_an_unusable_key_password_names_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = Authority(tmp_path).issue("ours", password="right")
    wrong = tmp_path / "password"
    wrong.write_text("x" * 5000)
    monkeypatch.setenv("KEY_PASSWORD", "x" * 5000)
    tls = Tls(enable=True, certificate_file=str(made.certificate), key_file=str(made.key))
    for place, source in (
        (str(wrong), {"key_password_file": str(wrong)}),
        ("the environment variable KEY_PASSWORD", {"key_password_env": "KEY_PASSWORD"}),
    ):
        with pytest.raises(ConfigError) as caught:
            TlsContexts(replace(tls, **source)).current_context()
        assert f"{place} is too long for OpenSSL. Check that {place} contains only" in str(caught.value)


@pytest.mark.parametrize("host", ["", ".x", "a" * 300])
def test_an_invalid_host_name_is_rejected(host: str) -> None:
    with pytest.raises(TlsError, match="no certificate can contain"):
        TlsSession(ssl.create_default_context(), host, "Broker b:1")


def test_a_close_during_the_handshake_suggests_a_plain_listener() -> None:
    session = TlsSession(ssl.create_default_context(), "localhost", "Broker b:1")
    session.handshake()
    with pytest.raises(TlsError, match=r"kafka\.tls\.enable = false") as caught:
        session.receive(b"")
    assert caught.value.is_closed


def test_close_notify_in_the_handshake_is_explained_as_the_end_of_the_stream() -> None:
    session = TlsSession(ssl.create_default_context(), "localhost", "Broker b:1")
    session.handshake()
    with pytest.raises(TlsError, match="closed the connection in the middle of the TLS handshake") as caught:
        session.receive(bytes.fromhex("15030300020100"))
    assert caught.value.is_closed


def test_a_plain_text_response_is_explained() -> None:
    session = TlsSession(ssl.create_default_context(), "localhost", "Broker b:1")
    session.handshake()
    with pytest.raises(TlsError, match="does not speak TLS on this port"):
        session.receive(b"\0\0\0\x10 something in plain text")


# --- settings ---------------------------------------------------------------------------------------------------------
HEAD: Final = '[kafka]\nbootstrap_servers = ["b:1"]\n'


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('[kafka.sasl]\nmechanism = "PLAIN"\npassword_env = "P"', "kafka.sasl.username is missing"),
        (
            '[kafka.sasl]\nmechanism = "PLAIN"\nusername = "u"',
            "no credentials: give kafka.sasl.password_file or",
        ),
        (
            '[kafka.sasl]\nmechanism = "PLAIN"\nusername = "u"\npassword_env = "P"\npassword_file = "/p"',
            "Only one of kafka.sasl.password_file or kafka.sasl.password_env",
        ),
        ('[kafka.sasl]\nmechanism = "OAUTHBEARER"\nusername = "u"\ntoken_file = "/t"', '"OAUTHBEARER" does not use it'),
        ('[kafka.sasl]\nmechanism = "OAUTHBEARER"\ntoken_command = []', "the absolute path of a program"),
        ('[kafka.sasl]\nmechanism = "OAUTHBEARER"\ntoken_command = ["x"]', "is not an absolute path"),
        (
            '[kafka.sasl]\nmechanism = "GSSAPI"\nkerberos_principal = "p"',
            "kafka.sasl.kerberos_keytab_file is missing: GSSAPI needs it",
        ),
        (
            '[kafka.sasl]\nmechanism = "GSSAPI"\nkerberos_keytab_file = "/k"',
            "kafka.sasl.kerberos_principal is missing: GSSAPI needs it",
        ),
        (
            '[kafka.sasl]\nmechanism = "GSSAPI"\nkerberos_principal = "p"\nkerberos_keytab_file = "/k"\nusername = "u"',
            'kafka.sasl.username = "u" is not allowed: "GSSAPI" does not use it; remove it',
        ),
        (
            '[kafka.sasl]\nmechanism = "PLAIN"\nusername = "u"\npassword_env = "P"\nextensions = { a = "b" }',
            '"PLAIN" does not use it; remove it',
        ),
        (
            '[kafka.sasl]\nmechanism = "OAUTHBEARER"\ntoken_file = "/t"\nextensions = { auth = "b" }',
            "kafka.sasl.extensions.auth is not the name of an extension: give letters only, and not auth",
        ),
        ('[kafka.tls]\nkey_file = "/k"', "give kafka.tls.certificate_file as well"),
        (
            '[kafka.tls]\ncertificate_file = "/c"\nkey_password_file = "/k"\nkey_password_env = "K"',
            "key_password_file is also given",
        ),
    ],
)
def test_conflicting_security_settings_are_rejected(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "bruce.toml"
    file.write_text(f"{HEAD}{text}\n")
    with pytest.raises(ConfigError) as caught:
        load_config(file)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("kafka", "words"),
    [
        ({"sasl": Sasl(mechanism="PLAIN")}, "can read the password"),
        ({"sasl": Sasl(mechanism="OAUTHBEARER")}, "can read the token"),
        ({"tls": Tls(enable=True, verify_host_name=False)}, "can pose as a broker"),
        ({"tls": Tls(ca_file="/ca")}, "are not encrypted"),
    ],
)
def test_risky_security_settings_cause_a_remark(kafka: dict[str, Any], words: str) -> None:
    (remark,) = risk_warnings(Config(kafka=Kafka(("b:1",), **kafka)))
    assert words in remark
