"""Codecs of record batches, 1 to 4 in Kafka's attributes, in the forms that every broker and consumer reads.

Package `codecs` has a module for each, loaded by `load_codecs` or at the first use.  All of them would take 3 MB of
each dispatcher, and most daemons use one or none.

The daemon only compresses.  `BrokerCapabilities.accepts` is False for a codec that an older broker lacks.
"""

from __future__ import annotations

from enum import IntEnum, unique
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, cast

from bruce_mp.errors import LocalProtocolError

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["LEVELS", "Codec", "Levels", "compress", "is_small_enough", "load_codecs"]


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


class _CodecModule(Protocol):
    """A module of `codecs`."""

    def compress(self, data: bytes, level: int, /) -> bytes: ...


@cache
def _load(codec: Codec) -> _CodecModule:
    return cast("_CodecModule", import_module(f"bruce_mp.protocol.kafka.codecs.{codec.name.lower()}"))


def load_codecs(codecs: Iterable[Codec]) -> None:
    """Load the libraries of these codecs before the first batch needs them."""
    for codec in codecs:
        if codec is not Codec.NONE:
            _load(codec)


def compress(codec: Codec, level: int | None, data: bytes) -> bytes:
    """Compress `data`; `level` None selects the default, and codecs without levels ignore it.

    Raises LocalProtocolError for a level out of range.
    """
    return data if codec is Codec.NONE else _load(codec).compress(data, _checked_level(codec, level))


def _checked_level(codec: Codec, level: int | None) -> int:
    levels = LEVELS.get(codec)
    if levels is None:
        return 0
    if level is None:
        return levels.default
    if not levels.lowest <= level <= levels.highest:
        raise LocalProtocolError(
            f"{codec.name.lower()} has the levels {levels.lowest} to {levels.highest}, not {level}."
        )
    return level


def is_small_enough(compressed_len: int, uncompressed_len: int, threshold_percent: int) -> bool:
    """Return True if the compressed form has at most `threshold_percent` of the uncompressed size."""
    return compressed_len * 100 <= uncompressed_len * threshold_percent
