"""Codecs of record batches, 1 to 4 in Kafka's attributes, in the forms that every broker and consumer reads.

`load_codecs` or the first use loads a codec's library.  All of them would take 3 MB of each dispatcher, and a daemon
uses one or none.  Package `codecs` has a module for each.
Decompression is bounded, because its input is not trusted.
Brokers accept zstd only in produce requests from version 7 on (`BrokerAbilities.takes`).
"""

from __future__ import annotations

from enum import IntEnum, unique
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, cast

from bruce_mp.errors import LocalProtocolError, RemoteProtocolError

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["LEVELS", "Codec", "Levels", "choose", "compress", "decompress", "load_codecs"]

DEFAULT_LIMIT: Final = 256 * 1024 * 1024


@unique
class Codec(IntEnum):
    """A codec; the value is its number in a batch's attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


class Levels(NamedTuple):
    """The levels of a codec, both ends included, and its default."""

    lowest: int
    highest: int
    default: int


LEVELS: Final = {
    Codec.GZIP: Levels(0, 9, 6),
    Codec.LZ4: Levels(0, 16, 0),
    Codec.ZSTD: Levels(1, 22, 3),
}
"""Other codecs have no levels."""


class _Library(Protocol):
    """A module of `codecs`."""

    FAILURES: tuple[type[Exception], ...]

    def compress(self, data: bytes, level: int, /) -> bytes: ...

    def decompress(self, data: bytes, limit: int, /) -> bytes: ...


@cache
def _library(codec: Codec) -> _Library:
    return cast("_Library", import_module(f"bruce_mp.protocol.kafka.codecs.{codec.name.lower()}"))


def load_codecs(codecs: Iterable[Codec]) -> None:
    """Load the libraries of these codecs before the first batch needs them."""
    for codec in codecs:
        if codec is not Codec.NONE:
            _library(codec)


def compress(codec: Codec, level: int | None, data: bytes) -> bytes:
    """Compress `data`; `level` None selects the default, and codecs without levels ignore it.

    Raises LocalProtocolError for a level out of range.
    """
    return data if codec is Codec.NONE else _library(codec).compress(data, _level(codec, level))


def _level(codec: Codec, level: int | None) -> int:
    levels = LEVELS.get(codec)
    if levels is None:
        return 0
    if level is None:
        return levels.default
    if not levels.lowest <= level <= levels.highest:
        raise LocalProtocolError(
            f"{codec.name.lower()} has the levels {levels.lowest} to {levels.highest}, and not {level}."
        )
    return level


def decompress(codec: Codec, data: bytes, limit: int = DEFAULT_LIMIT) -> bytes:
    """Decompress `data`; raise RemoteProtocolError if it is damaged or yields more than `limit` bytes."""
    if codec is Codec.NONE:
        return data
    library = _library(codec)
    try:
        return library.decompress(data, limit)
    except library.FAILURES as failure:
        text = f"Records compressed with {codec.name.lower()} cannot be read: {failure or type(failure).__name__}."
        raise RemoteProtocolError(text) from failure


def choose(compressed_len: int, uncompressed_len: int, threshold_percent: int) -> bool:
    """Return True if the compressed form is at most `threshold_percent` of the plain form."""
    return compressed_len * 100 <= uncompressed_len * threshold_percent
