"""Dates of certificates: certificates of openssl, and damaged ones."""

from __future__ import annotations

import ssl
import time
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bruce_mp.errors import RemoteProtocolError
from bruce_mp.network.x509 import certificate_validity, read_validities
from support.certificates import Authority
from support.examples import examples


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("x509"))


@pytest.mark.process
@pytest.mark.parametrize("days", [-1, 1, 1000, 20_000])  # from 2050 on dates are written otherwise
def test_certificate_dates_are_read(authority: Authority, days: int) -> None:
    made = authority.issue(f"for-{days}", days=days)
    ((starts, ends),) = read_validities(made.both.read_bytes())
    assert abs(starts - time.time()) < 60
    assert ends - starts == days * 86400


@pytest.mark.process
def test_dates_equal_those_of_the_standard_library(authority: Authority) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cafile=authority.certificate)
    (known,) = context.get_ca_certs()
    ((starts, ends),) = read_validities(authority.certificate.read_bytes())
    assert starts == ssl.cert_time_to_seconds(str(known["notBefore"]))
    assert ends == ssl.cert_time_to_seconds(str(known["notAfter"]))


@pytest.mark.process
def test_a_file_with_several_certificates_is_read(authority: Authority) -> None:
    parts = [authority.issue(f"several-{days}", days=days).certificate.read_bytes() for days in (1, 2)]
    first, second = read_validities(b"# a comment\n".join(parts))
    assert second[1] - first[1] >= 86400
    assert list(read_validities(b"nothing")) == []


def test_invalid_base64_is_refused() -> None:
    with pytest.raises(RemoteProtocolError, match="base64"):
        list(read_validities(b"-----BEGIN CERTIFICATE-----\nabcde\n-----END CERTIFICATE-----\n"))


@pytest.mark.process
@examples(150)
@given(data=st.data())
def test_a_damaged_certificate_is_read_or_refused(authority: Authority, data: st.DataObject) -> None:
    der = bytearray(ssl.PEM_cert_to_DER_cert(authority.certificate.read_text()))
    for _ in range(data.draw(st.integers(0, 3))):
        der[data.draw(st.integers(0, min(200, len(der) - 1)))] = data.draw(st.integers(0, 255))
    del der[data.draw(st.integers(0, len(der))) :]
    with suppress(RemoteProtocolError):
        certificate_validity(bytes(der))
