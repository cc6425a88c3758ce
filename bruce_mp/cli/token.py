"""`bruce token`: get a token for the login mechanism OAUTHBEARER; a program for `kafka.sasl.token_command`.

The command writes a token response or an error response to standard output, in the format of a token endpoint (RFC
6749, section 5), and the daemon reads it. An error also goes to standard error, as a sentence. It contains no secret.

Exit status: 0 with a token, else 1.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from bruce_mp.cli.options import command_parser
from bruce_mp.cli.tokens import aws_msk_iam, oidc
from bruce_mp.cli.tokens.issued_token import TokenError
from bruce_mp.errors import ConfigError, ExitCode

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["main"]


def main(argv: Sequence[str]) -> int:
    parser = command_parser(
        "token", "Get a token for the login at the brokers, as the program of kafka.sasl.token_command.", __doc__
    )
    issuers = parser.add_subparsers(metavar="ISSUER", required=True, help="the kind of server that issues the token")
    oidc.add_parser(issuers)
    aws_msk_iam.add_parser(issuers)
    args = parser.parse_args(argv)
    try:
        token = args.issue(args)
    except (TokenError, ConfigError) as error:
        code = error.code if isinstance(error, TokenError) else "invalid_configuration"
        print(json.dumps({"error": code, "error_description": str(error)}), flush=True)
        raise
    response = {"access_token": token.text, "token_type": "Bearer"}
    if token.lifetime_s is not None:
        response["expires_in"] = int(token.lifetime_s)
    print(json.dumps(response))
    return ExitCode.OK
