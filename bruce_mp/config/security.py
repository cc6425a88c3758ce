"""The sections about the security of connections to brokers; `config/sections.py` explains the conventions.

The configuration names the file or environment variable that has a secret. It never contains the secret itself, because
processes pass on, show and log the configuration.
"""

# No `from __future__ import annotations` here: msgspec evaluates the annotations at run time.

from typing import Annotated, Final, Literal

from msgspec import field

from bruce_mp.config import fields
from bruce_mp.config.fields import LIVE, Section

__all__ = ["ENV_VARIABLE", "Sasl", "Tls"]

ENV_VARIABLE: Final = "[A-Za-z_][A-Za-z0-9_]*"
"""Pattern for the name of an environment variable."""


class Tls(Section, frozen=True):
    """Encryption of the connections to brokers."""

    enable: Annotated[bool, fields.plain("Use TLS."), LIVE] = False
    ca_file: Annotated[
        str | None,
        fields.path("Authorities (PEM) of the brokers' certificates. Absent: the system's."),
        LIVE,
    ] = None
    certificate_file: Annotated[
        str | None, fields.path("The daemon's certificate (PEM, with its chain). Absent: none."), LIVE
    ] = None
    key_file: Annotated[str | None, fields.path("Its private key (PEM). Absent: in `certificate_file`."), LIVE] = None
    key_password_file: Annotated[
        str | None,
        fields.path("File with the password of an encrypted key."),
        LIVE,
    ] = None
    key_password_env: Annotated[
        str | None,
        fields.pattern("Environment variable with that password.", ENV_VARIABLE, "KAFKA_KEY_PASSWORD"),
        LIVE,
    ] = None
    verify_host_name: Annotated[bool, fields.plain("Require that brokers' certificates name their hosts."), LIVE] = True
    min_version: Annotated[Literal["1.2", "1.3"], fields.plain("Oldest accepted version of TLS."), LIVE] = "1.2"


class Sasl(Section, frozen=True):
    """The login at the brokers."""

    mechanism: Annotated[
        Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "GSSAPI"] | None,
        fields.plain("Absent: no login."),
        LIVE,
    ] = None
    username: Annotated[str | None, fields.pattern("The user, for PLAIN and SCRAM.", r"[^\x00]+", "bruce"), LIVE] = None
    password_file: Annotated[str | None, fields.path("File with the password."), LIVE] = None
    password_env: Annotated[
        str | None, fields.pattern("Environment variable with the password.", ENV_VARIABLE, "KAFKA_PASSWORD"), LIVE
    ] = None
    token_file: Annotated[
        str | None, fields.path("For OAUTHBEARER: file with the token, renewed by another program."), LIVE
    ] = None
    token_command: Annotated[
        tuple[str, ...] | None,
        fields.command("For OAUTHBEARER: a program that writes a token; see `docs/security.md`."),
        LIVE,
    ] = None
    extensions: Annotated[
        dict[str, str],
        fields.pattern("For OAUTHBEARER: a SASL extension, such as `logicalCluster`.", r"[\x20-\x7e]+", "lkc-1"),
        LIVE,
    ] = field(default_factory=dict)
    kerberos_principal: Annotated[
        str | None, fields.pattern("For GSSAPI: the daemon's principal.", r"[^\x00-\x20]+", "bruce@EXAMPLE.COM"), LIVE
    ] = None
    kerberos_keytab_file: Annotated[str | None, fields.path("For GSSAPI: the daemon's keytab."), LIVE] = None
    kerberos_service_name: Annotated[
        str,
        fields.pattern("For GSSAPI: the first part of the brokers' principals.", "[A-Za-z0-9_.-]+", "kafka"),
        LIVE,
    ] = "kafka"
