"""The sections of the connections' security; `config/sections.py` has the conventions.

The configuration names the file or environment variable of each secret. It never contains the secret itself, because
processes receive, show and log the configuration.
"""

# No `from __future__ import annotations` here: msgspec evaluates the annotations at run time.

from typing import Annotated, Final, Literal

from msgspec import field

from bruce_mp.config import fields
from bruce_mp.config.fields import LIVE
from bruce_mp.config.section import Section

__all__ = ["ENV_VARIABLE", "Sasl", "Tls"]

ENV_VARIABLE: Final = "^[A-Za-z_][A-Za-z0-9_]*$"
_EXTENSION_MEANING: Final = "For OAUTHBEARER: a SASL extension, such as `logicalCluster`."


class Tls(Section, frozen=True):
    """Encryption of the connections to brokers."""

    enable: Annotated[bool, fields.switch("Use TLS."), LIVE] = False
    ca_file: (
        Annotated[
            str,
            fields.path("Certificates (PEM) of the brokers' authorities. Absent: the system's."),
            LIVE,
        ]
        | None
    ) = None
    certificate_file: (
        Annotated[
            str,
            fields.path("The daemon's certificate (PEM, with its chain). Absent: none."),
            LIVE,
        ]
        | None
    ) = None
    key_file: Annotated[str, fields.path("Its private key (PEM). Absent: in `certificate_file`."), LIVE] | None = None
    key_password_file: (
        Annotated[str, fields.path("File with the key's password. Absent: none, or `key_password_env`."), LIVE] | None
    ) = None
    key_password_env: (
        Annotated[
            str,
            fields.pattern("Environment variable with the key's password.", ENV_VARIABLE, "KAFKA_KEY_PASSWORD"),
            LIVE,
        ]
        | None
    ) = None
    verify_host_name: Annotated[
        bool,
        fields.switch("A broker's certificate must name its host."),
        LIVE,
    ] = True
    min_version: Annotated[Literal["1.2", "1.3"], fields.choice("Oldest accepted version of TLS."), LIVE] = "1.2"


class Sasl(Section, frozen=True):
    """The login at the brokers."""

    mechanism: (
        Annotated[
            Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "GSSAPI"],
            fields.choice("Absent: no login."),
            LIVE,
        ]
        | None
    ) = None
    username: Annotated[str, fields.pattern("The user, for PLAIN and SCRAM.", r"^[^\x00]+$", "bruce"), LIVE] | None = (
        None
    )
    password_file: Annotated[str, fields.path("File with the password."), LIVE] | None = None
    password_env: (
        Annotated[str, fields.pattern("Environment variable with the password.", ENV_VARIABLE, "KAFKA_PASSWORD"), LIVE]
        | None
    ) = None
    token_file: (
        Annotated[
            str,
            fields.path("For OAUTHBEARER: file with the token, renewed by another program."),
            LIVE,
        ]
        | None
    ) = None
    token_command: (
        Annotated[
            tuple[str, ...],
            fields.command("For OAUTHBEARER: a program that writes a token; see `docs/security.md`."),
            LIVE,
        ]
        | None
    ) = None
    extensions: Annotated[
        dict[str, Annotated[str, fields.pattern(_EXTENSION_MEANING, r"^[\x20-\x7e]+$", "lkc-1"), LIVE]],
        fields.text(_EXTENSION_MEANING),
        LIVE,
    ] = field(default_factory=dict)
    kerberos_principal: (
        Annotated[
            str,
            fields.pattern("For GSSAPI: the daemon's principal.", r"^[^\x00-\x20]+$", "bruce@EXAMPLE.COM"),
            LIVE,
        ]
        | None
    ) = None
    kerberos_keytab_file: Annotated[str, fields.path("For GSSAPI: the daemon's keytab."), LIVE] | None = None
    kerberos_service_name: Annotated[
        str,
        fields.pattern("For GSSAPI: the first part of the brokers' principals.", "^[A-Za-z0-9_.-]+$", "kafka"),
        LIVE,
    ] = "kafka"
