"""Tokens for Amazon MSK with IAM: the presigned URL of a GET request, encoded in base64.

No program sends this request; the brokers only check its signature (AWS Signature Version 4). This module creates the
signature with the standard library, because the vendor's signer needs boto3 (34 MB).
"""

from __future__ import annotations

import os
import time
from base64 import urlsafe_b64encode
from typing import TYPE_CHECKING
from urllib.parse import quote

from bruce_mp import __version__
from bruce_mp.cli.tokens.aws_credentials import assume_role, find_credentials
from bruce_mp.cli.tokens.aws_signature import URL_LIFETIME_S, presigned_url
from bruce_mp.cli.tokens.issued_token import IssuedToken
from bruce_mp.errors import ConfigError

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace, _SubParsersAction

    from bruce_mp.cli.tokens.aws_signature import Credentials

__all__ = ["add_parser", "presigned_request"]


def add_parser(issuers: _SubParsersAction[ArgumentParser]) -> None:
    """Add the subcommand `aws-msk-iam`."""
    description = (
        "Create a token for Amazon MSK with IAM. Credentials come from the environment, a web identity (IRSA), the "
        "credentials file, the container (ECS, EKS Pod Identity), or the instance's role, in this order."
    )
    parser = issuers.add_parser("aws-msk-iam", help="Amazon MSK: access control by IAM", description=description)
    parser.add_argument("--region", help="region of the MSK cluster; default: $AWS_REGION or $AWS_DEFAULT_REGION")
    parser.add_argument("--profile", help="use only this profile of the credentials file; default: $AWS_PROFILE")
    help_text = "use only this credentials file; default: $AWS_SHARED_CREDENTIALS_FILE or ~/.aws/credentials"
    parser.add_argument("--credentials-file", metavar="FILE", help=help_text)
    parser.add_argument(
        "--role-arn", metavar="ARN", help="role to assume with the credentials, such as one of another account"
    )
    parser.set_defaults(issue=_issue)


def _issue(args: Namespace) -> IssuedToken:
    region = args.region or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    if not region:
        raise ConfigError("The region of the MSK cluster is not given. Add --region, such as --region eu-central-1.")
    if not region.replace("-", "").isalnum():
        raise ConfigError(f'"{region}" is not the name of a region. Give one such as --region eu-central-1.')
    credentials = find_credentials(region, args.profile, args.credentials_file)
    if args.role_arn:
        credentials = assume_role(args.role_arn, credentials, region)
    now_s = time.time()
    # The vendor's signer also adds the user agent after the signature, without signing it.
    url = f"{presigned_request(credentials, region, now_s)}&User-Agent={quote(f'bruce/{__version__}', safe='')}"
    lifetime_s = min(URL_LIFETIME_S, credentials.expiry_time_s - now_s)
    return IssuedToken(urlsafe_b64encode(url.encode()).decode().rstrip("="), lifetime_s)


def presigned_request(credentials: Credentials, region: str, now_s: float) -> str:
    """Return the presigned URL of a request to connect to a cluster; `now_s` is in seconds since the epoch."""
    url, parameters = f"https://kafka.{region}.amazonaws.com/", {"Action": "kafka-cluster:Connect"}
    return presigned_url(url, parameters, credentials, service="kafka-cluster", region=region, now_s=now_s)
