"""The client side of the SASL mechanism SCRAM, which proves that the client knows the password without sending it.

The broker, too, must prove that it knows the password.  The broker chooses how often the password is hashed: the number
of iterations.  The client refuses fewer than MIN_ITERATIONS, because then an eavesdropper could find the password by
comparing guesses with the client's proof.  The client refuses more than MAX_ITERATIONS, because they would block the
process for seconds.  Only processes that use SCRAM import this module, because it loads OpenSSL's hashes.

RFC 5802 and 7677.  As in Kafka, names and passwords are not normalized by SASLprep.
"""

from __future__ import annotations

import binascii
import hashlib
import hmac
import re
from base64 import b64decode, b64encode
from typing import TYPE_CHECKING, Final

from bruce_mp.errors import RemoteProtocolError
from bruce_mp.protocol.kafka.sasl import NO_CHANNEL_BINDING, LoginRefusedError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["MAX_ITERATIONS", "MIN_ITERATIONS", "SCRAM_HASHES", "Scram"]

SCRAM_HASHES: Final[Mapping[str, str]] = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
MIN_ITERATIONS: Final = 4096  # RFC 5802 and 7677; also Kafka's default
MAX_ITERATIONS: Final = 500_000
# The broker's messages, as in RFC 5802.  r: nonce, s: salt, i: number of iterations, v: the broker's proof, e: error
_SERVER_FIRST: Final = re.compile(rb"r=([!-+\--~]+),s=([A-Za-z0-9+/=]+),i=([1-9][0-9]{0,9})(?:,.*)?", re.DOTALL)
_SERVER_FINAL: Final = re.compile(rb"v=([A-Za-z0-9+/=]+)(?:,.*)?", re.DOTALL)
_SERVER_ERROR: Final = re.compile(rb"e=([^,]*)(?:,.*)?", re.DOTALL)


class Scram:
    """One SCRAM exchange.  `nonce` must be printable, without a comma, and unique to the exchange."""

    def __init__(self, name: str, user: str, password: str, nonce: str) -> None:
        self.name = name
        self._hash_name = SCRAM_HASHES[name]
        self._password = password.encode()
        self._nonce = nonce.encode()
        escaped = user.replace("=", "=3D").replace(",", "=2C")
        self._client_first = b"n=%s,r=%s" % (escaped.encode(), self._nonce)
        self._server_signature: bytes | None = None
        """The proof that the broker must send; None before the broker's first message."""
        self.identity = f'user "{user}" by {name}'

    def start(self) -> bytes:
        """Return the client's first message, with user name and nonce."""
        return NO_CHANNEL_BINDING + self._client_first

    def answer(self, challenge: bytes) -> bytes | None:
        """Return the client's proof at the first call; at the second call, check the broker's proof and return None."""
        if self._server_signature is None:
            return self._prove(challenge)
        self._check_server(challenge, self._server_signature)
        return None

    def _prove(self, challenge: bytes) -> bytes:
        """Return the client's last message, with the proof, and compute the proof that the broker must send.

        The names are those of RFC 5802, section 3.
        """
        nonce, salt, iterations = self._read_first(challenge)
        salted = hashlib.pbkdf2_hmac(self._hash_name, self._password, salt, iterations)
        final = b"c=%s,r=%s" % (b64encode(NO_CHANNEL_BINDING), nonce)
        auth_message = b",".join((self._client_first, challenge, final))
        client_key = self._hmac(salted, b"Client Key")
        signature = self._hmac(hashlib.new(self._hash_name, client_key).digest(), auth_message)
        proof = bytes(one ^ other for one, other in zip(client_key, signature, strict=True))
        self._server_signature = self._hmac(self._hmac(salted, b"Server Key"), auth_message)
        return b"%s,p=%s" % (final, b64encode(proof))

    def _read_first(self, challenge: bytes) -> tuple[bytes, bytes, int]:
        """Parse and check the broker's first message; return nonce, salt and number of iterations."""
        found = _SERVER_FIRST.fullmatch(challenge)
        if found is None:
            _raise_server_error(challenge)
            raise RemoteProtocolError(f"Its first message does not follow {self.name}.")
        nonce, salt, iterations = found[1], _unbase64(found[2]), int(found[3])
        if not nonce.startswith(self._nonce) or nonce == self._nonce:  # the broker must extend the client's nonce
            raise LoginRefusedError("It answers another login; this may be a replay of a recorded one.")
        if not MIN_ITERATIONS <= iterations <= MAX_ITERATIONS:
            raise LoginRefusedError(
                f"It requests {iterations} iterations of the hash; {MIN_ITERATIONS} to {MAX_ITERATIONS} are allowed. "
                "Set the user's password again on the brokers."
            )
        return nonce, salt, iterations

    def _check_server(self, challenge: bytes, expected: bytes) -> None:
        """Check the proof in the broker's last message; raise LoginRefusedError if it is not `expected`."""
        found = _SERVER_FINAL.fullmatch(challenge)
        if found is None:
            _raise_server_error(challenge)
            raise RemoteProtocolError(f"Its last message does not follow {self.name}.")
        if not hmac.compare_digest(_unbase64(found[1]), expected):
            raise LoginRefusedError("It did not prove that it knows the password itself; it may be an impostor.")

    def _hmac(self, key: bytes, data: bytes) -> bytes:
        return hmac.digest(key, data, self._hash_name)


def _unbase64(text: bytes) -> bytes:
    try:
        return b64decode(text, validate=True)
    except binascii.Error as error:
        raise RemoteProtocolError("Its answer to the login has a field that is not base64.") from error


def _raise_server_error(challenge: bytes) -> None:
    """Raise LoginRefusedError if the broker's message reports an error."""
    if found := _SERVER_ERROR.fullmatch(challenge):
        raise LoginRefusedError(f"It says: {found[1].decode(errors='backslashreplace')[:200]}.")
