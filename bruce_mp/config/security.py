"""The sections about security towards Kafka: part of `sections`, which says how they are written.

No secret is in the configuration itself, which is passed around, shown and logged: it names the file or the environment
variable that has it.
"""

# No `from __future__ import annotations` here: what the annotations name is used at run time.

from typing import Annotated, Final, Literal

from bruce_mp.config import fields
from bruce_mp.config.fields import LIVE
from bruce_mp.config.section import Section

__all__ = ["VARIABLE", "Sasl", "Tls"]

VARIABLE: Final = "^[A-Za-z_][A-Za-z0-9_]*$"


class Tls(Section, frozen=True):
    """Encryption of the connections to brokers. Files that change are taken up by the next connection."""

    enable: Annotated[bool, fields.switch("Speak TLS."), LIVE] = False
    ca_file: (
        Annotated[
            str, fields.path("Certificates (PEM) of who may vouch for brokers. Absent: those of the system."), LIVE
        ]
        | None
    ) = None
    certificate_file: (
        Annotated[
            str, fields.path("Our own certificate (PEM, with its chain), if the brokers want one. Absent: none."), LIVE
        ]
        | None
    ) = None
    key_file: (
        Annotated[str, fields.path("Its key (PEM). Absent: it is in the file of the certificate."), LIVE] | None
    ) = None
    key_password_file: (
        Annotated[str, fields.path("File with the password of the key. Absent: it has none, or the next one."), LIVE]
        | None
    ) = None
    key_password_env: (
        Annotated[
            str,
            fields.pattern("Environment variable with the password of the key.", VARIABLE, "KAFKA_KEY_PASSWORD"),
            LIVE,
        ]
        | None
    ) = None
    verify_host_name: Annotated[
        bool,
        fields.switch(
            "Ask that a broker's certificate names the host that we connected to. If false, whoever has any "
            "certificate of the authority can pose as a broker."
        ),
        LIVE,
    ] = True
    min_version: Annotated[Literal["1.2", "1.3"], fields.choice("Oldest version of TLS that is spoken."), LIVE] = "1.2"


class Sasl(Section, frozen=True):
    """How we log in. Passwords and tokens are read anew for each login, so that a change needs no restart."""

    mechanism: (
        Annotated[
            Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"],
            fields.choice("The mechanism. Absent: there is no login."),
            LIVE,
        ]
        | None
    ) = None
    username: Annotated[str, fields.pattern("The user; not for OAUTHBEARER.", r"^[^\x00]+$", "bruce"), LIVE] | None = (
        None
    )
    password_file: (
        Annotated[str, fields.path("File with the password; a line feed at its end is none of it."), LIVE] | None
    ) = None
    password_env: (
        Annotated[str, fields.pattern("Environment variable with the password.", VARIABLE, "KAFKA_PASSWORD"), LIVE]
        | None
    ) = None
    token_file: (
        Annotated[
            str, fields.path("For OAUTHBEARER: file with the token. Who writes it has to renew it in time."), LIVE
        ]
        | None
    ) = None
    token_command: (
        Annotated[
            tuple[str, ...],
            fields.command(
                "For OAUTHBEARER: program that writes a token to its standard output, and its arguments. It is run "
                "again before the token expires."
            ),
            LIVE,
        ]
        | None
    ) = None
