"""SASL exchanges: the vectors of the RFCs, a server of our own, and every message that a broker may not send."""

from __future__ import annotations

import hashlib
import hmac
from base64 import b64decode, b64encode
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bruce_mp.errors import RemoteProtocolError
from bruce_mp.protocol.kafka.sasl import LoginRefusedError, Mechanism, OAuthBearer, Plain
from bruce_mp.protocol.kafka.scram import MAX_ITERATIONS, MIN_ITERATIONS, SCRAM_HASHES, Scram

# RFC 7677, section 3
NONCE: Final = "rOprNGfwEbeRWgbNEkqO"
BOTH: Final = b"rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
SERVER_FIRST: Final = b"r=" + BOTH + b",s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
CLIENT_FINAL: Final = b"c=biws,r=" + BOTH + b",p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
SERVER_FINAL: Final = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
PASSWORDS: Final = st.text(min_size=1, max_size=40)
NAMES: Final = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=40)


def of_rfc_7677() -> Scram:
    return Scram("SCRAM-SHA-256", "user", "pencil", NONCE)


class ScramServer:
    """The other side, from RFC 5802 and with nothing of the code under test."""

    def __init__(self, name: str, password: str, *, iterations: int = MIN_ITERATIONS, salt: bytes = b"salt") -> None:
        self._hash = SCRAM_HASHES[name]
        self._salted = hashlib.pbkdf2_hmac(self._hash, password.encode(), salt, iterations)
        self._head = b",s=%s,i=%d" % (b64encode(salt), iterations)
        self._said = b""
        self.user = ""

    def first(self, message: bytes) -> bytes:
        bare = message.removeprefix(b"n,,")
        assert len(bare) == len(message) - 3
        name, nonce = bare.split(b",")
        self.user = name.removeprefix(b"n=").replace(b"=2C", b",").replace(b"=3D", b"=").decode()
        answer = nonce + b"server" + self._head
        self._said = bare + b"," + answer
        return answer

    def final(self, message: bytes) -> bytes:
        """Raises ValueError if the password is another one."""
        without, proof = message.rsplit(b",p=", 1)
        said = self._said + b"," + without
        stored = hashlib.new(self._hash, self._key(self._salted, b"Client Key")).digest()
        signature = self._key(stored, said)
        key = bytes(one ^ other for one, other in zip(b64decode(proof), signature, strict=True))
        if hashlib.new(self._hash, key).digest() != stored:
            raise ValueError("wrong password")
        return b"v=" + b64encode(self._key(self._key(self._salted, b"Server Key"), said))

    def _key(self, key: bytes, data: bytes) -> bytes:
        return hmac.new(key, data, self._hash).digest()


# --- SCRAM ------------------------------------------------------------------------------------------------------------
def test_scram_matches_the_vector_of_rfc_7677() -> None:
    scram = of_rfc_7677()
    assert scram.start() == b"n,,n=user,r=" + NONCE.encode()
    assert scram.answer(SERVER_FIRST) == CLIENT_FINAL
    assert scram.answer(SERVER_FINAL) is None


@pytest.mark.parametrize("name", SCRAM_HASHES)
@given(user=NAMES, password=PASSWORDS.filter(lambda text: text.isprintable()))
def test_scram_client_and_server_agree(name: str, user: str, password: str) -> None:
    scram, server = Scram(name, user, password, "nonce"), ScramServer(name, password)
    proof = scram.answer(server.first(scram.start()))
    assert server.user == user
    assert proof is not None
    assert scram.answer(server.final(proof)) is None


@pytest.mark.parametrize("name", SCRAM_HASHES)
def test_a_wrong_password_fails_the_proof(name: str) -> None:
    scram, server = Scram(name, "alice", "wrong", "nonce"), ScramServer(name, "right")
    proof = scram.answer(server.first(scram.start()))
    assert proof is not None
    with pytest.raises(ValueError, match="wrong password"):
        server.final(proof)


def test_a_broker_that_does_not_know_the_password_is_detected() -> None:
    scram = of_rfc_7677()
    scram.answer(SERVER_FIRST)
    with pytest.raises(LoginRefusedError, match="impostor"):
        scram.answer(b"v=" + b64encode(bytes(32)))


@pytest.mark.parametrize("iterations", [1, MIN_ITERATIONS - 1, MAX_ITERATIONS + 1, 2**31])
def test_unsafe_iteration_counts_are_refused(iterations: int) -> None:
    with pytest.raises(LoginRefusedError, match=f"{iterations} iterations"):
        of_rfc_7677().answer(SERVER_FIRST.replace(b"i=4096", b"i=%d" % iterations))


@pytest.mark.parametrize("nonce", [NONCE.encode(), b"another", b"x" + BOTH])
def test_an_answer_to_another_login_is_refused(nonce: bytes) -> None:
    with pytest.raises(LoginRefusedError, match="another login"):
        of_rfc_7677().answer(SERVER_FIRST.replace(BOTH, nonce))


def test_the_brokers_reason_is_reported() -> None:
    with pytest.raises(LoginRefusedError, match="says: unknown-user"):
        of_rfc_7677().answer(b"e=unknown-user")
    scram = of_rfc_7677()
    scram.answer(SERVER_FIRST)
    with pytest.raises(LoginRefusedError, match="says: invalid-proof"):
        scram.answer(b"e=invalid-proof")


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"r=" + BOTH,
        b"m=extension," + SERVER_FIRST,
        SERVER_FIRST.replace(b"i=4096", b"i=-1"),
        SERVER_FIRST.replace(b"i=4096", b"i=04096"),
        SERVER_FIRST.replace(b"i=4096", b"i=99999999999"),
        SERVER_FIRST.replace(b"W22ZaJ0SNY7soEsUEjb6gQ==", b"abc"),
        SERVER_FIRST.replace(b"s=", b"s=\xff"),
        SERVER_FIRST.replace(b"s=W22ZaJ0SNY7soEsUEjb6gQ==", b"s="),
        SERVER_FINAL,
    ],
)
def test_an_invalid_first_message_is_refused(message: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        of_rfc_7677().answer(message)


@pytest.mark.parametrize("message", [b"", b"v=", b"v=!", b"v=abc", SERVER_FIRST, b"x=" + SERVER_FINAL])
def test_an_invalid_final_message_is_refused(message: bytes) -> None:
    scram = of_rfc_7677()
    scram.answer(SERVER_FIRST)
    with pytest.raises(RemoteProtocolError):
        scram.answer(message)


@given(at=st.integers(0, len(SERVER_FIRST) - 1), byte=st.integers(0, 255))
def test_a_changed_byte_is_refused_or_changes_the_proof(at: int, byte: int) -> None:
    changed = bytearray(SERVER_FIRST)
    changed[at] = byte
    try:
        answer = of_rfc_7677().answer(bytes(changed))
    except RemoteProtocolError:
        return
    assert (answer == CLIENT_FINAL) == (bytes(changed) == SERVER_FIRST)


# --- the others -------------------------------------------------------------------------------------------------------
def test_plain_sends_user_and_password() -> None:
    plain = Plain("alice", "secrét")
    assert plain.start() == b"\0alice\0secr\xc3\xa9t"
    plain.answer(b"")
    with pytest.raises(RemoteProtocolError):
        plain.answer(b"and?")


@pytest.mark.parametrize(("user", "password"), [("a\0b", "c"), ("a", "b\0c")])
def test_plain_refuses_a_nul(user: str, password: str) -> None:
    with pytest.raises(ValueError, match="NUL"):
        Plain(user, password)


def test_bearer_sends_the_token() -> None:
    bearer = OAuthBearer("abc.def", {})
    assert bearer.start() == b"n,,\x01auth=Bearer abc.def\x01\x01"
    assert bearer.answer(b"") is None


def test_extensions_follow_the_token() -> None:
    """KIP-342: the pairs of RFC 7628 after `auth`."""
    bearer = OAuthBearer("abc", {"logicalCluster": "lkc-1", "identityPoolId": "pool-2"})
    assert bearer.start() == b"n,,\x01auth=Bearer abc\x01logicalCluster=lkc-1\x01identityPoolId=pool-2\x01\x01"


def test_a_refused_bearer_token_is_acknowledged_and_fails() -> None:
    bearer = OAuthBearer("abc", {})
    assert bearer.answer(b'{"status":"invalid_token"}') == b"\x01"
    with pytest.raises(LoginRefusedError, match="does not accept the token"):
        bearer.answer(b"")


@pytest.mark.parametrize("token", ["a\x01b", "a\nb", "ä"])
def test_an_unprintable_token_is_refused(token: str) -> None:
    with pytest.raises(ValueError, match="printable"):
        OAuthBearer(token, {})


@pytest.mark.parametrize(
    "mechanism",
    [Plain("alice", "hidden"), OAuthBearer("hidden", {}), Scram("SCRAM-SHA-256", "alice", "hidden", "nonce")],
    ids=lambda mechanism: mechanism.name,
)
def test_mechanisms_never_show_a_secret(mechanism: Mechanism) -> None:
    assert "hidden" not in f"{mechanism!r} {mechanism} {mechanism.identity}"
