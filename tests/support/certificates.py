"""Certificate authorities and certificates for tests, created with the `openssl` command."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from support.processes import run_program

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Authority", "Certificate"]

TIMEOUT_S: Final = 60
NEW_KEY: Final = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1")
LOOPBACK: Final = "IP:127.0.0.1,DNS:localhost"


@dataclass(frozen=True, slots=True)
class Certificate:
    """PEM files: the certificate, its key, and both in one."""

    certificate: Path
    key: Path
    both: Path


class Authority:
    """A certificate authority with its files in `directory`."""

    def __init__(self, directory: Path, name: str = "ca") -> None:
        self._directory = directory
        self._key = directory / f"{name}.key"
        self.certificate = directory / f"{name}.pem"
        _openssl(
            "req", "-x509", *NEW_KEY, "-nodes", "-keyout", self._key, "-out", self.certificate, "-days", "2",
            "-subj", f"/CN={name}", "-addext", "keyUsage=critical,keyCertSign",
        )  # fmt: skip

    def issue(self, name: str, *, hosts: str = LOOPBACK, days: int = 2, password: str | None = None) -> Certificate:
        """Issue a certificate for `hosts`, expired with `days` below 0; `password` encrypts the key."""
        made = Certificate(*(self._directory / f"{name}{end}" for end in (".pem", ".key", ".both.pem")))
        request, extensions = self._directory / f"{name}.csr", self._directory / f"{name}.ext"
        encryption = ("-nodes",) if password is None else ("-passout", f"pass:{password}")
        _openssl("req", *NEW_KEY, *encryption, "-keyout", made.key, "-out", request, "-subj", f"/CN={name}")
        extensions.write_text(f"subjectAltName={hosts}\nkeyUsage=critical,digitalSignature\n")
        _openssl(
            "x509", "-req", "-in", request, "-CA", self.certificate, "-CAkey", self._key, "-CAcreateserial",
            "-days", str(days), "-extfile", extensions, "-out", made.certificate,
        )  # fmt: skip
        made.both.write_bytes(made.key.read_bytes() + made.certificate.read_bytes())
        return made


def _openssl(*words: str | Path) -> None:
    run_program("openssl", *words, time_limit_s=TIMEOUT_S)
