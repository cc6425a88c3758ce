"""URLs presigned for AWS: Signature Version 4 in the query of a GET request.

https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_sigv-create-signed-request.html
"""

from __future__ import annotations

import hashlib
import hmac
import math
import time
from datetime import datetime  # noqa: TC003 - msgspec evaluates the annotations
from typing import TYPE_CHECKING, Final
from urllib.parse import quote, urlsplit

import msgspec

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["URL_LIFETIME_S", "Credentials", "presigned_url"]

URL_LIFETIME_S: Final = 900
"""The longest lifetime of a URL that MSK brokers accept."""
_ALGORITHM: Final = "AWS4-HMAC-SHA256"
_HASH_OF_NO_BODY: Final = hashlib.sha256(b"").hexdigest()


class Credentials(msgspec.Struct):
    """A key pair, and for temporary credentials also a session token and an expiry.

    The JSON names are those in the responses of AWS.
    """

    access_key_id: str = msgspec.field(name="AccessKeyId")
    secret_access_key: str = msgspec.field(name="SecretAccessKey")
    session_token: str = msgspec.field(default="", name="Token")
    expiration: datetime | None = msgspec.field(default=None, name="Expiration")

    @property
    def expires_s(self) -> float:
        """The expiry in seconds since the epoch; infinite for permanent credentials."""
        return math.inf if self.expiration is None else self.expiration.timestamp()

    def __repr__(self) -> str:
        """Return a text without the secrets."""
        return f"Credentials({self.access_key_id!r})"


def presigned_url(
    url: str, parameters: Mapping[str, str], credentials: Credentials, *, service: str, region: str, now_s: float
) -> str:
    """Return `url` with a query that consists of the parameters and their signature.

    The given `url` has no query. `now_s`, the time of the signature, is in seconds since the epoch.
    """
    parts = urlsplit(url)
    timestamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(now_s))
    scope = f"{timestamp[:8]}/{region}/{service}/aws4_request"
    signed = {
        **parameters,
        "X-Amz-Algorithm": _ALGORITHM,
        "X-Amz-Credential": f"{credentials.access_key_id}/{scope}",
        "X-Amz-Date": timestamp,
        "X-Amz-Expires": str(URL_LIFETIME_S),
        "X-Amz-SignedHeaders": "host",
    }
    if credentials.session_token:
        signed["X-Amz-Security-Token"] = credentials.session_token
    query = "&".join(f"{name}={quote(value, safe='-_.~')}" for name, value in sorted(signed.items()))
    canonical_request = f"GET\n{parts.path or '/'}\n{query}\nhost:{parts.netloc}\n\nhost\n{_HASH_OF_NO_BODY}"
    to_sign = f"{_ALGORITHM}\n{timestamp}\n{scope}\n{hashlib.sha256(canonical_request.encode()).hexdigest()}"
    key = f"AWS4{credentials.secret_access_key}".encode()
    for part in scope.split("/"):  # AWS derives the signing key through each part of the scope, in order
        key = hmac.digest(key, part.encode(), "sha256")
    return f"{url}?{query}&X-Amz-Signature={hmac.digest(key, to_sign.encode(), 'sha256').hex()}"
