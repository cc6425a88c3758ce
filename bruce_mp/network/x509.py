"""The validity dates of X.509 certificates in files.

The `ssl` module gives the dates of a peer's certificate, but not of a certificate in a file. This module decodes a
certificate up to the dates (RFC 5280, section 4.1). DER encodes a certificate as nested elements: each element is a
tag, a length and the content, and the content of a sequence consists of elements.
"""

from __future__ import annotations

import binascii
import re
from base64 import b64decode
from calendar import timegm
from typing import TYPE_CHECKING, Final, NamedTuple

from bruce_mp.errors import RemoteProtocolError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["certificate_validity", "read_validities"]

_PEM: Final = re.compile(rb"-----BEGIN CERTIFICATE-----\s*([A-Za-z0-9+/=\s]+?)-----END CERTIFICATE-----")
# Tags of DER elements. X.509 gives the version of a certificate the context-specific tag 0, which is encoded as 0xA0.
_SEQUENCE: Final = 0x30
_VERSION: Final = 0xA0
_UTC_TIME: Final = 0x17
_GENERALIZED_TIME: Final = 0x18
_DATE: Final = re.compile(rb"(\d{4})(\d\d)(\d\d)(\d\d)(\d\d)(\d\d)Z")
_COUNT_BEFORE_VALIDITY: Final = 3
"""Number of elements between the version and the validity: serial number, algorithm, issuer."""


class _Element(NamedTuple):
    tag: int
    content: bytes


def read_validities(pem: bytes) -> Iterator[tuple[float, float]]:
    """Yield the validity of each certificate in a PEM file; see `certificate_validity`."""
    for block in _PEM.finditer(pem):
        try:
            der = b64decode(block[1])
        except binascii.Error as error:
            raise RemoteProtocolError("A certificate of the file is not base64.") from error
        yield certificate_validity(der)


def certificate_validity(der: bytes) -> tuple[float, float]:
    """Return (notBefore, notAfter) in seconds since the epoch. Raise RemoteProtocolError if `der` is no certificate."""
    (certificate,) = _read_elements(der, 1)
    (signed_part,) = _read_elements(certificate.content, 1)
    # The version is the first element, before the serial number; certificates of version 1 omit it.
    has_version = signed_part.content[:1] == bytes([_VERSION])
    validity = _read_elements(signed_part.content, has_version + _COUNT_BEFORE_VALIDITY + 1)[-1]
    if not certificate.tag == signed_part.tag == validity.tag == _SEQUENCE:
        raise RemoteProtocolError("A certificate of the file does not follow X.509.")
    not_before, not_after = _read_elements(validity.content, 2)
    return _parse_date(not_before), _parse_date(not_after)


def _read_elements(data: bytes, count: int) -> list[_Element]:
    """Return the first `count` elements of `data`, the content of a sequence."""
    elements = []
    offset = 0
    for _ in range(count):
        size, start = _read_length(data, offset + 1)
        end = start + size
        if end > len(data):
            raise RemoteProtocolError("A certificate of the file is truncated.")
        elements.append(_Element(data[offset], data[start:end]))
        offset = end
    return elements


def _read_length(data: bytes, offset: int) -> tuple[int, int]:
    """Decode the length field at `offset`; return the length, and the offset of the byte after the field."""
    if offset >= len(data):
        raise RemoteProtocolError("A certificate of the file is truncated.")
    first = data[offset]
    if first < 0x80:  # short form: the byte is the length
        return first, offset + 1
    end = offset + 1 + (first & 0x7F)  # long form: the low 7 bits are the number of bytes that the length occupies
    return int.from_bytes(data[offset + 1 : end], "big"), end


def _parse_date(element: _Element) -> float:
    text = element.content
    if element.tag == _UTC_TIME:  # a year of two digits: from 1950 to 2049 (RFC 5280, section 4.1.2.5.1)
        text = (b"20" if text[:2] < b"50" else b"19") + text
    found = _DATE.fullmatch(text)
    if found is None or element.tag not in {_UTC_TIME, _GENERALIZED_TIME}:
        raise RemoteProtocolError("A certificate of the file has an invalid date.")
    try:
        return float(timegm((*map(int, found.groups()), 0, 0, 0)))
    except ValueError as error:  # for example, the month is 13
        raise RemoteProtocolError("A certificate of the file has an invalid date.") from error
