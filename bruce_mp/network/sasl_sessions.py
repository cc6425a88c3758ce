"""Supply a new SASL exchange for each login, with the credentials that are valid at that time.

Several logins share a token from `kafka.sasl.token_command`. The first login after 80% of the token's lifetime, or
after a broker has refused the token, runs the command again. If the command fails, a token that was not refused stays
in use until it expires. A token without an expiry time is used only for the logins that waited for the command.
"""

from __future__ import annotations

import logging
import secrets
import time
from functools import partial
from typing import TYPE_CHECKING, Final

from bruce_mp.errors import ConfigError
from bruce_mp.network.credentials import read_secret
from bruce_mp.network.kerberos import Kerberos
from bruce_mp.network.token_command import BearerToken, decode_token, run_token_command
from bruce_mp.protocol.kafka.sasl import OAuthBearer, Plain
from bruce_mp.protocol.kafka.scram import Scram

if TYPE_CHECKING:
    from collections.abc import Callable

    from bruce_mp.config.security import Sasl
    from bruce_mp.ipc.loop import Loop
    from bruce_mp.protocol.kafka.sasl import Mechanism

    OnMechanism = Callable[[Mechanism | None, str], None]

__all__ = ["SaslSessions"]

log = logging.getLogger(__name__)
_RENEWAL_FRACTION: Final = 0.8
"""Fraction of a token's lifetime after which the token command runs again."""
_NO_TOKEN: Final = BearerToken("", 0.0)


class SaslSessions:
    """The source of SASL exchanges for the connections of one loop; each exchange is a `Mechanism` object."""

    def __init__(self, sasl: Sasl, loop: Loop) -> None:
        self._sasl = sasl
        self._loop = loop
        self._token_waiters: list[OnMechanism] = []
        """Callbacks of the logins that wait for the running token command; empty if it does not run."""
        self._token = _NO_TOKEN
        self._renewal_time_s = self._expiry_time_s = 0.0
        """The token's renewal and expiry, in seconds since the epoch."""
        self._kerberos = Kerberos(sasl)

    def request(self, host: str, callback: OnMechanism) -> None:
        """Call `callback(mechanism, "")` or `callback(None, reason)` for a login at the broker on `host`.

        The loop makes the call later if the token command must run, if the mechanism is GSSAPI, or if credentials are
        not available. Otherwise the call comes before `request` returns.
        """
        if self._sasl.mechanism == "GSSAPI":
            start = partial(self._kerberos.try_start, host)  # in a thread, because it may ask the KDC over the network
            self._loop.call_in_thread(f"kerberos-{host}", start, lambda result: callback(*result))
        elif self._sasl.token_command is not None and time.time() >= self._renewal_time_s:
            self._run_token_command(self._sasl.token_command, callback)
        else:
            self._supply(callback)

    def _supply(self, callback: OnMechanism) -> None:
        try:
            mechanism = self._create_mechanism()
        except ConfigError as error:
            reason = str(error)
            self._loop.call_later(0, lambda: callback(None, reason))
            return
        callback(mechanism, "")

    def on_refused(self) -> None:
        """Treat the cached token as expired and discard the Kerberos tickets, because a broker refused a login."""
        self._renewal_time_s = self._expiry_time_s = 0.0
        self._kerberos.on_refused()

    def _create_mechanism(self) -> Mechanism:
        sasl = self._sasl
        if sasl.mechanism == "OAUTHBEARER":
            token = self._token.text or read_secret(sasl.token_file, None, "The token") or ""
            return self._create_bearer(token.strip())
        password = read_secret(sasl.password_file, sasl.password_env, "The password") or ""
        assert sasl.mechanism is not None
        assert sasl.username is not None
        if sasl.mechanism != "PLAIN":
            return Scram(sasl.mechanism, sasl.username, password, secrets.token_urlsafe(24))
        try:
            return Plain(sasl.username, password)
        except ValueError as error:
            raise ConfigError(f"The password cannot be used: {error}.") from None

    def _create_bearer(self, token: str) -> OAuthBearer:
        try:
            return OAuthBearer(token, self._sasl.extensions)
        except ValueError as error:
            raise ConfigError(f"The token cannot be used: {error}.") from None

    # --- tokens of the token command ---------------------------------------------------------------------------------

    def _run_token_command(self, command: tuple[str, ...], callback: OnMechanism) -> None:
        """Run the token command for `callback`, or let `callback` share the present run."""
        self._token_waiters.append(callback)
        if len(self._token_waiters) == 1:
            run = partial(run_token_command, command)
            self._loop.call_in_thread("token-command", run, lambda result: self._on_output(command[0], *result))

    def _on_output(self, program: str, output: str, exit_error: str) -> None:
        callbacks, self._token_waiters = self._token_waiters, []
        now_s = time.time()
        try:
            self._token = decode_token(output, exit_error, now_s)
        except ConfigError as error:
            reason = f"kafka.sasl.token_command ({program}) {error}"
            if now_s >= self._expiry_time_s:
                for callback in callbacks:
                    callback(None, reason)
                return
            log.warning("%s The present token stays in use for %.0f s.", reason, self._expiry_time_s - now_s)
        else:
            self._renewal_time_s = now_s + _RENEWAL_FRACTION * self._token.lifetime_s
            self._expiry_time_s = now_s + self._token.lifetime_s
        for callback in callbacks:
            self._supply(callback)
