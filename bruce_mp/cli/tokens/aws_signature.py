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
"""The lifetime of each URL, in seconds: the longest that MSK brokers accept."""
_ALGORITHM: Final = "AWS4-HMAC-SHA256"
_HASH_OF_NO_BODY: Final = hashlib.sha256(b"").hexdigest()


class Credentials(msgspec.Struct):
    """A key pair; temporary credentials also have a session token and an expiration.

    The field names in JSON are those of AWS.
    """

    access_key_id: str = msgspec.field(name="AccessKeyId")
    secret_access_key: str = msgspec.field(name="SecretAccessKey")
    session_token: str = msgspec.field(default="", name="Token")
    expiration: datetime | None = msgspec.field(default=None, name="Expiration")

    @property
    def expiry_time_s(self) -> float:
        """The expiration in seconds since the epoch; infinite for permanent credentials."""
        return math.inf if self.expiration is None else self.expiration.timestamp()

    def __repr__(self) -> str:
        """Return a text without the secrets."""
        return f"Credentials({self.access_key_id!r})"


def presigned_url(
    url: str, parameters: Mapping[str, str], credentials: Credentials, *, service: str, region: str, now_s: float
) -> str:
    """Add a query with the parameters and their signature to `url`, which has no query, and return the result.

    `now_s` is the time of the signature, in seconds since the epoch.
    """
    parts = urlsplit(url)
    timestamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(now_s))
    scope = f"{timestamp[:8]}/{region}/{service}/aws4_request"
    signed_parameters = {
        **parameters,
        "X-Amz-Algorithm": _ALGORITHM,
        "X-Amz-Credential": f"{credentials.access_key_id}/{scope}",
        "X-Amz-Date": timestamp,
        "X-Amz-Expires": str(URL_LIFETIME_S),
        "X-Amz-SignedHeaders": "host",
    }
    if credentials.session_token:
        signed_parameters["X-Amz-Security-Token"] = credentials.session_token
    query = "&".join(f"{name}={quote(value, safe='-_.~')}" for name, value in sorted(signed_parameters.items()))
    canonical_request = f"GET\n{parts.path or '/'}\n{query}\nhost:{parts.netloc}\n\nhost\n{_HASH_OF_NO_BODY}"
    text_to_sign = f"{_ALGORITHM}\n{timestamp}\n{scope}\n{hashlib.sha256(canonical_request.encode()).hexdigest()}"
    key = f"AWS4{credentials.secret_access_key}".encode()
    for part in scope.split("/"):  # AWS derives the signing key through each part of the scope, in order
        key = hmac.digest(key, part.encode(), "sha256")
    return f"{url}?{query}&X-Amz-Signature={hmac.digest(key, text_to_sign.encode(), 'sha256').hex()}"
