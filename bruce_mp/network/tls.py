"""TLS of one connection without a socket: the caller passes received bytes in and fetches the bytes to send.

    session = TlsSession(context, "kafka1", "Broker kafka1:9093")
    plain = session.receive(data)      # data is b"" at the end of the stream
    send(session.read_outgoing())

The session always checks certificates. A `TlsError` names the cause, and the setting or host to correct.
"""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING, Final

from bruce_mp.errors import TlsError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["TlsSession"]

_READ_BYTES: Final = 256 * 1024
"""Bytes of one read of decrypted data; a TLS record has at most 16 KiB."""
# SSLZeroReturnError stands for a close_notify; Python 3.11.2 also raises it for a stream that ends without one.
_STREAM_ENDED: Final = (ssl.SSLZeroReturnError, ssl.SSLEOFError)
_CLOSED: Final = (
    "closed the connection in the middle of the TLS handshake. It may be going down, or may speak plain text on this "
    "port: then set kafka.tls.enable = false, or name the port of its TLS listener"
)
_PLAIN: Final = "does not speak TLS on this port. Set kafka.tls.enable = false, or name the port of its TLS listener"
_CLIENT_CERTIFICATE: Final = "Check kafka.tls.certificate_file, and the authorities that the broker trusts"
_AUTHORITY: Final = (
    "has a certificate of an authority that the daemon does not trust. If it is the right one, put its certificate "
    "into kafka.tls.ca_file"
)
_HOST: Final = (
    "has a certificate for other hosts ({error}). Name the broker as its certificate does (its subjectAltName; "
    "advertised.listeners on the broker), give it another certificate, or set kafka.tls.verify_host_name = false"
)

_BAD_CERTIFICATES: Final[Mapping[int, str]] = {
    9: "has a certificate that is not valid yet. Check the clocks of both hosts",
    10: "has a certificate that has expired, or that of its authority has. Renew it on the broker",
    18: _AUTHORITY,
    19: _AUTHORITY,
    20: _AUTHORITY,
    21: _AUTHORITY,
    62: _HOST,
    64: _HOST,
}
"""Defects of the broker's certificate, by OpenSSL's numbers (X509_V_ERR_...)."""

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
"""All other failures, by OpenSSL's reason."""


class TlsSession:
    """One TLS session; error texts begin with `name`. Raises TlsError for an invalid host name."""

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

    def start(self) -> None:
        """Start the handshake."""
        self._handshake()

    def read_outgoing(self) -> bytes:
        """Return the bytes that TLS has produced for the broker, b"" if none."""
        return self._outgoing.read()

    def send(self, data: memoryview) -> None:
        """Encrypt bytes for the next `read_outgoing`; allowed only while `is_open`."""
        if data:
            self._object.write(data)

    def receive(self, data: bytes) -> bytes:
        """Decrypt received bytes. Raises TlsError for a failed handshake or a damaged record."""
        if data:
            self._incoming.write(data)
        else:
            self._incoming.write_eof()
        if not self.is_open:
            self._handshake()
        return b"".join(self._read()) if self.is_open else b""

    def _handshake(self) -> None:
        try:
            self._object.do_handshake()
        except ssl.SSLWantReadError:
            return
        except ssl.SSLError as error:
            raise self._explain(error) from error
        self.is_open = True

    def _read(self) -> list[bytes]:
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
        if isinstance(error, _STREAM_ENDED):
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
