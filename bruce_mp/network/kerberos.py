"""Log in by Kerberos: the SASL mechanism GSSAPI (RFC 4752) with a principal and its key from a keytab file.

The C library libkrb5 does the work; the Python package `gssapi` calls it. With the key, libkrb5 gets a ticket-granting
ticket from a key distribution center (KDC), and replaces it after half of its lifetime. `/etc/krb5.conf` (or
`$KRB5_CONFIG`) names the KDCs. Each broker has its own cache of tickets in memory, so that a login at one broker does
not wait for the ticket for another broker.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from itertools import count
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, Final

from bruce_mp.errors import RemoteProtocolError
from bruce_mp.protocol.kafka.sasl import LoginRefusedError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from bruce_mp.config.security import Sasl
    from bruce_mp.protocol.kafka.sasl import Mechanism

__all__ = ["GssapiExchange", "Kerberos"]

_NO_SECURITY_LAYER: Final = 1
"""The bit for connections that GSSAPI neither signs nor encrypts. Kafka supports no others, and leaves both to TLS."""
_NO_PACKAGE: Final = (
    "The Python package gssapi is not installed. Install python3-gssapi if bruce was installed as a Debian or RPM "
    "package; otherwise install bruce's extra kerberos with pip."
)
_KRB5_BASE: Final = 2**32 - 1765328384
"""The first of libkrb5's error numbers. It is negative in krb5.h (ERROR_TABLE_BASE_krb5); GSSAPI gives the same bits
as an unsigned number."""
_OUTDATED_KEY: Final = "The keytab has an old key of the principal: export the keytab again"
_NO_KDC: Final = "Check the KDC, and the firewalls between this host and it"
_NO_REALM: Final = "Correct the realm of kafka.sasl.kerberos_principal, or add the realm's KDC to /etc/krb5.conf"
_REMEDIES: Final[Mapping[int, str]] = {
    # KDC_ERR_C_PRINCIPAL_UNKNOWN: the client's principal is unknown
    _KRB5_BASE + 6: "Create the principal at the KDC, or correct kafka.sasl.kerberos_principal",
    # KDC_ERR_S_PRINCIPAL_UNKNOWN: the server's principal is unknown
    _KRB5_BASE + 7: (
        "Create the broker's principal at the KDC, name the broker in advertised.listeners as its principal does, or "
        "correct kafka.sasl.kerberos_service_name"
    ),
    _KRB5_BASE + 24: _OUTDATED_KEY,  # KDC_ERR_PREAUTH_FAILED
    _KRB5_BASE + 31: _OUTDATED_KEY,  # KRB_AP_ERR_BAD_INTEGRITY: if the KDC uses no preauthentication
    _KRB5_BASE + 37: "Set the clocks of this host, the KDC and the brokers",  # KRB_AP_ERR_SKEW
    _KRB5_BASE + 154: _NO_REALM,  # KRB5_REALM_UNKNOWN
    _KRB5_BASE + 156: _NO_KDC,  # KRB5_KDC_UNREACH
    _KRB5_BASE + 220: _NO_REALM,  # KRB5_REALM_CANT_RESOLVE
}
_NO_KEY: Final = _KRB5_BASE + 195
"""KRB5_FCC_NOFILE: there is no cache of tickets, because libkrb5 found no key of the principal in the keytab."""
_DISCARD_INTERVAL_S: Final = 600.0
"""The shortest time between two discards of tickets. It limits the memory that is lost, because libkrb5 never frees a
discarded cache."""
_LOCK_TIMEOUT_S: Final = 10.0
"""The longest wait of a login until an earlier login at the same broker has its ticket. It bounds the number of waiting
threads while the KDC does not respond."""
_CACHE_NUMBERS: Final = count(1)
"""Numbers that make the names of ticket caches unique, because all caches of a process share one namespace."""


class GssapiExchange:
    """One SASL exchange. `context` is a client's `gssapi.SecurityContext` that has produced `first_token`.

    `error_type` is `gssapi`'s `GSSError`; it is a parameter, because only `Kerberos.try_start` imports `gssapi`.
    """

    name: Final = "GSSAPI"

    def __init__(self, context: Any, first_token: bytes, principal: str, error_type: type[Exception]) -> None:
        self._context = context
        self._error_type = error_type
        self._first_token = first_token
        self._has_chosen_layer = False
        self.identity = f'principal "{principal}" by GSSAPI'

    def start(self) -> bytes:
        """Return the first token, which contains the ticket for the broker."""
        return self._first_token

    def answer(self, challenge: bytes) -> bytes | None:
        """Return the next token; None once the login is complete.

        The tokens come from the GSSAPI context until it is complete. One more token then tells the broker that the
        client chooses no security layer.
        """
        if self._has_chosen_layer:
            if challenge:
                raise RemoteProtocolError("The broker sent a challenge after the end of the GSSAPI exchange.")
            return None
        try:
            return self._choose_layer(challenge) if self._context.complete else self._context.step(challenge) or b""
        except self._error_type as error:
            raise LoginRefusedError(_explain(error)) from error

    def _choose_layer(self, challenge: bytes) -> bytes:
        """Choose no security layer from the broker's offer.

        An offer has one byte with a bit for each layer, and three bytes with the maximum length of a message.
        """
        offer = self._context.unwrap(challenge).message
        if len(offer) != 4:
            raise RemoteProtocolError(f"The broker's GSSAPI offer has {len(offer)} bytes instead of 4.")
        if not offer[0] & _NO_SECURITY_LAYER:
            raise LoginRefusedError("The broker requires a GSSAPI security layer. Set sasl.qop to auth on the brokers.")
        self._has_chosen_layer = True
        choice: bytes = self._context.wrap(bytes([_NO_SECURITY_LAYER, 0, 0, 0]), encrypt=False).message
        return choice


class Kerberos:
    """The source of GSSAPI exchanges, with the tickets of the principal in `[kafka.sasl]`."""

    def __init__(self, sasl: Sasl) -> None:
        self._sasl = sasl
        self._principal = sasl.kerberos_principal or ""
        self._keytab = Path(sasl.kerberos_keytab_file or "")
        self._cache_number = next(_CACHE_NUMBERS)
        self._discard_time_s = -math.inf
        # One lock for each broker's host, and so for each cache: libkrb5 replaces a cache's tickets in two steps, and
        # another thread must not read the cache between them.
        self._locks: defaultdict[str, Lock] = defaultdict(Lock)

    def on_refused(self) -> None:
        """Discard all tickets after a broker refused one, because a ticket becomes invalid if the broker's key changes.

        New cache names make libkrb5 request new tickets.
        """
        now_s = time.monotonic()
        if now_s - self._discard_time_s >= _DISCARD_INTERVAL_S:
            self._cache_number, self._discard_time_s = next(_CACHE_NUMBERS), now_s

    def try_start(self, host: str) -> tuple[Mechanism | None, str]:
        """Return (exchange with the broker on `host`, "") or (None, reason). Blocks while libkrb5 asks the KDC."""
        try:
            import gssapi  # noqa: PLC0415 - the extra may be missing, and can be installed while the daemon runs
        except ImportError:
            return None, _NO_PACKAGE
        try:
            with self._keytab.open("rb"):
                pass  # only a check: libkrb5 itself does not say why it cannot read a keytab
        except OSError as error:
            remedy = "Export the keytab to this path, and make the daemon's user its owner"
            return None, f"The keytab {self._keytab} cannot be read: {error.strerror}. {remedy}."
        try:
            if not self._locks[host].acquire(timeout=_LOCK_TIMEOUT_S):
                return None, f"The KDC has not answered an earlier request for {_LOCK_TIMEOUT_S:g} s. {_NO_KDC}."
            try:
                return self._start_exchange(gssapi, host), ""
            finally:
                self._locks[host].release()
        except gssapi.exceptions.GSSError as error:
            if error.min_code == _NO_KEY:
                return None, f"The keytab {self._keytab} has no key of principal {self._principal}. Export it again."
            service = f"{self._sasl.kerberos_service_name}/{host}"
            return None, f"There is no ticket of principal {self._principal} for {service}. {_explain(error)}"

    def _start_exchange(self, gssapi: Any, host: str) -> GssapiExchange:
        credentials = gssapi.Credentials(
            name=gssapi.Name(self._principal, gssapi.NameType.kerberos_principal),
            usage="initiate",
            store={"client_keytab": f"FILE:{self._keytab}", "ccache": f"MEMORY:bruce-{self._cache_number}-{host}"},
        )
        context = gssapi.SecurityContext(
            name=gssapi.Name(f"{self._sasl.kerberos_service_name}@{host}", gssapi.NameType.hostbased_service),
            creds=credentials,
            usage="initiate",
            mech=gssapi.MechType.kerberos,
            flags=gssapi.RequirementFlag.mutual_authentication | gssapi.RequirementFlag.integrity,
        )
        return GssapiExchange(context, context.step() or b"", self._principal, gssapi.exceptions.GSSError)


def _explain(error: Any) -> str:
    """Return libkrb5's text of the error as a sentence, and a sentence with the remedy."""
    cause = " ".join(error.get_all_statuses(error.min_code, False)) or str(error)
    remedy = _REMEDIES.get(error.min_code, "Check kafka.sasl, /etc/krb5.conf and the KDC's log")
    return f"Kerberos says: {cause.rstrip('.')}. {remedy}."
