"""TLS of one connection without a socket: the caller passes received bytes in and fetches the bytes to send.

    session = TlsSession(context, "kafka1", "Broker kafka1:9093")
    plain = session.receive(data)      # b"" for the end of the stream
    send(session.take())

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
# SSLZeroReturnError stands for a close_notify; Python 3.11.2 also raises it for a stream that ends without one.
_STREAM_ENDED: Final = (ssl.SSLZeroReturnError, ssl.SSLEOFError)
_CLOSED: Final = (
    "closed the connection in the middle of the TLS handshake. It may be going down, or may speak plain text on this "
    "port: then set kafka.tls.enable = false, or name the port of its TLS listener"
)
_PLAIN: Final = "does not speak TLS on this port. Set kafka.tls.enable = false, or name the port of its TLS listener"
_OUR_CERTIFICATE: Final = "Check kafka.tls.certificate_file, and the authorities that the broker trusts"
_AUTHORITY: Final = (
    "has a certificate of an authority that we do not trust. If it is the right one, put its certificate into "
    "kafka.tls.ca_file"
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
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": "wants a certificate of ours. Set kafka.tls.certificate_file",
    "SSLV3_ALERT_BAD_CERTIFICATE": (
        f"refuses our certificate, or wants one and got none (bad_certificate). {_OUR_CERTIFICATE}"
    ),
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": f"refuses our certificate (certificate_unknown). {_OUR_CERTIFICATE}",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "refuses our certificate, which has expired. Renew kafka.tls.certificate_file",
    "TLSV1_ALERT_UNKNOWN_CA": f"does not trust the authority of our certificate. {_OUR_CERTIFICATE}",
    "SSLV3_ALERT_HANDSHAKE_FAILURE": (
        "breaks off the handshake: there is no cipher that both sides speak, or it wants a certificate of ours "
        "(kafka.tls.certificate_file)"
    ),
    "TLSV1_ALERT_PROTOCOL_VERSION": "speaks other versions of TLS than this daemon. Check kafka.tls.min_version",
    "UNSUPPORTED_PROTOCOL": "speaks an older TLS than kafka.tls.min_version allows. Raise it on the broker",
}
"""All other failures, by OpenSSL's reason."""


class TlsSession:
    """One TLS session; `name` begins the error texts. Raises TlsError for an invalid host name."""

    def __init__(self, context: ssl.SSLContext, host: str, name: str) -> None:
        self._name = name
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        try:
            self._object = context.wrap_bio(self._incoming, self._outgoing, server_hostname=host)
        except (ValueError, ssl.SSLError) as error:
            raise TlsError(f"{name} has a name that no certificate can contain: {error}.") from error
        self.is_open = False
        """True once the handshake is complete, so that bytes may be sent."""
        self.is_over = False
        """True once the broker has ended the stream."""

    @property
    def certificate_ends_s(self) -> float | None:
        """Return the expiry of the broker's certificate in seconds since the epoch, or None before the end of the
        handshake.
        """
        certificate = self._object.getpeercert() if self.is_open else None
        ends = certificate.get("notAfter") if certificate else None
        return ssl.cert_time_to_seconds(ends) if isinstance(ends, str) else None

    def start(self) -> None:
        """Start the handshake."""
        self._shake_hands()

    def feed(self) -> bytes:
        """Return the bytes to send now, b"" if none."""
        return self._outgoing.read()

    def send(self, data: memoryview) -> None:
        """Encrypt bytes for the next `feed`; valid only while `is_open`."""
        if data:
            self._object.write(data)

    def receive(self, data: bytes) -> bytes:
        """Decrypt received bytes. Raises TlsError."""
        if data:
            self._incoming.write(data)
        else:
            self._incoming.write_eof()
        if not self.is_open:
            self._shake_hands()
        return b"".join(self._read()) if self.is_open else b""

    def _shake_hands(self) -> None:
        try:
            self._object.do_handshake()
        except ssl.SSLWantReadError:
            return
        except ssl.SSLError as error:
            raise self._explained(error) from error
        self.is_open = True

    def _read(self) -> list[bytes]:
        parts = []
        try:
            while part := self._object.read(_READ_BYTES):
                parts.append(part)
            self.is_over = True
        except ssl.SSLWantReadError:
            pass
        except _STREAM_ENDED:
            self.is_over = True
        except ssl.SSLError as error:
            raise self._explained(error) from error
        return parts

    def _explained(self, error: ssl.SSLError) -> TlsError:
        if isinstance(error, _STREAM_ENDED):
            return TlsError(f"{self._name} {_CLOSED}.", is_closed=True)
        if isinstance(error, ssl.SSLCertVerificationError):
            wrong = error.verify_message
            text = _BAD_CERTIFICATES.get(error.verify_code, "has a certificate that cannot be trusted: {error}")
        else:
            wrong = error.reason or "no reason given"
            text = _ERRORS.get(
                wrong, "and this daemon cannot agree on TLS: {error}. The broker's log may contain details"
            )
        return TlsError(f"{self._name} {text.format(error=wrong.rstrip('.'))}.")
