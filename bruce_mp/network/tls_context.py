"""Load the certificates and keys of [kafka.tls], and reload them when one of the files changes.

Certificate and key do not match while an operator replaces one after the other. While the new files are
unusable, the context of the old files stays in use.
"""

from __future__ import annotations

import logging
import ssl
from pathlib import Path
from typing import TYPE_CHECKING, Final

from bruce_mp.errors import ConfigError
from bruce_mp.network.credentials import read_remedy, read_secret
from bruce_mp.network.tls import TlsSession

if TYPE_CHECKING:
    from bruce_mp.config.security import Tls

__all__ = ["TlsContexts"]

log = logging.getLogger(__name__)
_TLS_VERSIONS: Final = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}
_NO_PEM: Final = frozenset({"NO_CERTIFICATE_OR_CRL_FOUND", "NO_START_LINE"})
"""Reasons of OpenSSL for a file without a certificate."""

_FileVersions = tuple[tuple[int, int, int] | None, ...]


class TlsContexts:
    """The TLS context of a process's connections, reloaded with its files."""

    def __init__(self, tls: Tls) -> None:
        self._tls = tls
        named = (tls.ca_file, tls.certificate_file, tls.key_file, tls.key_password_file)
        self._files = [Path(name) for name in named if name is not None]
        self._loaded: _FileVersions | None = None
        self._context: ssl.SSLContext | None = None

    def create_session(self, host: str, name: str) -> TlsSession:
        """Create a session with `host`. Raises the errors of `current_context` and of TlsSession."""
        return TlsSession(self.current_context(), host, name)

    def current_context(self) -> ssl.SSLContext:
        """Return the context for a new connection.

        Raises ConfigError, which names the file, until the first load succeeds.
        """
        present = tuple(_file_version(file) for file in self._files)
        if self._context is not None and present == self._loaded:
            return self._context
        try:
            self._context, self._loaded = _create_context(self._tls), present
        except ConfigError as error:
            if self._context is None:
                raise
            log.error("%s The previous certificates stay in use.", error)
        return self._context


def _file_version(file: Path) -> tuple[int, int, int] | None:
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
    # Without a password argument, OpenSSL would ask for one on the terminal.
    password = read_secret(tls.key_password_file, tls.key_password_env, "The password of the key") or ""
    try:
        context.load_cert_chain(certificate_file, tls.key_file, password)
    except OSError as error:
        raise ConfigError(_explain_unusable(tls, certificate_file, error)) from error


def _explain_unusable(tls: Tls, certificate_file: str, error: OSError) -> str:
    key_file = tls.key_file or certificate_file
    if getattr(error, "reason", None) == "KEY_VALUES_MISMATCH":
        return f"The key in {key_file} does not belong to the certificate in {certificate_file}."
    for name, file in (("certificate_file", certificate_file), ("key_file", key_file)):
        if read_error := _read_error(file):
            return _unusable_file(name, file, read_error)
    text = _unusable_file("certificate_file", certificate_file, error)
    return f"{text} Or its key, in {key_file}, cannot be used: does it need kafka.tls.key_password_file?"


def _read_error(file: str) -> OSError | None:
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
