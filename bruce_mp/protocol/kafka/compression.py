"""Codecs of record batches, 1 to 4 in Kafka's attributes, in the forms that every broker and consumer reads.

`load_codecs` or the first use loads the library of a codec.  All of them would take 3 MB of each dispatcher, and most
daemons use one or none.

The daemon only compresses.  `BrokerCapabilities.accepts` is False for a codec that an older broker lacks.
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

_LIBRARIES: Final = {Codec.SNAPPY: "snappy", Codec.LZ4: "lz4.frame", Codec.ZSTD: "zstandard"}


def load_codecs(codecs: Iterable[Codec]) -> None:
    """Load the libraries of these codecs before the first batch needs them."""
    for codec in codecs:
        if codec in _LIBRARIES:
            import_module(_LIBRARIES[codec])


@cache
def _compressor(codec: Codec, level: int) -> Callable[[bytes], bytes]:
    """Return the function that compresses with a level; it is kept, because that of zstd has tables."""
    if codec is Codec.GZIP:  # a container without name and time, so that equal input gives equal output
        return partial(zlib.compress, level=level, wbits=_GZIP_WBITS)
    library = import_module(_LIBRARIES[codec])
    if codec is Codec.LZ4:  # independent blocks: Java's reader refuses dependent ones
        return partial(library.compress, compression_level=level, block_linked=False)
    # Snappy makes raw blocks, one for each batch.  Java's clients write xerial's framing, but their reader accepts data
    # without the framing's magic as a raw block (SnappyInputStream.readFully).  librdkafka writes and reads raw blocks.
    # Framing would cost 3 to 4 % in size.
    function: Callable[[bytes], bytes] = (library if codec is Codec.SNAPPY else library.ZstdCompressor(level)).compress
    return function


_GZIP_WBITS: Final = zlib.MAX_WBITS | 16  # 16 selects the gzip container


def compress(codec: Codec, level: int | None, data: bytes) -> bytes:
    """Compress `data`; `level` None selects the default, and codecs without levels ignore it.

    Raises LocalProtocolError for a level out of range.
    """
    return data if codec is Codec.NONE else _compressor(codec, _checked_level(codec, level))(data)


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
