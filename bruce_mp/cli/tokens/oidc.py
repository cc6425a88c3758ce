"""Tokens of an OpenID Connect or OAuth server by the client credentials grant (RFC 6749, section 4.4)."""

from __future__ import annotations

from base64 import b64encode
from typing import TYPE_CHECKING, Final
from urllib.parse import quote_plus, urlencode

import msgspec

from bruce_mp.cli.tokens.https import request
from bruce_mp.cli.tokens.issued_token import IssuedToken, TokenError
from bruce_mp.errors import ConfigError
from bruce_mp.network.credentials import read_secret
from bruce_mp.network.token_command import TokenResponse, printable_text

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace, _SubParsersAction

    from bruce_mp.cli.tokens.https import HttpResponse

__all__ = ["add_parser"]

_ENDPOINT_NAME: Final = "The token endpoint"
_JWT_ASSERTION_TYPE: Final = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"  # RFC 7523, section 2.2
_REMEDIES: Final = {
    "invalid_client": "Check --client-id and the client's secret",
    "invalid_scope": "Check --scope",
    "unauthorized_client": "Allow the client the client credentials grant at the issuer",
    "unsupported_grant_type": "Check --token-url; this issuer has no client credentials grant there",
}


def add_parser(issuers: _SubParsersAction[ArgumentParser]) -> None:
    """Add the subcommand `oidc`."""
    description = "Get a token by the client credentials grant of OAuth 2 (RFC 6749)."
    parser = issuers.add_parser("oidc", help="OpenID Connect: client credentials", description=description)
    parser.add_argument(
        "--token-url", required=True, metavar="URL", help="the token endpoint of the issuer, with https"
    )
    parser.add_argument("--client-id", required=True, metavar="ID", help="the client's id")
    secret = parser.add_mutually_exclusive_group(required=True)
    secret.add_argument("--client-secret-file", metavar="FILE", help="file with the client's secret")
    secret.add_argument("--client-secret-env", metavar="NAME", help="environment variable with the client's secret")
    secret.add_argument(
        "--client-assertion-file", metavar="FILE", help="file with a signed token (RFC 7523) in place of a secret"
    )
    parser.add_argument("--scope", help="the scopes to request, with spaces between them")
    help_text = "further parameter of the request, such as audience=kafka; repeatable"
    parser.add_argument("--parameter", action="append", default=[], metavar="NAME=VALUE", help=help_text)
    parser.add_argument(
        "--client-auth", choices=("basic", "post"), default="basic",
        help="place of id and secret in the request: the header (basic, the default) or the form (post)",
    )  # fmt: skip
    parser.add_argument(
        "--ca-file", metavar="FILE", help="certificate authorities of the token endpoint, as PEM; default: the system's"
    )
    parser.set_defaults(issue=_issue)


def _issue(args: Namespace) -> IssuedToken:
    form = {"grant_type": "client_credentials", **_parameters(args.parameter)}
    if args.scope:
        form["scope"] = args.scope
    headers = {"Content-Type": "application/x-www-form-urlencoded", "Accept": "application/json"}
    # `or ""` is for the type checker: `read_secret` returns None only if it gets neither a file nor a variable.
    if args.client_assertion_file:
        secret = read_secret(args.client_assertion_file, None, "The client's assertion") or ""
        form |= {"client_id": args.client_id, "client_assertion_type": _JWT_ASSERTION_TYPE, "client_assertion": secret}
    else:
        secret = read_secret(args.client_secret_file, args.client_secret_env, "The client's secret") or ""
        if args.client_auth == "post":
            form |= {"client_id": args.client_id, "client_secret": secret}
        else:
            pair = f"{quote_plus(args.client_id)}:{quote_plus(secret)}"
            headers["Authorization"] = f"Basic {b64encode(pair.encode()).decode()}"
    data = urlencode(form).encode()
    response = request(_ENDPOINT_NAME, args.token_url, data=data, headers=headers, ca_file=args.ca_file)
    return _read_token(response, args.token_url, secret)


def _parameters(arguments: list[str]) -> dict[str, str]:
    """Return the value of each parameter by name. Raise ConfigError for an argument without a name or a `=`."""
    pairs = [argument.partition("=") for argument in arguments]
    for name, separator, _ in pairs:
        if not name or not separator:
            raise ConfigError(f"--parameter {name} is not of the form NAME=VALUE: give, for example, audience=kafka.")
    return {name: value for name, _, value in pairs}


def _read_token(response: HttpResponse, url: str, secret: str) -> IssuedToken:
    """Read the token from the response. Raise TokenError; its text omits the client's secret."""
    endpoint = f"{_ENDPOINT_NAME} ({url})"
    if 300 <= response.status < 400:
        text = f"{endpoint} redirects to another address (HTTP status {response.status}). Give that one as --token-url."
        raise TokenError("redirect", text)
    try:
        # Not strict about types, because some servers write `expires_in` as a string.
        content = msgspec.json.decode(response.body, type=TokenResponse, strict=False)
    except msgspec.MsgspecError:
        text = (
            f"{endpoint} answers with HTTP status {response.status}, but not with a token response. Check --token-url."
        )
        raise TokenError("invalid_response", text) from None  # the text of the cause may quote the response
    if content.error:
        code = printable_text(content.error)
        reason = printable_text(content.error_description.replace(secret, "(secret)")).rstrip(".")
        remedy = _REMEDIES.get(code, "Check the options, and the issuer's log")
        raise TokenError(code, f"{endpoint} refuses the client ({code}){f': {reason}' if reason else ''}. {remedy}.")
    if response.status != 200 or not content.access_token:
        text = f"{endpoint} answers with HTTP status {response.status} and without a token. Check --token-url."
        raise TokenError("invalid_response", text)
    return IssuedToken(content.access_token, content.expires_in)
