"""One Kafka broker with a listener for each security protocol, and a plain one for the tests' own requests.

The users are `alice`, with all rights, and `bob`, with all rights that no ACL denies; their passwords are in
PASSWORDS, for PLAIN and both kinds of SCRAM.  OAUTHBEARER takes unsigned tokens, and at the listener JWKS only those
of `issuer`.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._acl import AclBinding, AclBindingFilter, AclOperation, AclPermissionType
from confluent_kafka.admin._resource import ResourcePatternType, ResourceType
from confluent_kafka.admin._scram import ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion

from support.certificates import Authority
from support.kafka_cluster import KafkaCluster
from support.kafka_java import run_java
from support.ports import ReservedPort
from support.signed_tokens import AUDIENCE, ISSUER, TokenIssuer

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from support.kafka_config import NodePlan
    from support.kafka_java import JavaProcess

__all__ = ["OLD_PASSWORD", "PASSWORDS", "OldKafka", "SecureKafka"]

PASSWORDS: Final = {"alice": "alice's secret, with = and ,", "bob": "bob-secret"}
PROTOCOLS: Final = {
    "SSL": "SSL",
    "MTLS": "SSL",
    "EXPIRED": "SSL",
    "ELSEWHERE": "SSL",
    "SASL_SSL": "SASL_SSL",
    "SASL_PLAIN": "SASL_PLAINTEXT",
    "SHORT": "SASL_PLAINTEXT",
    "JWKS": "SASL_SSL",
}
"""Listeners and their protocols.

MTLS requires a certificate; EXPIRED and ELSEWHERE present an invalid one; a login at SHORT expires after SESSION_MS.
JWKS has OAUTHBEARER only, and verifies the signature, issuer and audience of tokens.
"""
SESSION_MS: Final = 3000
MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
MODULES: Final = "org.apache.kafka.common.security"
_OAUTH_MODULE: Final = f"{MODULES}.oauthbearer.OAuthBearerLoginModule"
_VALIDATOR: Final = f"{MODULES}.oauthbearer.OAuthBearerValidatorCallbackHandler"
_SCRAM_MODULE: Final = f"{MODULES}.scram.ScramLoginModule required;"
OLD_PASSWORD: Final = "old-secret"
"""Password of alice for SCRAM with old brokers; their command accepts no commas in it."""
TIMEOUT_S: Final = 60
Acl = tuple[ResourceType, str, AclOperation]
"""Type of resource, its name, and the operation."""


class SecureKafka(KafkaCluster):
    """Kafka 3 or later, in `directory`."""

    def __init__(self, directory: Path, version: str) -> None:
        super().__init__(version, directory=directory)
        self._secure = {name: ReservedPort() for name in PROTOCOLS}
        self._ports += self._secure.values()
        directory.mkdir(parents=True, exist_ok=True)
        self.authority = Authority(directory)
        good = self.authority.issue("broker")
        self._certificates = {
            "EXPIRED": self.authority.issue("expired", days=-1),
            "ELSEWHERE": self.authority.issue("elsewhere", hosts="DNS:elsewhere.example"),
        }
        self._certificates |= dict.fromkeys(("SSL", "MTLS", "SASL_SSL", "JWKS"), good)
        self.issuer = TokenIssuer(directory)

    def at(self, listener: str) -> tuple[str, int]:
        """Return host and port of a listener."""
        return "127.0.0.1", self._secure[listener].number

    def server(self, listener: str) -> str:
        """Return the address of a listener as `host:port`."""
        return "{}:{}".format(*self.at(listener))

    def _java_options(self, _plan: NodePlan) -> list[str]:
        return [f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={self._key_set}"]

    def _settings(self, plan: NodePlan) -> dict[str, str]:
        secure = [f"{name}://127.0.0.1:{port.number}" for name, port in self._secure.items()]
        plain = f"PLAINTEXT://127.0.0.1:{plan.port}"
        protocols = {**PROTOCOLS, "PLAINTEXT": "PLAINTEXT", "CONTROLLER": "PLAINTEXT"}
        settings = {
            "listeners": ",".join([plain, f"CONTROLLER://127.0.0.1:{plan.controller_port}", *secure]),
            "advertised.listeners": ",".join([plain, *secure]),
            "listener.security.protocol.map": ",".join(f"{name}:{kind}" for name, kind in protocols.items()),
            "inter.broker.listener.name": "PLAINTEXT",
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:ANONYMOUS;User:alice",
            "allow.everyone.if.no.acl.found": "true",
            "listener.name.mtls.ssl.client.auth": "required",
            "sasl.enabled.mechanisms": ",".join(MECHANISMS),
        }
        for name in self._certificates:
            settings |= self._tls(name)
        for name in ("SASL_SSL", "SASL_PLAIN", "SHORT"):
            settings |= _sasl(f"listener.name.{name.lower()}")
        settings |= {
            "listener.name.jwks.sasl.enabled.mechanisms": "OAUTHBEARER",
            "listener.name.jwks.oauthbearer.sasl.jaas.config": f"{_OAUTH_MODULE} required;",
            "listener.name.jwks.oauthbearer.sasl.server.callback.handler.class": _VALIDATOR,
            "listener.name.jwks.sasl.oauthbearer.jwks.endpoint.url": self._key_set,
            "listener.name.jwks.sasl.oauthbearer.expected.issuer": ISSUER,
            "listener.name.jwks.sasl.oauthbearer.expected.audience": AUDIENCE,
        }
        for mechanism in MECHANISMS:
            settings[f"listener.name.short.{mechanism.lower()}.connections.max.reauth.ms"] = str(SESSION_MS)
        return settings

    @property
    def _key_set(self) -> str:
        return self.issuer.key_set.as_uri()

    def _tls(self, listener: str) -> dict[str, str]:
        name = f"listener.name.{listener.lower()}.ssl"
        return {
            f"{name}.keystore.type": "PEM",
            f"{name}.keystore.location": str(self._certificates[listener].both),
            f"{name}.truststore.type": "PEM",
            f"{name}.truststore.location": str(self.authority.certificate),
        }

    # --- users -------------------------------------------------------------------------------------------------------

    @property
    def admin(self) -> AdminClient:
        """Return a client of the plain listener, which allows everything; keep it until its requests are answered."""
        return AdminClient({"bootstrap.servers": self.bootstrap})

    def create_users(self) -> None:
        """Create the users for SCRAM; PLAIN has them from the start."""
        for user, password in PASSWORDS.items():
            self.set_password(user, password)

    def set_password(self, user: str, password: str) -> None:
        """Set a password for both kinds of SCRAM."""
        changes = [
            UserScramCredentialUpsertion(user, ScramCredentialInfo(kind, 4096), password.encode())
            for kind in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512)
        ]
        admin = self.admin
        for change in changes:  # one change of a user in a request
            _wait_all(admin.alter_user_scram_credentials([change]))

    # --- permissions -------------------------------------------------------------------------------------------------

    def with_acls(self, user: str, rules: Iterable[tuple[AclPermissionType, Acl]]) -> ExitStack:
        """Create ACLs that allow or deny; closing the stack removes them."""
        admin, stack = self.admin, ExitStack()
        for permission, acl in rules:
            words = _acl(permission, user, acl)
            _wait_all(admin.create_acls([AclBinding(*words)]))
            stack.callback(lambda rule: _wait_all(admin.delete_acls([rule])), AclBindingFilter(*words))
        return stack


def _wait_all(futures: Any) -> None:
    for done in futures.values():
        done.result(TIMEOUT_S)


class OldKafka(KafkaCluster):
    """Kafka before 1.0, in `directory`, with one listener for logins: alice, by PLAIN and SCRAM."""

    def __init__(self, directory: Path, version: str) -> None:
        super().__init__(version, directory=directory)
        self._login_port = ReservedPort()
        self._ports.append(self._login_port)

    def at(self) -> tuple[str, int]:
        """Return host and port of the listener."""
        return "127.0.0.1", self._login_port.number

    def _create_node(self, plan: NodePlan) -> JavaProcess:
        self._create_scram_users(plan.directory)
        return super()._create_node(plan)

    def _settings(self, plan: NodePlan) -> dict[str, str]:
        listeners = f"PLAINTEXT://127.0.0.1:{plan.port},SASL_PLAINTEXT://127.0.0.1:{self._login_port.number}"
        mechanisms = {"sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512"}
        return {"listeners": listeners, "advertised.listeners": listeners, **mechanisms}

    def _java_options(self, plan: NodePlan) -> list[str]:
        jaas = plan.directory / "jaas.conf"
        modules = f"{MODULES}.plain.PlainLoginModule required {_users()};\n{_SCRAM_MODULE}"
        jaas.write_text(f"KafkaServer {{\n{modules}\n}};\n")
        return [f"-Djava.security.auth.login.config={jaas}"]

    def _create_scram_users(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        password = OLD_PASSWORD
        words = f"--zookeeper 127.0.0.1:{self._zookeeper_port} --alter --entity-type users --entity-name alice"
        config = ",".join(f"SCRAM-SHA-{bits}=[password={password}]" for bits in (256, 512))
        run_java(self.dist, directory, "kafka.admin.ConfigCommand", [*words.split(), "--add-config", config])


def _acl(permission: AclPermissionType, user: str, acl: Acl) -> Sequence[Any]:
    kind, name, operation = acl
    return (kind, name, ResourcePatternType.LITERAL, f"User:{user}", "*", operation, permission)


def _users() -> str:
    return " ".join(f'user_{user}="{password}"' for user, password in PASSWORDS.items())


def _sasl(listener: str) -> dict[str, str]:
    return {
        f"{listener}.plain.sasl.jaas.config": f"{MODULES}.plain.PlainLoginModule required {_users()};",
        f"{listener}.scram-sha-256.sasl.jaas.config": _SCRAM_MODULE,
        f"{listener}.scram-sha-512.sasl.jaas.config": _SCRAM_MODULE,
        f"{listener}.oauthbearer.sasl.jaas.config": (
            f'{_OAUTH_MODULE} required unsecuredLoginStringClaim_sub="broker";'
        ),
    }
