"""The test vectors of the client libraries, from the encoders of the package.

    PYTHONPATH=tests .venv/bin/python -m support.client_vectors    writes clients/conformance/vectors.json

Long fields of one repeated byte stand there as `[byte, times]`, long messages as their size and SHA-256.
"""

from __future__ import annotations

import hashlib
import json
import random
from pathlib import Path
from typing import Any, Final

from bruce_mp.errors import LocalProtocolError
from bruce_mp.protocol.client.key_hashes import KEY_HASHES, partition_key_of
from bruce_mp.protocol.client.messages import encode

__all__ = ["VECTORS", "create_vectors", "expand", "is_same", "read_vectors"]

VECTORS: Final = Path(__file__).parents[2] / "clients" / "conformance" / "vectors.json"
NOW: Final = 1_700_000_000_000
LONG_FIELD: Final = 32
LONG_MESSAGE: Final = 1000

Header = tuple[bytes, bytes | None]

_KEYS: Final = (
    b"", b"a", b"ab", b"abc", b"abcd", b"user-7", "schlüssel €".encode(), b"\xff" * 7, b"\x80\x00\x7f\xff\x01",
    bytes(range(256)),
)  # fmt: skip


def create_vectors() -> dict[str, Any]:
    """Return all vectors in the form of the file."""
    return {"messages": _messages(), "hashes": _hashes()}


def read_vectors() -> dict[str, Any]:
    """Return the vectors of the file."""
    vectors: dict[str, Any] = json.loads(VECTORS.read_text())
    return vectors


def expand(field: Any) -> bytes | None:
    """Return the bytes of a field."""
    if isinstance(field, list):
        return bytes.fromhex(field[0]) * int(field[1])
    return None if field is None else bytes.fromhex(field)


def is_same(vector: dict[str, Any], message: bytes) -> bool:
    """Return True for the message of a vector."""
    if "message" in vector:
        return bytes.fromhex(vector["message"]) == message
    return (vector["size"], vector["sha256"]) == (len(message), hashlib.sha256(message).hexdigest())


def _field(data: bytes | None) -> str | list[str | int] | None:
    if data is None:
        return None
    is_uniform = len(data) > LONG_FIELD and data == data[:1] * len(data)
    return [data[:1].hex(), len(data)] if is_uniform else data.hex()


def _message(encoded: bytes) -> dict[str, str | int]:
    if len(encoded) <= LONG_MESSAGE:
        return {"message": encoded.hex()}
    return {"size": len(encoded), "sha256": hashlib.sha256(encoded).hexdigest()}


def _vector(
    name: str,
    topic: bytes,
    value: bytes | None,
    key: bytes | None = None,
    *,
    partition_key: int | None = None,
    timestamp_ms: int = NOW,
    headers: tuple[Header, ...] = (),
    keep_empty: bool = False,
    error: str | None = None,
) -> dict[str, Any]:
    vector: dict[str, Any] = {
        "name": name,
        "topic": _field(topic),
        "value": _field(value),
        "key": _field(key),
        "partition_key": partition_key,
        "timestamp_ms": timestamp_ms,
        "headers": [[_field(header), _field(text)] for header, text in headers],
        "keep_empty": keep_empty,
    }
    try:
        encoded = encode(
            topic, value, key, partition_key, timestamp_ms=timestamp_ms, headers=headers, keep_empty=keep_empty
        )
    except LocalProtocolError:
        assert error is not None, name
        return {**vector, "error": error}
    assert error is None, name
    return {**vector, **_message(encoded)}


def _messages() -> list[dict[str, Any]]:
    one_header: tuple[Header, ...] = ((b"a", b"1"),)
    headers: tuple[Header, ...] = (*one_header, (b"b", None), (b"", b""), ("größe".encode(), b"\x00\xff"))
    largest = 65535 - 6 - 1
    return [
        _vector("value only", b"t1", b"hello"),
        _vector("key", b"t1", b"hello", b"kk"),
        _vector("smallest", b"x", b"", timestamp_ms=0),
        _vector("largest timestamp", b"x", b"v", timestamp_ms=2**63 - 1),
        _vector("text beyond ASCII", "größe".encode(), "wert €".encode(), "schlüssel".encode()),
        _vector("binary key and value", b"t1", bytes(range(256)), bytes(range(255, -1, -1))),
        _vector("partition key", b"t1", b"hello", b"kk", partition_key=12345),
        _vector("largest partition key", b"t1", b"hello", partition_key=2**32 - 1),
        _vector("partition key 2^31", b"x", b"v", b"k", partition_key=2**31, timestamp_ms=1),
        _vector("partition key 0", b"x", b"v", b"k", partition_key=0),
        _vector("headers", b"t1", b"hello", headers=headers),
        _vector("headers and partition key", b"t1", b"hello", b"kk", partition_key=7, headers=headers),
        _vector("largest headers", b"t1", b"v", headers=((b"a", b"x" * largest),)),
        _vector("longest name of a header", b"t1", b"v", headers=((b"n" * 32767, b"1"),)),
        _vector("null value", b"t1", None, b"kk"),
        _vector("null value without a key", b"t1", None),
        _vector("null value, headers", b"t1", None, headers=one_header),
        _vector("null value, empty key", b"t1", None, b""),
        _vector("null value, kept empty key", b"t1", None, b"", keep_empty=True),
        _vector("null value, partition key", b"t1", None, b"kk", partition_key=12345),
        _vector("empty value and key", b"t1", b"", b""),
        _vector("kept empty value", b"t1", b"", b"kk", keep_empty=True),
        _vector("kept empty key", b"t1", b"hello", b"", keep_empty=True, partition_key=12345),
        _vector("kept empty value, no key", b"t1", b"", None, keep_empty=True),
        _vector("nothing empty to keep", b"t1", b"hello", b"kk", keep_empty=True),
        _vector("kept empty value, headers", b"t1", b"", b"", keep_empty=True, headers=headers),
        _vector("longest topic", b"t" * 32767, b"v"),
        _vector("large value", b"t1", b"v" * 100_000),
        _vector("no topic", b"", b"v", error="TOPIC_EMPTY"),
        _vector("topic too long", b"t" * 32768, b"v", error="TOPIC_TOO_LARGE"),
        _vector("headers too large", b"t1", b"v", headers=((b"a", b"x" * (largest + 1)),), error="HEADERS_TOO_LARGE"),
        _vector("name of a header too long", b"t1", b"v", headers=((b"n" * 32768, b""),), error="HEADERS_TOO_LARGE"),
    ]


def _hashes() -> list[dict[str, Any]]:
    rng = random.Random(0)
    keys = [*_KEYS, *(rng.randbytes(length) for length in range(1, 33))]
    names = [rule.name.lower() for rule in KEY_HASHES]
    return [
        {"partitioner": name, "key": key.hex(), "partition_key": partition_key_of(key, name)}
        for name in names
        for key in keys
    ]


def _main() -> None:
    VECTORS.parent.mkdir(parents=True, exist_ok=True)
    lists = [
        f'"{name}": [\n' + ",\n".join(json.dumps(each) for each in vectors) + "\n]"
        for name, vectors in create_vectors().items()
    ]
    VECTORS.write_text("{\n" + ",\n".join(lists) + "\n}\n")


if __name__ == "__main__":
    _main()
