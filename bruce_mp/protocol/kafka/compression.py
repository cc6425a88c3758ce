"""Compress record batches.  Each codec has several formats; this module uses formats that all consumers can read.

The library of a codec is loaded by `load_codecs`, or at the first use of the codec: all libraries together would take
3 MB of memory in each dispatcher, and most daemons use one codec or none.

Older brokers do not accept all codecs: see `BrokerCapabilities.accepts`.
"""

from __future__ import annotations

import zlib
from enum import IntEnum, unique
from functools import cache, partial
from importlib import import_module
from typing import TYPE_CHECKING, Final, NamedTuple

from bruce_mp.errors import LocalProtocolError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = ["LEVELS", "Codec", "LevelRange", "compress", "is_small_enough", "load_codecs"]


@unique
class Codec(IntEnum):
    """A codec; the value is Kafka's number for the codec in the field `attributes` of a batch."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


class LevelRange(NamedTuple):
    """The range of a codec's compression levels, both ends included, and the default level."""

    lowest: int
    highest: int
    default: int


LEVELS: Final = {
    Codec.GZIP: LevelRange(0, 9, 6),
    Codec.LZ4: LevelRange(0, 16, 0),
    Codec.ZSTD: LevelRange(1, 22, 3),
}
"""The levels by codec; a codec that is not listed has none."""

_LIBRARIES: Final = {Codec.SNAPPY: "snappy", Codec.LZ4: "lz4.frame", Codec.ZSTD: "zstandard"}


def load_codecs(codecs: Iterable[Codec]) -> None:
    """Load the libraries of these codecs before the first batch needs them."""
    for codec in codecs:
        if codec in _LIBRARIES:
            import_module(_LIBRARIES[codec])


@cache
def _compressor(codec: Codec, level: int) -> Callable[[bytes], bytes]:
    """Return the function that compresses with `level`; cached, because a zstd compressor is costly to set up."""
    if codec is Codec.GZIP:  # zlib writes a header without a file name and a time, so equal data give equal results
        return partial(zlib.compress, level=level, wbits=_GZIP_WBITS)
    library = import_module(_LIBRARIES[codec])
    if codec is Codec.LZ4:  # not linked: Java's reader refuses blocks that depend on earlier blocks
        return partial(library.compress, compression_level=level, block_linked=False)
    # With Snappy, a batch becomes one raw block.  Java's clients write the framing of the library xerial around blocks,
    # which would add 3 to 4 % to the size.  But their reader takes data that do not begin with the framing's magic
    # bytes for a raw block (SnappyInputStream.readFully), and librdkafka uses raw blocks as well.
    function: Callable[[bytes], bytes] = (library if codec is Codec.SNAPPY else library.ZstdCompressor(level)).compress
    return function


_GZIP_WBITS: Final = zlib.MAX_WBITS | 16  # 16 makes zlib write the gzip format instead of the zlib format


def compress(codec: Codec, level: int | None, data: bytes) -> bytes:
    """Compress `data` with `level`, or with the codec's default level if `level` is None.

    Codecs without levels ignore `level`. Raises LocalProtocolError for a level out of range.
    """
    return data if codec is Codec.NONE else _compressor(codec, _checked_level(codec, level))(data)


def _checked_level(codec: Codec, level: int | None) -> int:
    """Return the level to use; 0 for a codec without levels."""
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


def is_small_enough(compressed_size: int, uncompressed_size: int, threshold_percent: int) -> bool:
    """Return True if the compressed size is at most `threshold_percent` of the uncompressed size."""
    return compressed_size * 100 <= uncompressed_size * threshold_percent
