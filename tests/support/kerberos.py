"""A Kerberos realm on loopback, with a real KDC, and a Kafka broker that takes its tickets."""

from __future__ import annotations

import importlib.util
import os
import shutil
import socket
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Self

import pytest

from support import processes
from support.kafka_cluster import KafkaCluster
from support.kafka_dist import NEWEST
from support.ports import ReservedPort

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path

    from support.kafka_config import NodePlan

__all__ = ["HOST", "REALM", "SESSION_S", "KerberosKafka", "Realm", "skip_without_kerberos"]

REALM: Final = "BRUCE.TEST"
HOST: Final = "localhost"
"""The broker's name in its principal."""
SESSION_S: Final = 2
"""Lifetime of a login at the broker."""
TIMEOUT_S: Final = 30.0
PATH: Final = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
_PROGRAMS: Final = ("krb5kdc", "kdb5_util", "kadmin.local")

_CLIENTS_FILE: Final = """[libdefaults]
 default_realm = {realm}
 dns_lookup_realm = false
 dns_lookup_kdc = false
 dns_canonicalize_hostname = false
 rdns = false
 udp_preference_limit = 1
[realms]
 {realm} = {{
  kdc = 127.0.0.1:{port}
 }}
"""
_KDC_FILE: Final = """[kdcdefaults]
 kdc_listen = 127.0.0.1:{port}
 kdc_tcp_listen = 127.0.0.1:{port}
[realms]
 {realm} = {{
  database_name = {directory}/principals
  key_stash_file = {directory}/stash
  acl_file = {directory}/acl
 }}
[logging]
 kdc = FILE:{directory}/kdc.log
"""


def skip_without_kerberos() -> None:
    """Skip the test, and name the packages, on a machine without them."""
    missing = [name for name in _PROGRAMS if shutil.which(name, path=PATH) is None]
    if importlib.util.find_spec("gssapi") is None:
        missing.append("Python package gssapi")
    if missing:
        remedy = "apt-get install krb5-kdc krb5-admin-server libkrb5-dev; pip install 'bruce-mp[kerberos]'"
        pytest.skip(f"NOT TESTED: Kerberos, because this machine has no {' and no '.join(missing)} ({remedy})")


class Realm:
    """A realm with its KDC, and its files in `directory`."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._port = ReservedPort()
        self._kdc: subprocess.Popen[bytes] | None = None
        self.config = directory / "krb5.conf"
        self.log = directory / "kdc.log"
        names = {"realm": REALM, "port": self._port.number, "directory": directory}
        self.config.write_text(_CLIENTS_FILE.format(**names))
        (directory / "kdc.conf").write_text(_KDC_FILE.format(**names))
        self.environment = {
            **os.environ, "PATH": PATH, "KRB5_CONFIG": str(self.config), "KRB5_KDC_PROFILE": f"{directory}/kdc.conf",
        }  # fmt: skip

    def __enter__(self) -> Self:
        self._run("kdb5_util", "create", "-s", "-r", REALM, "-P", "master")
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self._port.release()

    def start(self) -> None:
        """Start the KDC, and wait until it listens."""
        program = shutil.which("krb5kdc", path=PATH)
        assert program is not None
        self._kdc = processes.spawn([program, "-n", "-r", REALM], env=self.environment)
        processes.long_lived.add(self._kdc.pid)
        processes.wait_until(self._listens, "the KDC listens", TIMEOUT_S)  # it has no way to report its start

    def _listens(self) -> bool:
        assert self._kdc is not None
        assert self._kdc.poll() is None, self.log.read_text()
        with suppress(OSError), socket.create_connection(("127.0.0.1", self._port.number), timeout=1):
            return True
        return False

    def stop(self) -> None:
        """Kill the KDC."""
        if self._kdc is not None:
            self._kdc.kill()
            self._kdc.wait()
            self._kdc = None

    def add(self, principal: str, *, ticket_life_s: int = 3600) -> None:
        """Create a principal with a random key."""
        self._run("kadmin.local", "-r", REALM, "-q", f"addprinc -randkey -maxlife {ticket_life_s}sec {principal}")

    def export(self, principal: str, name: str) -> Path:
        """Return a new keytab; the keys of earlier keytabs become invalid."""
        keytab = self._directory / name
        keytab.unlink(missing_ok=True)
        self._run("kadmin.local", "-r", REALM, "-q", f"ktadd -k {keytab} {principal}")
        return keytab

    def issued(self, principal: str) -> int:
        """Return how many ticket-granting tickets the KDC has issued to a principal."""
        lines = self.log.read_text().splitlines()
        return sum("AS_REQ" in line and "ISSUE" in line and f"{principal}@{REALM} for krbtgt" in line for line in lines)

    def _run(self, *command: str) -> None:
        program = shutil.which(command[0], path=PATH)
        assert program is not None
        processes.run_program(program, *command[1:], time_limit_s=TIMEOUT_S, directory=None, **self.environment)


class KerberosKafka(KafkaCluster):
    """One broker with a listener for GSSAPI, where a login expires after SESSION_S."""

    def __init__(self, directory: Path, realm: Realm) -> None:
        super().__init__(NEWEST, directory=directory)
        self._realm = realm
        self._login_port = ReservedPort()
        self._ports.append(self._login_port)
        principal = f"kafka/{HOST}"
        realm.add(principal)
        self._keytab = realm.export(principal, "kafka.keytab")

    @property
    def server(self) -> str:
        """The address of the listener for GSSAPI."""
        return f"{HOST}:{self._login_port.number}"

    def _settings(self, plan: NodePlan) -> dict[str, str]:
        plain = f"PLAINTEXT://127.0.0.1:{plan.port}"
        module = "com.sun.security.auth.module.Krb5LoginModule required useKeyTab=true storeKey=true"
        return {
            "listeners": f"{plain},CONTROLLER://127.0.0.1:{plan.controller_port},TICKETS://127.0.0.1:"
            f"{self._login_port.number}",
            "advertised.listeners": f"{plain},TICKETS://{self.server}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,TICKETS:SASL_PLAINTEXT",
            "inter.broker.listener.name": "PLAINTEXT",
            "sasl.enabled.mechanisms": "GSSAPI",
            "sasl.kerberos.service.name": "kafka",
            "listener.name.tickets.gssapi.sasl.jaas.config": (
                f'{module} keyTab="{self._keytab}" principal="kafka/{HOST}@{REALM}";'
            ),
            "listener.name.tickets.gssapi.connections.max.reauth.ms": str(SESSION_S * 1000),
        }

    def _java_options(self, _plan: NodePlan) -> list[str]:
        return [f"-Djava.security.krb5.conf={self._realm.config}"]
