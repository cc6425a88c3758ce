"""An issuer of tokens that a broker verifies: JWTs signed by RS256, and the JSON web key set with the public key."""

from __future__ import annotations

import json
import subprocess
import time
from base64 import urlsafe_b64encode
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["AUDIENCE", "ISSUER", "TokenIssuer", "unsigned_token"]

ISSUER: Final = "https://issuer.example"
AUDIENCE: Final = "kafka"
_EXPONENT: Final = 65537
_BITS: Final = 2048


class TokenIssuer:
    """A key, with its files in `directory`."""

    def __init__(self, directory: Path, name: str = "issuer") -> None:
        self._key = directory / f"{name}.key"
        self.key_set = directory / f"{name}.jwks.json"
        _openssl("genpkey", "-algorithm", "RSA", "-pkeyopt", f"rsa_keygen_bits:{_BITS}", "-out", self._key)
        modulus = _openssl("rsa", "-in", self._key, "-noout", "-modulus").decode().partition("=")[2]
        key = {
            "kty": "RSA",
            "alg": "RS256",
            "use": "sig",
            "kid": "key-1",
            "n": _base64(bytes.fromhex(modulus.strip())),
            "e": _base64(_EXPONENT.to_bytes(3, "big")),
        }
        self.key_set.write_text(json.dumps({"keys": [key]}))

    def token(self, subject: str, lifetime_s: float = 3600, audience: str = AUDIENCE) -> str:
        """Return a signed token."""
        claims = {**_claims(subject, lifetime_s), "iss": ISSUER, "aud": audience}
        signed = f"{_encode({'alg': 'RS256', 'kid': 'key-1'})}.{_encode(claims)}"
        return f"{signed}.{_base64(_openssl('dgst', '-sha256', '-sign', self._key, given=signed.encode()))}"


def unsigned_token(subject: str, lifetime_s: float = 3600) -> str:
    """Return a JWT that Kafka's validator for development accepts."""
    return f"{_encode({'alg': 'none'})}.{_encode(_claims(subject, lifetime_s))}."


def _claims(subject: str, lifetime_s: float) -> dict[str, Any]:
    now = time.time()
    return {"sub": subject, "iat": now - 1, "exp": now + lifetime_s}


def _encode(value: dict[str, Any]) -> str:
    return _base64(json.dumps(value).encode())


def _base64(data: bytes) -> str:
    return urlsafe_b64encode(data).decode().rstrip("=")


def _openssl(*words: str | Path, given: bytes = b"") -> bytes:
    done = subprocess.run(["openssl", *map(str, words)], input=given, capture_output=True, timeout=60, check=True)
    return done.stdout
