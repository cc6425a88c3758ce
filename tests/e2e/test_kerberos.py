"""The whole daemon with Kerberos: a real KDC, a real broker, and a keytab whose tickets expire."""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final

import msgspec
import pytest

from bruce_mp.client import DatagramClient
from bruce_mp.config.security import Sasl
from bruce_mp.network.kerberos import Kerberos
from bruce_mp.telemetry.counters import Counter
from support.config_checks import Site
from support.daemon import Daemon
from support.kerberos import HOST, REALM, SESSION_S, KerberosKafka, Realm, skip_without_kerberos

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.kafka, pytest.mark.process]

TIMEOUT_S: Final = 60.0
TICKET_LIFE_S: Final = 4


@pytest.fixture(scope="module")
def realm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Realm]:
    skip_without_kerberos()
    with Realm(tmp_path_factory.mktemp("realm")) as started:
        yield started


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory, realm: Realm) -> Iterator[KerberosKafka]:
    with KerberosKafka(tmp_path_factory.mktemp("kafka"), realm) as cluster:
        yield cluster


@pytest.fixture(autouse=True)
def configured_realm(realm: Realm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KRB5_CONFIG", str(realm.config))


def test_a_keytab_logs_in_and_its_tickets_are_renewed(tmp_path: Path, kafka: KerberosKafka, realm: Realm) -> None:
    """The keytab is outdated at first; then tickets and logins expire on one connection, and no message is lost."""
    realm.add("bruce", ticket_life_s=TICKET_LIFE_S)
    outdated = tmp_path / "bruce.keytab"
    realm.export("bruce", "outdated").replace(outdated)
    valid = realm.export("bruce", "valid")
    settings = {
        "kafka.sasl.mechanism": "GSSAPI",
        "kafka.sasl.kerberos_principal": f"bruce@{REALM}",
        "kafka.sasl.kerberos_keytab_file": outdated,
    }
    kafka.create_topic("tickets")
    with Daemon(tmp_path, kafka.server, settings) as daemon, DatagramClient(str(daemon.socket_path)) as client:
        client.send("tickets", b"0")
        daemon.wait_for(
            lambda: "an old key of the principal: export it" in "".join(daemon.health()["problems"]), "why", TIMEOUT_S
        )
        valid.replace(outdated)
        daemon.wait_settled(1, TIMEOUT_S)
        connected, issued, sent = daemon.counters()[Counter.ConnectorConnectSuccess.name], realm.issued("bruce"), 1
        until = time.monotonic() + 2.5 * TICKET_LIFE_S
        while time.monotonic() < until:
            client.send("tickets", b"%d" % sent)
            sent += 1
            time.sleep(0.05)  # lets time pass; there is no event to await
        assert daemon.wait_settled(sent, TIMEOUT_S).delivered == sent
        assert daemon.counters()[Counter.ConnectorConnectSuccess.name] == connected
        assert realm.issued("bruce") >= issued + 2
        assert 2.5 * TICKET_LIFE_S > 2 * SESSION_S
        assert daemon.books().possible_duplicates == 0
    (records,) = kafka.read_all("tickets", sent).values()
    assert [record.value for record in records] == [b"%d" % number for number in range(sent)]


def login(keytab: Path | str, principal: str, service: str = "kafka") -> str:
    return (
        f'[kafka.sasl]\nmechanism = "GSSAPI"\nkerberos_principal = "{principal}"\n'
        f'kerberos_keytab_file = "{keytab}"\nkerberos_service_name = "{service}"\n'
    )


def test_the_check_names_each_fault_of_a_ticket(
    tmp_path: Path, kafka: KerberosKafka, realm: Realm, capsys: pytest.CaptureFixture[str]
) -> None:
    site = Site(tmp_path, capsys)
    for name in ("alice", "bob", "carol"):
        realm.add(name)
    outdated = realm.export("carol", "outdated-carol")
    realm.export("carol", "new-carol")
    alice, bob = realm.export("alice", "alice.keytab"), realm.export("bob", "bob.keytab")
    done = site.check(kafka.server, login(alice, f"alice@{REALM}"))
    assert done.line("broker ").endswith("connected, login by GSSAPI, metadata")
    assert done.status == 0
    faults = {
        login(
            "/nowhere/keytab", f"alice@{REALM}", "other"
        ): "The keytab /nowhere/keytab cannot be read: No such file or directory. Export the keytab to this path",
        login(bob, f"carol@{REALM}"): f"The keytab {bob} has no key of principal carol@{REALM}. Export it again.",
        login(outdated, f"carol@{REALM}"): "has an old key of the principal: export the keytab again",
        login(alice, f"alice@{REALM}", "other"): (
            f"no ticket of principal alice@{REALM} for other/{HOST}. Kerberos says: Server other/{HOST}@{REALM} not"
        ),
    }
    for text, words in faults.items():
        done = site.check(kafka.server, text)
        assert words in done.line("broker ")
        assert "The daemon cannot log in to broker" in done.line("broker ")
        assert done.status == 1


def test_tickets_outlive_the_kdc_until_a_broker_refuses_them(realm: Realm) -> None:
    realm.add("dave")
    sasl = Sasl(
        mechanism="GSSAPI",
        kerberos_principal=f"dave@{REALM}",
        kerberos_keytab_file=str(realm.export("dave", "dave.keytab")),
    )
    realm.add(f"spare/{HOST}")
    kerberos = Kerberos(msgspec.structs.replace(sasl, kerberos_service_name="spare"))
    assert kerberos.try_start(HOST)[1] == ""
    issued = realm.issued("dave")
    with ExitStack() as stack:
        realm.stop()
        stack.callback(realm.start)
        assert kerberos.try_start(HOST)[1] == ""
        kerberos.on_refused()
        mechanism, reason = kerberos.try_start(HOST)
        assert mechanism is None
        assert "Check the KDC, and the firewalls between this host and it." in reason
    assert kerberos.try_start(HOST)[1] == ""
    assert realm.issued("dave") == issued + 1
