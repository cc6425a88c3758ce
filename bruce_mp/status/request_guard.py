"""Request guard: decides which HTTP requests may read, and which may change state.

Every client that reaches the address may read, unless the name in the `Host` header is not a name of this host. Such a
name reveals DNS rebinding: a page of another site makes a browser read from this host under the name of that site. The
guard also refuses a request that changes state if a page of another site may have caused it; a browser names the site
that caused a request in the headers `Sec-Fetch-Site` and `Origin`. If a token is configured, a request that changes
state also needs this token.
"""

from __future__ import annotations

import hmac
import os
from ipaddress import ip_address
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from flask import abort, request
from werkzeug.datastructures import WWWAuthenticate
from werkzeug.exceptions import Unauthorized

from bruce_mp.config.addresses import HostPort
from bruce_mp.errors import ConfigError
from bruce_mp.network.credentials import read_secret

if TYPE_CHECKING:
    from bruce_mp.config.sections import Http

__all__ = ["guard_change", "guard_host"]

_FOREIGN_SITES: Final = frozenset({"cross-site", "same-site"})
"""Values of `Sec-Fetch-Site` for pages of other hosts; "same-site" means another host of the same domain."""
_BEARER: Final = "Bearer "
_UNAUTHORIZED: Final = (
    "This request needs the token that http.token_file or http.token_env names: Authorization: Bearer TOKEN"
)


def guard_host(config: Http) -> None:
    """Abort the current request with 403 if its `Host` header has a name that is not a name of this host.

    A header with an IP address is safe. So is an empty or absent header, because every browser sends the name that it
    has resolved.
    """
    given = request.headers.get("Host")
    if not given or not isinstance(config.address, HostPort):  # no browser connects to a UNIX socket
        return
    host = _host_name(given)
    if host not in _names_of_this_host(config) and not _is_address(host):
        remedy = "use its IP address or localhost, or add it to http.allowed_hosts."
        abort(403, f"{host or given} is not a name of this host: {remedy}")


def guard_change(config: Http) -> None:
    """Abort the current request unless it is allowed to change state.

    The status is 403 for a page of another site, 401 for a wrong token, and 503 if the token cannot be read.
    """
    _refuse_foreign_sites()
    _check_token(config)


def _refuse_foreign_sites() -> None:
    origin = request.headers.get("Origin")
    is_foreign = origin is not None and _host_of(origin) != request.host.lower()
    if is_foreign or request.headers.get("Sec-Fetch-Site") in _FOREIGN_SITES:
        abort(403, "Pages of other sites are not allowed to send this request.")


def _host_of(origin: str) -> str | None:
    """Return host and port in an `Origin` header, or None if the header is malformed."""
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return None


def _host_name(header: str) -> str:
    """Return the name in a `Host` header without the port, or an empty string if the header is malformed."""
    try:
        return (urlsplit(f"//{header}").hostname or "").rstrip(".")
    except ValueError:
        return ""


def _names_of_this_host(config: Http) -> frozenset[str]:
    assert isinstance(config.address, HostPort)
    node = os.uname().nodename.lower()
    configured = (config.address.host, *config.allowed_hosts)
    return frozenset({"localhost", node, node.partition(".")[0], *(name.lower().rstrip(".") for name in configured)})


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def _check_token(config: Http) -> None:
    try:
        token = read_secret(config.token_file, config.token_env, "The token for changes")
    except ConfigError as error:
        abort(503, f"The daemon cannot check the token for this request: {error}")
    if token is None:
        return
    given = request.headers.get("Authorization", "")
    if not given.startswith(_BEARER) or not _equals(given.removeprefix(_BEARER).strip(), token):
        raise Unauthorized(_UNAUTHORIZED, www_authenticate=WWWAuthenticate("bearer", {"realm": "bruce"}))


def _equals(given: str, token: str) -> bool:
    """Compare two tokens in constant time."""
    return hmac.compare_digest(given.encode("latin-1", "replace"), token.encode())
