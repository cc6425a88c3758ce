"""The exchange of RFC 4752 with a context of our own; `e2e/test_kerberos.py` has the real ones."""

from __future__ import annotations

import sys
from threading import Event, Thread
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

import pytest

from bruce_mp.config.security import Sasl
from bruce_mp.errors import RemoteProtocolError
from bruce_mp.network import kerberos
from bruce_mp.network.kerberos import GssapiExchange, Kerberos
from bruce_mp.protocol.kafka.sasl import LoginRefusedError

if TYPE_CHECKING:
    from pathlib import Path

NO_LAYER: Final = b"\1\0\0\0"


class SkewError(Exception):
    """A substitute of GSSError for a broker whose clock differs."""

    min_code = 2**32 - 1765328347

    def get_all_statuses(self, _code: int, _is_maj: bool) -> list[str]:
        return ["Clock skew too great"]


class Context:
    """A substitute of a context that is complete after `steps` answers, of which the last gives no token."""

    def __init__(self, steps: int) -> None:
        self._steps = steps

    @property
    def complete(self) -> bool:
        return self._steps == 0

    def step(self, challenge: bytes) -> bytes | None:
        if challenge == b"skewed":
            raise SkewError
        self._steps -= 1
        return None if self.complete else b"next"

    def unwrap(self, data: bytes) -> Any:
        return SimpleNamespace(message=data.removeprefix(b"wrapped:"))

    def wrap(self, data: bytes, *, encrypt: bool) -> Any:
        assert not encrypt
        return SimpleNamespace(message=b"wrapped:" + data)


def exchange(steps: int) -> GssapiExchange:
    return GssapiExchange(Context(steps), b"first", "bruce@REALM", SkewError)


@pytest.mark.parametrize("steps", [0, 1, 3])
def test_the_exchange_ends_with_the_choice_of_no_security_layer(steps: int) -> None:
    started = exchange(steps)
    assert started.start() == b"first"
    answers = [started.answer(b"challenge") for _ in range(steps)]
    assert answers == ([b"next"] * (steps - 1) + [b""] if steps else [])  # an empty token asks for the offer
    assert started.answer(b"wrapped:\7\0\1\0") == b"wrapped:" + NO_LAYER
    assert started.answer(b"") is None


def test_a_broker_that_requires_a_layer_is_explained() -> None:
    with pytest.raises(LoginRefusedError, match=r"Set sasl\.qop to auth on the brokers"):
        exchange(0).answer(b"wrapped:\6\0\1\0")


@pytest.mark.parametrize("offer", [b"", b"\1\0\0", b"\1\0\0\0\0"])
def test_an_invalid_offer_breaks_the_protocol(offer: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="bytes instead of 4"):
        exchange(0).answer(b"wrapped:" + offer)


def test_a_challenge_after_the_end_breaks_the_protocol() -> None:
    started = exchange(0)
    started.answer(b"wrapped:" + NO_LAYER)
    with pytest.raises(RemoteProtocolError, match="after the end"):
        started.answer(b"more")


def test_a_refusal_names_the_cause_and_the_remedy() -> None:
    with pytest.raises(LoginRefusedError) as caught:
        exchange(1).answer(b"skewed")
    assert str(caught.value) == (
        "Kerberos says: Clock skew too great. Set the clocks of this host, the KDC and the brokers."
    )


def test_a_request_does_not_wait_for_a_silent_kdc_of_an_earlier_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "gssapi", SimpleNamespace(exceptions=SimpleNamespace(GSSError=ValueError)))
    monkeypatch.setattr(kerberos, "_LOCK_TIMEOUT_S", 0.1)
    keytab = tmp_path / "keytab"
    keytab.touch()
    logins = Kerberos(Sasl(mechanism="GSSAPI", kerberos_principal="p", kerberos_keytab_file=str(keytab)))
    asked, answers = Event(), Event()

    def start(*_: object) -> None:
        asked.set()
        answers.wait(20)

    monkeypatch.setattr(logins, "_start_exchange", start)
    earlier = Thread(target=logins.try_start, args=("broker",), daemon=True)
    earlier.start()
    assert asked.wait(20)
    mechanism, reason = logins.try_start("broker")
    answers.set()
    earlier.join()
    assert (mechanism, "The KDC has not answered an earlier request" in reason) == (None, True)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "gssapi", None)
    sasl = Sasl(mechanism="GSSAPI", kerberos_principal="p", kerberos_keytab_file=str(tmp_path / "keytab"))
    mechanism, reason = Kerberos(sasl).try_start("broker")
    assert mechanism is None
    assert "The Python package gssapi is not installed. Install python3-gssapi" in reason
