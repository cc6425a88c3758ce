"""HTTP requests that carry secrets: over verified TLS, or without TLS to this host or to a trusted host.

A request has a time limit and follows no redirect.
"""

from __future__ import annotations

import ssl
import urllib.error
import urllib.request
from http.client import HTTPException
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import urlsplit

from bruce_mp.cli.tokens.issued_token import TokenError
from bruce_mp.config.addresses import is_loopback
from bruce_mp.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["HttpResponse", "request"]

_TIMEOUT_S: Final = 10.0
"""Time limit of a request. The daemon allows `kafka.sasl.token_command` 30 s, so it still gets our error text."""
_MAX_RESPONSE_BYTES: Final = 1024 * 1024
"""The most bytes to read from a response. A token response is much shorter, but a wrong URL may return any file."""


class HttpResponse(NamedTuple):
    """A response; its status may be an error."""

    status: int
    body: bytes


class _AnyStatus(urllib.request.HTTPErrorProcessor):
    """Handler that returns every response unchanged. So no redirect sends the secret to another address."""

    def http_response(self, request: object, response: Any) -> Any:  # noqa: ARG002 - a signature of the base class
        return response

    https_response = http_response


def request(
    server: str,
    url: str,
    *,
    data: bytes | None = None,
    headers: Mapping[str, str] | None = None,
    method: str | None = None,
    ca_file: str | None = None,
    trusted_hosts: frozenset[str] = frozenset(),
    timeout_s: float = _TIMEOUT_S,
) -> HttpResponse:
    """Send a request, a POST if `data` is given, and return the response; `server` is the server's name in error texts.

    If the server is this host or one of `trusted_hosts`, the URL may begin with `http`, and the request uses no proxy.
    Raise TokenError or ConfigError. Error texts omit the URL's query, because the query of a presigned URL is a secret.
    """
    shown_url = url.partition("?")[0]
    is_trusted = _check_url(server, url, shown_url, trusted_hosts)
    handlers: list[urllib.request.BaseHandler] = [
        _AnyStatus(),
        urllib.request.HTTPSHandler(context=_tls_context(ca_file)),
    ]
    if is_trusted:
        handlers.append(urllib.request.ProxyHandler({}))
    opener = urllib.request.build_opener(*handlers)
    outgoing = urllib.request.Request(url, data, dict(headers or {}), method=method)  # noqa: S310 - the scheme is checked
    try:
        with opener.open(outgoing, timeout=timeout_s) as response:
            return HttpResponse(response.status, response.read(_MAX_RESPONSE_BYTES))
    except (OSError, ValueError, HTTPException) as error:
        raise _explain(server, shown_url, error) from error


def _check_url(server: str, url: str, shown_url: str, trusted_hosts: frozenset[str]) -> bool:
    """Raise ConfigError if a URL is not safe for a secret. Return True for a URL of this host or of a trusted host."""
    try:
        parts = urlsplit(url)
    except ValueError:
        raise ConfigError(f"{server} has an invalid address: {shown_url}. Give one as https://host/path.") from None
    if parts.username is not None or parts.password is not None:
        # The text omits the address, because command lines and logs may show it.
        raise ConfigError(f"{server} has an address with a user or password. Remove them from the address.")
    is_trusted = is_loopback(parts.hostname or "") or parts.hostname in trusted_hosts
    if not parts.hostname or not (parts.scheme == "https" or (parts.scheme == "http" and is_trusted)):
        raise ConfigError(
            f"{server} has an address that is not safe for secrets: {shown_url}. Give one that begins with https."
        )
    return is_trusted


def _tls_context(ca_file: str | None) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca_file)
    except (OSError, ssl.SSLError) as error:
        reason = error.strerror or "it has no certificate"
        raise ConfigError(f"--ca-file {ca_file} cannot be used: {reason}. Give certificates in PEM format.") from error


def _explain(server: str, url: str, error: Exception) -> TokenError:
    """Return the TokenError for a request that got no response; `error` is the cause."""
    reason = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(reason, ssl.SSLCertVerificationError):
        text = f"{server} ({url}) has a certificate that cannot be trusted: {reason.verify_message.rstrip('.')}."
        return TokenError("untrusted_certificate", f"{text} Put its authority into --ca-file, or correct the address.")
    if isinstance(reason, TimeoutError):
        text = f"{server} ({url}) does not answer in time."
    else:
        text = f"{server} ({url}) cannot be reached: {getattr(reason, 'strerror', None) or 'the address is not valid'}."
    return TokenError("unreachable", f"{text} Check the address, and the firewalls between this host and it.")
