"""TLS to brokers: the contexts with the certificates and keys of [kafka.tls], and the session of one connection.

`TlsContexts` reloads the files when one of them changes.  While the new files are unusable, the context from the old
files stays in use: an operator replaces certificate and key one after the other, and they do not match in between.

A session has no socket: the caller passes received bytes in and fetches the bytes to send.

    session = TlsSession(context, "kafka1", "Broker kafka1:9093")
    decrypted = session.receive(data)      # data is b"" at the end of the stream
    send(session.read_outgoing())

The session always checks the broker's certificate. The text of a `TlsError` names the cause, and the setting or host to
correct.
"""

from __future__ import annotations

import logging
import ssl
from pathlib import Path
from typing import TYPE_CHECKING, Final

from bruce_mp.errors import ConfigError, TlsError
from bruce_mp.network.credentials import read_remedy, read_secret

if TYPE_CHECKING:
    from collections.abc import Mapping

    from bruce_mp.config.security import Tls

__all__ = ["TlsContexts", "TlsSession"]

log = logging.getLogger(__name__)
_READ_BYTES: Final = 256 * 1024
"""Maximum number of decrypted bytes that one read returns."""
# SSLZeroReturnError: the broker announced the end by the alert close_notify.  SSLEOFError: the stream ended without
# this alert; Python 3.11.2 raises SSLZeroReturnError for that, too.
_STREAM_ENDED: Final = (ssl.SSLZeroReturnError, ssl.SSLEOFError)
_CLOSED: Final = (
    "closed the connection in the middle of the TLS handshake. It may be going down, or may speak plain text on this "
    "port: then set kafka.tls.enable = false, or name the port of its TLS listener"
)
_PLAIN: Final = "does not speak TLS on this port. Set kafka.tls.enable = false, or name the port of its TLS listener"
_CLIENT_CERTIFICATE: Final = "Check kafka.tls.certificate_file, and the authorities that the broker trusts"
_AUTHORITY: Final = (
    "has a certificate from an authority that the daemon does not trust. If you trust this authority, add the "
    "authority's certificate to kafka.tls.ca_file"
)
_HOST: Final = (
    "has a certificate for other hosts ({error}). Use a name from the certificate's subjectAltName in "
    "kafka.bootstrap_servers and in the broker's advertised.listeners, give the broker another certificate, or set "
    "kafka.tls.verify_host_name = false"
)

_BAD_CERTIFICATES: Final[Mapping[int, str]] = {
    9: "has a certificate that is not valid yet. Check the clocks of both hosts",
    10: "has an expired certificate, or its authority's certificate has expired. Renew it on the broker",
    18: _AUTHORITY,  # DEPTH_ZERO_SELF_SIGNED_CERT
    19: _AUTHORITY,  # SELF_SIGNED_CERT_IN_CHAIN
    20: _AUTHORITY,  # UNABLE_TO_GET_ISSUER_CERT_LOCALLY
    21: _AUTHORITY,  # UNABLE_TO_VERIFY_LEAF_SIGNATURE
    62: _HOST,  # HOSTNAME_MISMATCH
    64: _HOST,  # IP_ADDRESS_MISMATCH
}
"""Error texts for a broker's certificate that fails the check, by OpenSSL's number of the defect (X509_V_ERR_...)."""

_ERRORS: Final[Mapping[str, str]] = {
    "WRONG_VERSION_NUMBER": _PLAIN,
    "HTTP_REQUEST": _PLAIN,
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": "requires a client certificate. Set kafka.tls.certificate_file",
    "SSLV3_ALERT_BAD_CERTIFICATE": (
        f"refuses the daemon's certificate, or requires one and got none (bad_certificate). {_CLIENT_CERTIFICATE}"
    ),
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": f"refuses the daemon's certificate (certificate_unknown). {_CLIENT_CERTIFICATE}",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": (
        "refuses the daemon's certificate, which has expired. Renew kafka.tls.certificate_file"
    ),
    "TLSV1_ALERT_UNKNOWN_CA": f"does not trust the authority of the daemon's certificate. {_CLIENT_CERTIFICATE}",
    "SSLV3_ALERT_HANDSHAKE_FAILURE": (
        "ends the handshake: there is no cipher that both sides support, or it requires a client certificate "
        "(kafka.tls.certificate_file)"
    ),
    "TLSV1_ALERT_PROTOCOL_VERSION": "supports other versions of TLS than this daemon. Check kafka.tls.min_version",
    "UNSUPPORTED_PROTOCOL": "supports only TLS older than kafka.tls.min_version. Enable a newer one on the broker",
}
"""Error texts for all other failures, by OpenSSL's name of the reason."""


class TlsSession:
    """One TLS session with `host`. Error texts begin with `name`. Raises TlsError for an invalid host name."""

    def __init__(self, context: ssl.SSLContext, host: str, name: str) -> None:
        self._name = name
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        try:
            self._object = context.wrap_bio(self._incoming, self._outgoing, server_hostname=host)
        except (ValueError, ssl.SSLError) as error:
            raise TlsError(f"{name} has a name that no certificate can contain: {error}.") from error
        self.is_open = False
        """True once the handshake is complete."""
        self.has_ended = False
        """True once the broker has ended the stream."""

    @property
    def certificate_ends_s(self) -> float | None:
        """The expiry of the broker's certificate in seconds since the epoch, or None before the handshake ends."""
        certificate = self._object.getpeercert() if self.is_open else None
        ends = certificate.get("notAfter") if certificate else None
        return ssl.cert_time_to_seconds(ends) if isinstance(ends, str) else None

    def read_outgoing(self) -> bytes:
        """Remove and return the bytes that wait to be sent to the broker, b"" if none."""
        return self._outgoing.read()

    def send(self, data: memoryview) -> None:
        """Encrypt bytes; the next `read_outgoing` returns the result. Allowed only while `is_open`."""
        if data:
            self._object.write(data)

    def receive(self, data: bytes) -> bytes:
        """Process received bytes; return the decrypted bytes of the Kafka protocol, or b"" during the handshake.

        Raises TlsError for a failed handshake or a damaged record.
        """
        if data:
            self._incoming.write(data)
        else:
            self._incoming.write_eof()
        if not self.is_open:
            self.handshake()
        return b"".join(self._read()) if self.is_open else b""

    def handshake(self) -> None:
        """Begin the handshake; afterwards `receive` calls this function to continue it."""
        try:
            self._object.do_handshake()
        except ssl.SSLWantReadError:
            return
        except ssl.SSLError as error:
            raise self._explain(error) from error
        self.is_open = True

    def _read(self) -> list[bytes]:
        """Return all decrypted bytes, in parts, and set `has_ended` at the end of the stream."""
        parts = []
        try:
            while part := self._object.read(_READ_BYTES):
                parts.append(part)
            self.has_ended = True
        except ssl.SSLWantReadError:
            pass
        except _STREAM_ENDED:
            self.has_ended = True
        except ssl.SSLError as error:
            raise self._explain(error) from error
        return parts

    def _explain(self, error: ssl.SSLError) -> TlsError:
        if isinstance(error, _STREAM_ENDED):  # during the handshake, because `_read` handles a later end
            return TlsError(f"{self._name} {_CLOSED}.", is_closed=True)
        if isinstance(error, ssl.SSLCertVerificationError):
            reason = error.verify_message
            text = _BAD_CERTIFICATES.get(error.verify_code, "has a certificate that cannot be trusted: {error}")
        else:
            reason = error.reason or "no reason given"
            text = _ERRORS.get(
                reason, "and this daemon cannot agree on TLS: {error}. The broker's log may contain details"
            )
        return TlsError(f"{self._name} {text.format(error=reason.rstrip('.'))}.")


# --- contexts ---------------------------------------------------------------------------------------------------------
_TLS_VERSIONS: Final = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}
_NO_PEM: Final = frozenset({"NO_CERTIFICATE_OR_CRL_FOUND", "NO_START_LINE"})
"""OpenSSL's names for the failure to find a certificate in a file."""

_FileVersion = tuple[int, int, int]
"""Inode, size and time of modification: if one differs, the file was changed or replaced."""


class TlsContexts:
    """The TLS context of a process's connections; it is loaded again when one of its files changes."""

    def __init__(self, tls: Tls) -> None:
        self._tls = tls
        configured = (tls.ca_file, tls.certificate_file, tls.key_file, tls.key_password_file)
        self._files = [Path(name) for name in configured if name is not None]
        self._loaded_versions: tuple[_FileVersion | None, ...] | None = None
        self._context: ssl.SSLContext | None = None

    def create_session(self, host: str, name: str) -> TlsSession:
        """Create a session with `host`. Raises ConfigError like `current_context`, and TlsError like TlsSession."""
        return TlsSession(self.current_context(), host, name)

    def current_context(self) -> ssl.SSLContext:
        """Return the context for a new connection.

        If the files cannot be loaded, return the context of an earlier load; without one, raise ConfigError, which
        names the file.
        """
        versions = tuple(_file_version(file) for file in self._files)
        if self._context is not None and versions == self._loaded_versions:
            return self._context
        try:
            self._context, self._loaded_versions = _create_context(self._tls), versions
        except ConfigError as error:
            if self._context is None:
                raise
            log.error("%s The previous certificates stay in use.", error)
        return self._context


def _file_version(file: Path) -> _FileVersion | None:
    """Return the version of a file, or None if the file is missing or inaccessible."""
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns


def _create_context(tls: Tls) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = _TLS_VERSIONS[tls.min_version]
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.check_hostname = tls.verify_host_name
    _load_authorities(context, tls.ca_file)
    if tls.certificate_file is not None:
        _load_certificate(context, tls, tls.certificate_file)
    return context


def _load_authorities(context: ssl.SSLContext, ca_file: str | None) -> None:
    if ca_file is None:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
        return
    try:
        context.load_verify_locations(cafile=ca_file)
    except OSError as error:  # includes ssl.SSLError
        raise ConfigError(_unusable_file("ca_file", ca_file, error)) from error


def _load_certificate(context: ssl.SSLContext, tls: Tls, certificate_file: str) -> None:
    # "" instead of None: without a password, OpenSSL would ask on the terminal for the password of an encrypted key.
    password = read_secret(tls.key_password_file, tls.key_password_env, "The password of the key") or ""
    try:
        context.load_cert_chain(certificate_file, tls.key_file, password)
    except OSError as error:
        raise ConfigError(_explain_unusable(tls, certificate_file, error)) from error
    except ValueError as error:
        place = tls.key_password_file or f"the environment variable {tls.key_password_env}"
        raise ConfigError(
            f"The password of the key in {place} is too long for OpenSSL. Check that {place} contains only the "
            "password."
        ) from error


def _explain_unusable(tls: Tls, certificate_file: str, error: OSError) -> str:
    """Return an error text for `error`, which OpenSSL raised without naming the certificate or key file at fault."""
    key_file = tls.key_file or certificate_file
    if getattr(error, "reason", None) == "KEY_VALUES_MISMATCH":
        return f"The key in {key_file} does not belong to the certificate in {certificate_file}."
    for name, file in (("certificate_file", certificate_file), ("key_file", key_file)):
        if read_error := _read_error(file):
            return _unusable_file(name, file, read_error)
    text = _unusable_file("certificate_file", certificate_file, error)
    return (
        f"{text} The cause may also be the key in {key_file}: if it is encrypted, kafka.tls.key_password_file must "
        "contain its password."
    )


def _read_error(file: str) -> OSError | None:
    """Try to open the file for reading, and return the error if that fails."""
    try:
        with Path(file).open("rb"):
            return None
    except OSError as error:
        return error


def _unusable_file(setting: str, file: str, error: OSError) -> str:
    if not isinstance(error, ssl.SSLError):
        return f"kafka.tls.{setting} = {file} cannot be used: {error.strerror}.{read_remedy(error)}"
    reason = error.reason
    if reason is None or reason in _NO_PEM:
        reason = "it contains no certificate in PEM format"
    return f"kafka.tls.{setting} = {file} cannot be used: {reason}."
