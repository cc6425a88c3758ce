"""Supply a new SASL exchange for each login, with the credentials of that moment.

Several logins share a token from `token_command`. The command runs again after four fifths of the token's life. A token
without an expiry time (a JWT has one) is used for one login.
"""

from __future__ import annotations

import binascii
import secrets
import time
from base64 import urlsafe_b64decode
from typing import TYPE_CHECKING, Final

import msgspec

from bruce_mp.errors import ConfigError
from bruce_mp.network.credentials import read_secret
from bruce_mp.network.token_command import TokenCommand
from bruce_mp.protocol.kafka.sasl import OAuthBearer, Plain
from bruce_mp.protocol.kafka.scram import Scram

if TYPE_CHECKING:
    from collections.abc import Callable

    from bruce_mp.config.security import Sasl
    from bruce_mp.ipc.loop import Loop
    from bruce_mp.protocol.kafka.sasl import Mechanism

__all__ = ["SaslSessions"]

_RENEWAL_SHARE: Final = 0.8
"""Fraction of a token's lifetime after which the daemon asks for the next one."""


class _Claims(msgspec.Struct):
    exp: float


class SaslSessions:
    """The factory of SASL exchanges for the connections of one loop."""

    def __init__(self, sasl: Sasl, loop: Loop) -> None:
        self._sasl = sasl
        self._loop = loop
        self._callbacks: list[Callable[[Mechanism | None, str], None]] = []
        self._token = ""
        self._token_valid_until_s = 0.0

    def request(self, callback: Callable[[Mechanism | None, str], None]) -> None:
        """Call `callback(mechanism, "")` or `callback(None, reason)`.

        The call comes from the loop if the token command runs or the credentials are not available.
        """
        if self._sasl.token_command is not None and time.time() >= self._token_valid_until_s:
            self._run_token_command(self._sasl.token_command, callback)
            return
        try:
            mechanism = self._create_mechanism()
        except ConfigError as error:
            reason = str(error)
            self._loop.call_later(0, lambda: callback(None, reason))
            return
        callback(mechanism, "")

    def _create_mechanism(self) -> Mechanism:
        sasl = self._sasl
        if sasl.mechanism == "OAUTHBEARER":
            return _bearer(self._token or read_secret(sasl.token_file, None, "The token") or "")
        password = read_secret(sasl.password_file, sasl.password_env, "The password") or ""
        assert sasl.mechanism is not None
        assert sasl.username is not None
        if sasl.mechanism != "PLAIN":
            return Scram(sasl.mechanism, sasl.username, password, secrets.token_urlsafe(24))
        try:
            return Plain(sasl.username, password)
        except ValueError as error:
            raise ConfigError(f"The password cannot be used: {error}.") from None

    # --- tokens of a program -----------------------------------------------------------------------------------------

    def _run_token_command(self, command: tuple[str, ...], callback: Callable[[Mechanism | None, str], None]) -> None:
        self._callbacks.append(callback)
        if len(self._callbacks) == 1:
            TokenCommand(self._loop, command, self._on_token).start()

    def _on_token(self, token: str, error: str) -> None:
        if not error:
            self._token = token
            now_s = time.time()
            self._token_valid_until_s = now_s + _RENEWAL_SHARE * max(0.0, _expiry_of(token) - now_s)
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback(*self._try_bearer(token, error))

    def _try_bearer(self, token: str, error: str) -> tuple[Mechanism | None, str]:
        if error:
            return None, error
        try:
            return _bearer(token), ""
        except ConfigError as invalid:
            return None, str(invalid)


def _bearer(token: str) -> OAuthBearer:
    try:
        return OAuthBearer(token.strip())
    except ValueError as error:
        raise ConfigError(f"The token cannot be used: {error}.") from None


def _expiry_of(token: str) -> float:
    """Return the expiry of a token in seconds since the epoch, 0 if the token does not state one."""
    parts = token.split(".")
    if len(parts) != 3:
        return 0.0
    try:
        return msgspec.json.decode(urlsafe_b64decode(parts[1] + "=="), type=_Claims).exp
    except (binascii.Error, msgspec.MsgspecError, ValueError):
        return 0.0
