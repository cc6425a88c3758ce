"""When the certificates that we use expire: our own, those who vouch for brokers, and the brokers' own.

The files of [kafka.tls] are read for each page, so that what was renewed on the disk is seen at once; what brokers have
shown is told by dispatchers.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from bruce_mp.errors import RemoteProtocolError
from bruce_mp.protocol.x509 import certificates_in
from bruce_mp.status.header import Page, header_lines, read_header
from bruce_mp.status.text import stamp

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from bruce_mp.config.security import Tls
    from bruce_mp.slab.file import Slab
    from bruce_mp.status.standings import Heard

__all__ = [
    "CertificateLine",
    "CertificatesPage",
    "certificates_plain",
    "expired",
    "look_at",
    "read_certificates",
    "worrying",
]

_LARGEST: Final = 1024 * 1024
OURS: Final = "our own"
AUTHORITIES: Final = "authorities"
SOON_S: Final = 14 * 86_400
"""So long before its end a certificate is worth a warning."""
_RENEW: Final = "Renew it; no restart is needed."


class CertificateLine(msgspec.Struct, frozen=True):
    """A certificate: whose it is, where it is from, when it expires (s), None if it cannot be read; then why."""

    whose: str
    source: str
    expires: int | None
    trouble: str = ""


class CertificatesPage(Page, frozen=True, kw_only=True):
    """The JSON of `/certificates`; no certificates where there is no TLS."""

    certificates: list[CertificateLine]


def look_at(tls: Tls, heard: Heard) -> list[CertificateLine]:
    """All certificates, as they are now.  Of the authorities in a file the one that expires first counts."""
    if not tls.enable:
        return []
    return [*_files(tls), *_brokers(heard)]


def _files(tls: Tls) -> Iterator[CertificateLine]:
    if tls.certificate_file is not None:
        yield _line(OURS, tls.certificate_file)
    if tls.ca_file is not None:
        yield _line(AUTHORITIES, tls.ca_file)


def _line(whose: str, file: str) -> CertificateLine:
    try:
        with Path(file).open("rb") as opened:
            ends = [ends_s for _, ends_s in certificates_in(opened.read(_LARGEST))]
    except OSError as error:
        return CertificateLine(whose, file, None, f"it cannot be read: {error.strerror}")
    except RemoteProtocolError as error:
        return CertificateLine(whose, file, None, str(error))
    if not ends:
        return CertificateLine(whose, file, None, "no certificate in PEM is in it")
    return CertificateLine(whose, file, int(min(ends)))


def _brokers(heard: Heard) -> Iterator[CertificateLine]:
    for said in sorted(heard.brokers.values(), key=lambda said: said.node):
        if said.certificate_ends_s is not None:
            place = f"{said.host}:{said.port}"
            yield CertificateLine(f"broker {said.node}", place, int(said.certificate_ends_s))


def expired(lines: Iterable[CertificateLine], now_s: float) -> Iterator[str]:
    """A sentence for each certificate because of which new connections fail."""
    for line in lines:
        # Of several authorities one may well have expired: others vouch for the brokers.
        if line.expires is not None and line.expires <= now_s and line.whose != AUTHORITIES:
            yield f"{_named(line)} has expired: new connections with it fail. {_RENEW}"


def worrying(lines: Iterable[CertificateLine], now_s: float) -> Iterator[str]:
    """A sentence for each certificate that somebody should look at in time."""
    for line in lines:
        if line.expires is None:
            yield f"{_named(line)}: {line.trouble}."
        elif now_s < line.expires <= now_s + SOON_S:
            days = (line.expires - now_s) / 86_400
            yield f"{_named(line)} expires in {days:.1f} days. {_RENEW}"
        elif line.expires <= now_s and line.whose == AUTHORITIES:
            yield f"{_named(line)} has expired, at least one of them. {_RENEW}"


def _named(line: CertificateLine) -> str:
    return f"The certificate of {line.source} ({line.whose})"


def read_certificates(slab: Slab, tls: Tls, heard: Heard, now_ms: int) -> CertificatesPage:
    """The page as of now."""
    return CertificatesPage(**read_header(slab, now_ms), certificates=look_at(tls, heard))


def certificates_plain(page: CertificatesPage) -> str:
    """The page as text."""
    return "\n".join([*header_lines(page), "", *_plain_lines(page.certificates), ""])


def _plain_lines(lines: Iterable[CertificateLine]) -> Iterator[str]:
    for line in lines:
        when = line.trouble if line.expires is None else stamp(line.expires)
        yield f"{line.whose} [{line.source}]: {when}"
