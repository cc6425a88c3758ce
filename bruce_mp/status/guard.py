"""Who may change something by way of the pages.

Reading is open to whoever reaches the address.  A request that changes something is refused when a browser may have
been made to send it: by a page of another site, which the browser says (`Sec-Fetch-Site`, `Origin`), or by a name that
somebody else has pointed at this host (DNS rebinding), which shows in the `Host` header.  If a token is configured, it
has to be there as well.
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
from bruce_mp.pipes.credentials import read_secret

if TYPE_CHECKING:
    from bruce_mp.config.sections import Http

__all__ = ["guard"]

_FROM_ELSEWHERE: Final = frozenset({"cross-site", "same-site"})
_BEARER: Final = "Bearer "
_WHAT_IS_MISSING: Final = (
    "This needs the token that http.token_file or http.token_env names: Authorization: Bearer TOKEN"
)


def guard(config: Http) -> None:
    """Refuse the present request, which would change something, unless it may: aborts it with 403, 401 or 503."""
    _refuse_other_sites()
    if isinstance(config.address, HostPort):
        _refuse_other_names(config.address)
    _ask_for_token(config)


def _refuse_other_sites() -> None:
    origin = request.headers.get("Origin")
    is_foreign = origin is not None and _host_of(origin) != request.host.lower()
    if is_foreign or request.headers.get("Sec-Fetch-Site") in _FROM_ELSEWHERE:
        abort(403, "A page of another site may not ask for this.")


def _host_of(origin: str) -> str | None:
    """Host and port of an origin; None if it has none that makes sense."""
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return None


def _refuse_other_names(listen: HostPort) -> None:
    """Nobody can point an address, or a name of this host, elsewhere; browsers reach a UNIX socket in no way at all."""
    host = (urlsplit(f"//{request.host}").hostname or "").rstrip(".")
    node = os.uname().nodename.lower()
    if host not in {"localhost", listen.host.lower(), node, node.partition(".")[0]} and not _is_address(host):
        abort(403, f"This host is not known to itself as {host}: ask by its address, or as localhost.")


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def _ask_for_token(config: Http) -> None:
    try:
        token = read_secret(config.token_file, config.token_env, "The token for changes")
    except ConfigError as error:
        abort(503, f"Nobody can ask for this: {error}")
    if token is None:
        return
    given = request.headers.get("Authorization", "")
    if not given.startswith(_BEARER) or not _are_same(given.removeprefix(_BEARER).strip(), token):
        raise Unauthorized(_WHAT_IS_MISSING, www_authenticate=WWWAuthenticate("bearer", {"realm": "bruce"}))


def _are_same(given: str, token: str) -> bool:
    """In a time that tells nothing of where they differ."""
    return hmac.compare_digest(given.encode("latin-1", "replace"), token.encode())
