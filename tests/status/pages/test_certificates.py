"""The page `/certificates`, and its effect on the health."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

import pytest

from bruce_mp.config.security import Tls
from bruce_mp.status.broker_status import ClusterReport
from bruce_mp.status.pages.certificates import (
    AUTHORITIES,
    CLIENT,
    SOON_S,
    CertificateLine,
    certificate_problems,
    certificate_warnings,
    list_certificates,
)
from bruce_mp.telemetry.broker_status import CONNECTED, BrokerStatus
from support.certificates import Authority
from support.filled_slab import NOW_MS
from support.status_pages import OfflineStatusPages

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

DAY_S: Final = 86_400


def broker(ends_s: float | None) -> BrokerStatus:
    return BrokerStatus(
        0, 1, "kafka1", 9093, CONNECTED, NOW_MS, 0, "", 0, exactly_once=True, certificate_ends_s=ends_s
    )  # fmt: skip


@pytest.fixture
def tls(tmp_path: Path) -> Tls:
    authority = Authority(tmp_path)
    ours = authority.issue("client", days=20)
    return Tls(enable=True, ca_file=str(authority.certificate), certificate_file=str(ours.both))


@pytest.fixture
def pages(tmp_path: Path, tls: Tls) -> Iterator[OfflineStatusPages]:
    fake = OfflineStatusPages(tmp_path / "slab", tls)
    yield fake
    fake.close()


@pytest.mark.process
def test_the_page_lists_certificates_with_their_expiry(pages: OfflineStatusPages, tls: Tls) -> None:
    pages.broker_status.record([broker(NOW_MS / 1000 + 5)], NOW_MS)
    ours, authorities, shown = pages.json("/certificates/json")["certificates"]
    assert (ours["whose"], ours["source"], ours["trouble"]) == (CLIENT, tls.certificate_file, "")
    assert abs(ours["expires"] - time.time() - 20 * DAY_S) < 60
    assert (authorities["whose"], authorities["source"]) == (AUTHORITIES, tls.ca_file)
    assert shown == {"whose": "broker 1", "source": "kafka1:9093", "expires": NOW_MS // 1000 + 5, "trouble": ""}
    assert f"our own [{tls.certificate_file}]: " in pages.text("/certificates/plain")


def test_health_reports_an_expiring_broker_certificate(tmp_path: Path) -> None:
    pages = OfflineStatusPages(tmp_path / "slab", Tls(enable=True))
    pages.fetch_metadata(NOW_MS, NOW_MS)
    pages.broker_status.record([broker(NOW_MS / 1000 + 2 * DAY_S)], NOW_MS)
    assert "The certificate of kafka1:9093 (broker 1) expires in 2.0 days." in str(pages.json("/healthz")["warnings"])
    pages.broker_status.record([broker(NOW_MS / 1000)], NOW_MS)
    assert "kafka1:9093 (broker 1) has expired: new connections" in str(pages.json("/healthz", 503)["problems"])
    pages.close()
    pages.filled.close()


@pytest.mark.process
def test_no_certificate_is_listed_without_tls(tls: Tls) -> None:
    assert list_certificates(Tls(ca_file=tls.ca_file), ClusterReport({}, None, {})) == []


@pytest.mark.parametrize(
    ("line", "problems", "warnings"),
    [
        (CertificateLine(CLIENT, "/c", 1000 + SOON_S + 1), 0, 0),
        (CertificateLine(CLIENT, "/c", 1000 + SOON_S), 0, 1),
        (CertificateLine(CLIENT, "/c", 1000), 1, 0),
        (CertificateLine(AUTHORITIES, "/c", 1000), 0, 1),
        (CertificateLine(AUTHORITIES, "/c", 1001), 0, 1),
        (CertificateLine(CLIENT, "/c", None, "it cannot be read"), 0, 1),
    ],
)
def test_expiry_times_cause_problems_or_warnings(line: CertificateLine, problems: int, warnings: int) -> None:
    assert len(list(certificate_problems([line], 1000))) == problems
    assert len(list(certificate_warnings([line], 1000))) == warnings


@pytest.mark.parametrize(("content", "trouble"), [(None, "cannot be read: No such file"), (b"x", "no certificate")])
def test_an_unreadable_certificate_file_is_reported(tmp_path: Path, content: bytes | None, trouble: str) -> None:
    file = tmp_path / "file"
    if content is not None:
        file.write_bytes(content)
    (line,) = list_certificates(Tls(enable=True, ca_file=str(file)), ClusterReport({}, None, {}))
    assert trouble in line.trouble
