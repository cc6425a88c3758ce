"""The page `/certificates`: expiry dates of the TLS certificates of the daemon, of the authorities, and of the brokers.

Each request reads the files that [kafka.tls] names, so a renewed file shows at once. The expiry dates of the brokers'
certificates come from the reports of the dispatchers.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from bruce_mp.errors import RemoteProtocolError
from bruce_mp.network.x509 import read_validities
from bruce_mp.status.pages.header import Page, header_lines
from bruce_mp.status.pages.text import stamp

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from bruce_mp.config.security import Tls
    from bruce_mp.status.broker_status import ClusterReport

__all__ = [
    "CertificateLine",
    "CertificatesPage",
    "certificate_problems",
    "certificate_warnings",
    "certificates_text",
    "list_certificates",
]

_MAX_FILE_BYTES: Final = 1024 * 1024
"""Limit of the bytes to read from a file. A bundle of authorities is far smaller."""
CLIENT: Final = "our own"
AUTHORITIES: Final = "authorities"
SOON_S: Final = 14 * 86_400
"""A certificate that expires within this time causes a warning."""
_RENEW: Final = "Renew it; no restart is needed."


class CertificateLine(msgspec.Struct, frozen=True):
    """The certificates in a file, or the certificate of a broker.

    `whose` is `CLIENT`, `AUTHORITIES`, or `broker NODE`. `source` is the path of the file or the address of the broker.
    `expires` is the earliest expiry in seconds since the epoch. If no expiry can be read, `expires` is None, and
    `trouble` is the reason.
    """

    whose: str
    source: str
    expires: int | None
    trouble: str = ""


class CertificatesPage(Page, frozen=True, kw_only=True):
    """JSON of `/certificates`; the list is empty if TLS is disabled."""

    certificates: list[CertificateLine]


def list_certificates(tls: Tls, cluster: ClusterReport) -> list[CertificateLine]:
    """Return one line for each certificate file, with the earliest expiry in it, and one for each broker."""
    if not tls.enable:
        return []
    files = ((CLIENT, tls.certificate_file), (AUTHORITIES, tls.ca_file))
    lines = [_line(whose, file) for whose, file in files if file is not None]
    for status in sorted(cluster.brokers.values(), key=lambda status: status.node):
        if status.certificate_ends_s is not None:
            address = f"{status.host}:{status.port}"
            lines.append(CertificateLine(f"broker {status.node}", address, int(status.certificate_ends_s)))
    return lines


def _line(whose: str, file: str) -> CertificateLine:
    try:
        with Path(file).open("rb") as opened:
            expiries = [expiry_s for _, expiry_s in read_validities(opened.read(_MAX_FILE_BYTES))]
    except OSError as error:
        return CertificateLine(whose, file, None, f"it cannot be read: {error.strerror}")
    except RemoteProtocolError as error:
        return CertificateLine(whose, file, None, str(error))
    if not expiries:
        return CertificateLine(whose, file, None, "the file has no certificate in PEM form")
    return CertificateLine(whose, file, int(min(expiries)))


def certificate_problems(lines: Iterable[CertificateLine], now_s: float) -> Iterator[str]:
    """Yield a sentence for each expired certificate that makes new connections fail."""
    for line in lines:
        # An expired authority is only a warning: if the brokers' certificates are signed by other authorities in the
        # file, connections succeed.
        if line.expires is not None and line.expires <= now_s and line.whose != AUTHORITIES:
            yield f"{_subject_of(line)} has expired: new connections with it fail. {_RENEW}"


def certificate_warnings(lines: Iterable[CertificateLine], now_s: float) -> Iterator[str]:
    """Yield a sentence for each certificate that expires soon or cannot be read, and for expired authorities."""
    for line in lines:
        if line.expires is None:
            yield f"{_subject_of(line)}: {line.trouble}."
        elif now_s < line.expires <= now_s + SOON_S:
            days = (line.expires - now_s) / 86_400
            yield f"{_subject_of(line)} expires in {days:.1f} days. {_RENEW}"
        elif line.expires <= now_s and line.whose == AUTHORITIES:
            yield f"{_subject_of(line)} has expired, at least one of them. {_RENEW}"


def _subject_of(line: CertificateLine) -> str:
    return f"The certificate of {line.source} ({line.whose})"


def certificates_text(page: CertificatesPage) -> str:
    lines = [
        f"{line.whose} [{line.source}]: {line.trouble if line.expires is None else stamp(line.expires)}"
        for line in page.certificates
    ]
    return "\n".join([*header_lines(page), "", *lines, ""])
