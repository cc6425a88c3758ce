"""Tokens for Amazon MSK with IAM: the presigned URL of an imaginary GET request, encoded in base64.

The brokers check the signature (AWS Signature Version 4) as if the request were sent. This module signs with the
standard library, because the vendor's signer needs boto3 (34 MB).
"""

from __future__ import annotations

import hashlib
import hmac
import os
import time
from base64 import urlsafe_b64encode
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from bruce_mp import __version__
from bruce_mp.cli.tokens.aws_credentials import find_credentials
from bruce_mp.cli.tokens.issued_token import IssuedToken
from bruce_mp.errors import ConfigError

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace, _SubParsersAction

    from bruce_mp.cli.tokens.aws_credentials import Credentials

__all__ = ["add_parser", "presigned_url"]

LIFETIME_S: Final = 900
"""The longest lifetime that the brokers accept."""
_SERVICE: Final = "kafka-cluster"
_ALGORITHM: Final = "AWS4-HMAC-SHA256"
_EMPTY_HASH: Final = hashlib.sha256(b"").hexdigest()


def add_parser(issuers: _SubParsersAction[ArgumentParser]) -> None:
    """Add the subcommand `aws-msk-iam`."""
    description = (
        "Sign a token for Amazon MSK. Credentials come from the environment, a web identity (IRSA), the credentials "
        "file, the container (ECS, EKS Pod Identity), or the instance's role, in this order."
    )
    parser = issuers.add_parser("aws-msk-iam", help="Amazon MSK: access control by IAM", description=description)
    parser.add_argument("--region", help="the cluster's region; else $AWS_REGION or $AWS_DEFAULT_REGION")
    parser.add_argument("--profile", help="only this profile of the credentials file; else $AWS_PROFILE")
    parser.add_argument(
        "--credentials-file", metavar="FILE", help="else $AWS_SHARED_CREDENTIALS_FILE, or .aws/credentials"
    )
    parser.set_defaults(issue=_issue)


def _issue(args: Namespace) -> IssuedToken:
    region = args.region or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    if not region or not region.replace("-", "").isalnum():
        raise ConfigError("The region of the MSK cluster is not given. Add --region, such as --region eu-central-1.")
    credentials = find_credentials(region, args.profile, args.credentials_file)
    now_s = time.time()
    url = f"{presigned_url(credentials, region, now_s)}&User-Agent={quote(f'bruce/{__version__}', safe='')}"
    lifetime_s = min(LIFETIME_S, credentials.expires_s - now_s)
    return IssuedToken(urlsafe_b64encode(url.encode()).decode().rstrip("="), lifetime_s)


def presigned_url(credentials: Credentials, region: str, now_s: float) -> str:
    """Return the URL that carries the signature in its query."""
    host = f"kafka.{region}.amazonaws.com"
    timestamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(now_s))
    scope = f"{timestamp[:8]}/{region}/{_SERVICE}/aws4_request"
    parameters = {
        "Action": "kafka-cluster:Connect",
        "X-Amz-Algorithm": _ALGORITHM,
        "X-Amz-Credential": f"{credentials.access_key_id}/{scope}",
        "X-Amz-Date": timestamp,
        "X-Amz-Expires": str(LIFETIME_S),
        "X-Amz-SignedHeaders": "host",
    }
    if credentials.session_token:
        parameters["X-Amz-Security-Token"] = credentials.session_token
    query = "&".join(f"{name}={quote(value, safe='-_.~')}" for name, value in sorted(parameters.items()))
    canonical = f"GET\n/\n{query}\nhost:{host}\n\nhost\n{_EMPTY_HASH}"
    to_sign = f"{_ALGORITHM}\n{timestamp}\n{scope}\n{hashlib.sha256(canonical.encode()).hexdigest()}"
    key = f"AWS4{credentials.secret_access_key}".encode()
    for part in scope.split("/"):
        key = hmac.digest(key, part.encode(), "sha256")
    return f"https://{host}/?{query}&X-Amz-Signature={hmac.digest(key, to_sign.encode(), 'sha256').hex()}"
