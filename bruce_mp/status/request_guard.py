"""Request guard: decides which HTTP requests may change state.

Every client that reaches the address may read. The guard refuses a state-changing request that a page of another site
may have caused. A browser reports the source of a request in `Sec-Fetch-Site` and `Origin`. A foreign name in the
`Host` header reveals DNS rebinding. If a token is configured, the request needs it as well.
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

__all__ = ["guard"]

_FOREIGN_SITES: Final = frozenset({"cross-site", "same-site"})
_BEARER: Final = "Bearer "
_UNAUTHORIZED: Final = (
    "This request needs the token that http.token_file or http.token_env names: Authorization: Bearer TOKEN"
)


def guard(config: Http) -> None:
    """Abort the current, state-changing request with 403, 401 or 503 unless it is allowed."""
    _refuse_foreign_sites()
    if isinstance(config.address, HostPort):
        _refuse_foreign_hosts(config.address)
    _check_token(config)


def _refuse_foreign_sites() -> None:
    origin = request.headers.get("Origin")
    is_foreign = origin is not None and _host_of(origin) != request.host.lower()
    if is_foreign or request.headers.get("Sec-Fetch-Site") in _FOREIGN_SITES:
        abort(403, "Pages of other sites are not allowed to send this request.")


def _host_of(origin: str) -> str | None:
    """Return host and port of an origin, or None for a malformed origin."""
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return None


def _refuse_foreign_hosts(listen: HostPort) -> None:
    """Refuse names in the `Host` header that an attacker could resolve to this host. IP addresses are safe."""
    host = (urlsplit(f"//{request.host}").hostname or "").rstrip(".")
    node = os.uname().nodename.lower()
    if host not in {"localhost", listen.host.lower(), node, node.partition(".")[0]} and not _is_address(host):
        abort(403, f"{host} is not a name of this host: use its IP address, or localhost.")


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
