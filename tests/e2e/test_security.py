"""The whole daemon against a real broker that authenticates it: failures are reported, messages kept, and remedies
work.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final

import psutil
import pytest
from confluent_kafka.admin._acl import AclOperation, AclPermissionType
from confluent_kafka.admin._resource import ResourceType

from bruce_mp.client import DatagramClient
from bruce_mp.telemetry.counters import Counter
from support.certificates import Authority
from support.config_checks import Outcome, Site
from support.daemon import Daemon
from support.kafka_secure import PASSWORDS, SESSION_MS, SecureKafka
from support.read_back import read_back_kafka
from support.signed_tokens import TokenIssuer, unsigned_token
from support.token_endpoint import Answer, serve_tokens
from support.traffic import Load, assert_all_there, run_senders

if TYPE_CHECKING:
    from pathlib import Path

    from support.kafka_secure import Acl


pytestmark = [pytest.mark.kafka, pytest.mark.process]

TIMEOUT_S: Final = 60.0


@pytest.fixture
def kafka(secure_kafka: SecureKafka) -> SecureKafka:
    return secure_kafka


def problems(daemon: Daemon) -> str:
    return "\n".join(daemon.health()["problems"])


def over_tls(kafka: SecureKafka) -> dict[str, object]:
    return {"kafka.tls.enable": "true", "kafka.tls.ca_file": kafka.authority.certificate}


def a_load(kafka: SecureKafka, name: str, messages: int = 300) -> Load:
    kafka.create_topic(name, 2)
    return Load((name,), senders=1, messages=messages)


def assert_delivered(load: Load, daemon: Daemon, kafka: SecureKafka) -> None:
    assert daemon.wait_settled(load.total, TIMEOUT_S).delivered == load.total
    assert_all_there(load, read_back_kafka(kafka, load.topics))


def denials(*, may_describe: bool) -> list[tuple[AclPermissionType, Acl]]:
    """Return rules that deny writing; without one that allows DESCRIBE, brokers hide the topics too."""
    rules: list[tuple[AclPermissionType, Acl]] = [
        (AclPermissionType.DENY, (ResourceType.TOPIC, "*", AclOperation.WRITE)),
        (AclPermissionType.DENY, (ResourceType.BROKER, "kafka-cluster", AclOperation.IDEMPOTENT_WRITE)),
    ]
    if may_describe:
        rules.append((AclPermissionType.ALLOW, (ResourceType.TOPIC, "*", AclOperation.DESCRIBE)))
    return rules


def everything_said(daemon: Daemon) -> str:
    """Return the log, the pages and the command lines."""
    pages = [daemon.get_text(f"/{name}/json") for name in ("brokers", "server_info", "processes", "certificates")]
    words = [" ".join(psutil.Process(pid).cmdline()) for pid in (daemon.pid, *daemon.pids().values())]
    return "\n".join([daemon.log(), daemon.get_text("/"), *pages, *words])


def test_a_wrong_password_is_reported_and_corrected_without_a_restart(tmp_path: Path, kafka: SecureKafka) -> None:
    file = tmp_path / "password"
    file.write_text("wrong-but-hidden\n")
    file.chmod(0o644)
    settings = {
        **over_tls(kafka),
        "kafka.sasl.mechanism": "SCRAM-SHA-512",
        "kafka.sasl.username": "alice",
        "kafka.sasl.password_file": file,
    }
    load = a_load(kafka, "mended")
    with Daemon(tmp_path, kafka.server("SASL_SSL"), settings) as daemon:
        run_senders(load, daemon.socket_path)
        daemon.wait_for(lambda: "No broker can be used" in problems(daemon), "a red page", TIMEOUT_S)
        assert 'refuses the login of user "alice" by SCRAM-SHA-512: SASL_AUTHENTICATION_FAILED (58)' in problems(daemon)
        assert "for a broker" in problems(daemon)
        assert "ERR: No metadata: Broker " in daemon.log()
        assert f"{file} can be read by every user of this host (mode 0644): chmod o-rw" in daemon.log()
        assert "wrong-but-hidden" not in everything_said(daemon)
        file.write_text(PASSWORDS["alice"])
        assert_delivered(load, daemon, kafka)
        daemon.wait_for(lambda: daemon.health()["ready"], "health again", TIMEOUT_S)
        assert PASSWORDS["alice"] not in everything_said(daemon)
        assert daemon.books().possible_duplicates == 0


def test_an_expired_client_certificate_is_replaced_without_a_restart(tmp_path: Path, kafka: SecureKafka) -> None:
    file = tmp_path / "client.pem"
    shutil.copy(kafka.authority.issue("stale", days=-1).both, file)
    settings = {**over_tls(kafka), "kafka.tls.certificate_file": file}
    load = a_load(kafka, "renewed")
    with Daemon(tmp_path, kafka.server("MTLS"), settings) as daemon:
        run_senders(load, daemon.socket_path)
        daemon.wait_for(lambda: "No broker can be used" in problems(daemon), "a red page", TIMEOUT_S)
        assert "refuses the daemon's certificate" in problems(daemon)
        assert f"The certificate of {file} (our own) has expired: new connections with it fail." in problems(daemon)
        fresh = tmp_path / "fresh.pem"
        shutil.copy(kafka.authority.issue("fresh").both, fresh)
        fresh.replace(file)
        assert_delivered(load, daemon, kafka)
        daemon.wait_for(lambda: daemon.health()["ready"], "health again", TIMEOUT_S)
        shown = {line["whose"]: line for line in daemon.get("/certificates/json")["certificates"]}
        daemon.wait_for(
            lambda: any("broker" in line["whose"] for line in daemon.get("/certificates/json")["certificates"]),
            "the broker's certificate", TIMEOUT_S,
        )  # fmt: skip
        assert shown["our own"]["expires"] > time.time()


@pytest.mark.parametrize(
    ("name", "may_describe", "words"),
    [
        ("refused", True, "refuse topic refused: TOPIC_AUTHORIZATION_FAILED (29): the daemon's user may not write"),
        ("hidden", False, "hide topic hidden from the daemon's user, TOPIC_AUTHORIZATION_FAILED (29)"),
    ],
)
def test_messages_without_permission_wait_for_it(
    tmp_path: Path, kafka: SecureKafka, name: str, words: str, *, may_describe: bool
) -> None:
    """The topic and producer ids have no ACL."""
    file = tmp_path / "password"
    file.write_text(PASSWORDS["bob"])
    settings = {"kafka.sasl.mechanism": "PLAIN", "kafka.sasl.username": "bob", "kafka.sasl.password_file": file}
    load = a_load(kafka, name)
    with ExitStack() as cleanup:
        with_acls = cleanup.enter_context(kafka.with_acls("bob", denials(may_describe=may_describe)))
        daemon = cleanup.enter_context(Daemon(tmp_path, kafka.server("SASL_PLAIN"), settings))
        run_senders(load, daemon.socket_path)
        for text in (words, "refuse the daemon a producer id, CLUSTER_AUTHORIZATION_FAILED (31)"):
            daemon.wait_for(lambda text=text: text in problems(daemon), "a red page", TIMEOUT_S)  # type: ignore[misc]
        assert "Allow the daemon's user IDEMPOTENT_WRITE on the cluster" in daemon.log()
        assert "(ACL WRITE)" in daemon.log()
        books = daemon.books_while_stopped()
        assert (books.received, books.delivered, books.discarded) == (load.total, 0, {})
        with_acls.close()
        assert_delivered(load, daemon, kafka)
        daemon.refresh_metadata()
        daemon.wait_for(lambda: daemon.health()["ready"], "health again", TIMEOUT_S)


def test_a_login_that_ends_is_renewed_on_the_same_connection(tmp_path: Path, kafka: SecureKafka) -> None:
    """One daemon has a password and one a token, at the same time, because only time passes."""
    password, token = tmp_path / "password", tmp_path / "token"
    password.write_text(PASSWORDS["alice"])
    token.write_text(unsigned_token("carol"))
    logins: dict[str, dict[str, object]] = {
        "SCRAM-SHA-256": {"kafka.sasl.username": "alice", "kafka.sasl.password_file": password},
        "OAUTHBEARER": {"kafka.sasl.token_command": json.dumps(["/bin/cat", str(token)])},
    }
    with ExitStack() as stack:
        daemons: dict[str, Daemon] = {}
        clients: dict[str, DatagramClient] = {}
        for mechanism, login in logins.items():
            topic, directory = f"renewed-{mechanism.lower()}", tmp_path / mechanism[:5]
            kafka.create_topic(topic)
            directory.mkdir()
            settings = {"kafka.sasl.mechanism": mechanism, **login}
            daemons[topic] = stack.enter_context(Daemon(directory, kafka.server("SHORT"), settings))
            clients[topic] = stack.enter_context(DatagramClient(str(daemons[topic].socket_path), timeout=TIMEOUT_S))
        sent: list[bytes] = []
        until = time.monotonic() + 2.5 * SESSION_MS / 1000
        while time.monotonic() < until:
            sent.append(b"%d" % len(sent))
            for topic, client in clients.items():
                client.send(topic, sent[-1])
            time.sleep(0.05)  # lets time pass; there is no event to await
        for topic, daemon in daemons.items():
            daemon.wait_settled(len(sent), TIMEOUT_S)
            assert daemon.counters()[Counter.ConnectorStartConnect.name] == 1, topic
    for topic in daemons:
        (records,) = kafka.read_all(topic, len(sent)).values()
        assert [record.value for record in records] == sent


def bruce_token(*words: str) -> str:
    """Return the setting of `kafka.sasl.token_command` that runs `bruce token`."""
    return json.dumps([sys.executable, "-m", "bruce_mp", "token", *words])


def test_client_credentials_log_in_with_a_token_that_the_broker_verifies(tmp_path: Path, kafka: SecureKafka) -> None:
    """The broker checks the token's signature, issuer and audience; first the endpoint refuses the client."""
    secret_file = tmp_path / "client-secret"
    secret_file.write_text("wrong-but-hidden")
    load = a_load(kafka, "client-credentials")
    with serve_tokens(kafka.authority.issue("endpoint")) as endpoint:
        words = ("--token-url", endpoint.token_url, "--client-id", "bruce", "--client-secret-file", str(secret_file))
        settings = {
            **over_tls(kafka),
            "kafka.sasl.mechanism": "OAUTHBEARER",
            "kafka.sasl.token_command": bruce_token("oidc", *words, "--ca-file", str(kafka.authority.certificate)),
        }
        endpoint.answer(Answer({"error": "invalid_client"}, 401))
        with Daemon(tmp_path, kafka.server("JWKS"), settings) as daemon:
            run_senders(load, daemon.socket_path)
            refusal = "reports invalid_client: The token endpoint"
            daemon.wait_for(lambda: refusal in problems(daemon), "a red page", TIMEOUT_S)
            assert "(invalid_client). Check --client-id and the client's secret." in daemon.log()
            strangers_token = TokenIssuer(tmp_path, "stranger").token("bruce")
            endpoint.answer(Answer({"access_token": strangers_token, "expires_in": 3600}))
            daemon.wait_for(lambda: "refuses the login of the holder" in problems(daemon), "a refusal", TIMEOUT_S)
            assert strangers_token not in everything_said(daemon)
            token = kafka.issuer.token("bruce")
            endpoint.answer(Answer({"access_token": token, "token_type": "Bearer", "expires_in": 3600}))
            assert_delivered(load, daemon, kafka)
            assert daemon.books().possible_duplicates == 0
            said = everything_said(daemon)
            assert "wrong-but-hidden" not in said
            assert token not in said


def test_brokers_that_refuse_the_login_are_retried_with_a_backoff(tmp_path: Path, kafka: SecureKafka) -> None:
    file = tmp_path / "password"
    file.write_text("wrong")
    settings = {"kafka.sasl.mechanism": "PLAIN", "kafka.sasl.username": "alice", "kafka.sasl.password_file": file}
    with Daemon(tmp_path, kafka.server("SASL_PLAIN"), settings) as daemon:
        daemon.wait_for(lambda: daemon.counters()[Counter.GetMetadataFail.name] >= 3, "attempts", TIMEOUT_S)
        before, began = daemon.counters()[Counter.GetMetadataFail.name], time.monotonic()
        time.sleep(4)  # there is no event to await
        # QUICK_PAUSES: 100 ms, doubled up to four times.
        assert daemon.counters()[Counter.GetMetadataFail.name] - before <= 2 + (time.monotonic() - began) / 0.4
        assert daemon.log().count("refuses the login of") <= 2


def test_a_reload_switches_credentials_and_authorities(tmp_path: Path, kafka: SecureKafka) -> None:
    """The first reload names a wrong authority, the second the right one and a wrong password."""
    wrong, right = tmp_path / "wrong", tmp_path / "right"
    wrong.write_text("wrong-but-hidden")
    right.write_text(PASSWORDS["alice"])
    start = {
        "kafka.tls.enable": True,
        "kafka.tls.ca_file": str(Authority(tmp_path, "strangers").certificate),
        "kafka.sasl.mechanism": "SCRAM-SHA-512",
        "kafka.sasl.username": "alice",
        "kafka.sasl.password_file": str(wrong),
    }
    load, more = a_load(kafka, "reloaded"), a_load(kafka, "reloaded-too")
    daemon = Daemon(tmp_path, kafka.server("SASL_SSL"))
    daemon.configure(start)
    with daemon:
        run_senders(load, daemon.socket_path)
        daemon.wait_for(
            lambda: "from an authority that the daemon does not trust" in problems(daemon), "a red page", TIMEOUT_S
        )
        trusting = start | {"kafka.tls.ca_file": str(kafka.authority.certificate)}
        assert "kafka.tls.ca_file" in daemon.reload(trusting)
        daemon.wait_for(lambda: 'refuses the login of user "alice"' in problems(daemon), "another", TIMEOUT_S)
        assert "kafka.sasl.password_file" in daemon.reload(trusting | {"kafka.sasl.password_file": str(right)})
        assert_delivered(load, daemon, kafka)
        other = trusting | {"kafka.sasl.username": "bob", "kafka.sasl.password_file": str(tmp_path / "bob")}
        (tmp_path / "bob").write_text(PASSWORDS["bob"])
        connected = daemon.counters()[Counter.ConnectorConnectSuccess.name]
        daemon.reload(other)
        run_senders(more, daemon.socket_path)
        assert daemon.wait_settled(load.total + more.total, TIMEOUT_S).delivered == load.total + more.total
        assert daemon.counters()[Counter.ConnectorConnectSuccess.name] > connected  # accepted connections log in again
        assert daemon.books().possible_duplicates == 0
        assert "wrong-but-hidden" not in everything_said(daemon)


# --- bruce check-config --connect ------------------------------------------------------------------------------------


@pytest.fixture
def site(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Site:
    (tmp_path / "password").write_text(PASSWORDS["bob"])
    return Site(tmp_path, capsys)


def sasl_of(tmp_path: Path, mechanism: str = "SCRAM-SHA-512") -> str:
    file = tmp_path / "password"
    return f'[kafka.sasl]\nmechanism = "{mechanism}"\nusername = "bob"\npassword_file = "{file}"\n'


def tls_of(kafka: SecureKafka) -> str:
    return f'[kafka.tls]\nenable = true\nca_file = "{kafka.authority.certificate}"\n'


def rule_of(topic: str) -> str:
    return f'[partitioner.topics]\n{topic} = "murmur2"\n'


def test_the_check_of_a_secure_cluster_is_ok(site: Site, tmp_path: Path, kafka: SecureKafka) -> None:
    kafka.create_topic("checked", 2)
    deadline = time.monotonic() + TIMEOUT_S
    settings = sasl_of(tmp_path) + rule_of("checked")
    while "Run this check again" in (done := site.check(kafka.server("SASL_PLAIN"), settings)).line("broker "):
        assert time.monotonic() < deadline  # a new cluster has no producer ids for a moment
    assert done.line("broker ").endswith("connected, login by SCRAM-SHA-512, metadata")
    assert (done.line("topic checked"), done.status) == ("ok       topic checked: 2 partitions, may be written", 0)
    done = site.check(kafka.server("SASL_SSL"), settings + tls_of(kafka))
    assert "its certificate expires at 20" in done.line("broker ")  # it is valid for two days
    assert done.line("topic checked") == "ok       topic checked: 2 partitions, may be written"
    assert done.status == 0


@pytest.mark.parametrize("may_describe", [True, False])
def test_the_check_names_a_missing_permission(
    site: Site, tmp_path: Path, kafka: SecureKafka, *, may_describe: bool
) -> None:
    topic = f"checked-{may_describe}"
    kafka.create_topic(topic, 2)
    with kafka.with_acls("bob", denials(may_describe=may_describe)):
        done = site.check(kafka.server("SASL_PLAIN"), sasl_of(tmp_path) + rule_of(topic))
    assert "refuses a producer id (CLUSTER_AUTHORIZATION_FAILED)" in done.line("broker ")
    text = "may not write to it. Allow the user WRITE" if may_describe else "may not see it. Allow the user WRITE"
    assert text in done.line(f"topic {topic}")
    assert (done.line(f"topic {topic}")[:6], done.status) == ("failed", 1)


def test_the_check_names_each_fault_of_tls_and_login(site: Site, tmp_path: Path, kafka: SecureKafka) -> None:
    other = Authority(tmp_path, "other")
    login, tls, wrong = sasl_of(tmp_path), tls_of(kafka), sasl_of(tmp_path).replace("bob", "mallory")
    faults = {
        ("SASL_PLAIN", wrong): "refused the login. It refuses the login of",
        ("SASL_PLAIN", login.replace("SCRAM-SHA-512", "PLAIN").replace("bob", "alice")): "SASL_AUTHENTICATION_FAILED",
        ("SASL_PLAIN", ""): "expect a login on this port",
        ("SASL_PLAIN", tls + login): "speaks plain text on this port",
        ("SSL", ""): "expects TLS on this port",
        ("SSL", tls + login): "It expects no login on this port",
        ("SSL", tls.replace(str(kafka.authority.certificate), str(other.certificate))): "does not trust",
        ("EXPIRED", tls): "has an expired certificate",
        ("ELSEWHERE", tls): "has a certificate for other hosts",
        ("MTLS", tls): "kafka.tls.certificate_file",
    }
    for (listener, text), words in faults.items():
        done = site.check(kafka.server(listener), text)
        assert words in done.line("broker ")
        assert "firewalls" not in done.line("broker ")  # the broker can be reached
        assert done.status == 1


def test_the_check_names_each_fault_of_a_token(site: Site, kafka: SecureKafka, tmp_path: Path) -> None:
    secret_file = tmp_path / "client-secret"
    secret_file.write_text("s3cret-in-a-file")
    with serve_tokens(kafka.authority.issue("idp")) as endpoint:
        words = ("--token-url", endpoint.token_url, "--client-id", "bruce", "--client-secret-file", str(secret_file))
        trusting = (*words, "--ca-file", str(kafka.authority.certificate))

        def check(*command: str) -> Outcome:
            login = f'[kafka.sasl]\nmechanism = "OAUTHBEARER"\ntoken_command = {bruce_token(*command)}\n'
            return site.check(kafka.server("JWKS"), tls_of(kafka) + login)

        endpoint.answer(Answer({"access_token": kafka.issuer.token("bruce"), "expires_in": 60}))
        done = check("oidc", *trusting)
        assert done.line("broker ").startswith("warning ")  # its certificate expires soon, or the cluster starts
        assert done.status == 0
        faults = {
            ("oidc", *words): "Put its authority into --ca-file",
            ("oidc", *words[:-1], "/nowhere"): "The client's secret cannot be read from /nowhere",
            ("aws-msk-iam",): "The region of the MSK cluster is not given. Add --region",
            (
                "aws-msk-iam",
                "--region",
                "eu-west-1",
                "--credentials-file",
                "/nowhere",
            ): "AWS credentials cannot be read",
        }
        for command, text in faults.items():
            done = check(*command)
            assert text in done.line("broker ")
            assert "The daemon cannot log in to broker" in done.line("broker ")
            assert done.status == 1
        refused = {
            "Check --scope": Answer({"error": "invalid_scope"}, 400),
            "refuses the login of the holder of the token": Answer(
                {"access_token": kafka.issuer.token("bruce", audience="other")}
            ),
        }
        for text, answer in refused.items():
            endpoint.answer(answer)
            done = check("oidc", *trusting)
            assert text in done.line("broker ")
            assert "s3cret-in-a-file" not in str(done.lines)
            assert done.status == 1
