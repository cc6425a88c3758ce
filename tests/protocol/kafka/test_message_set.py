"""Wrappers byte by byte; that other implementations read them is tested where messages are encoded (kernels)."""

from __future__ import annotations

import zlib

from bruce_mp.protocol.kafka.compression import Codec
from bruce_mp.protocol.kafka.message_set import MessageFormat, wrap_set


def test_a_format_0_wrapper_has_known_bytes() -> None:
    covered = bytes.fromhex("00 01 ffffffff 00000003") + b"xyz"
    crc = zlib.crc32(covered).to_bytes(4, "big")
    assert wrap_set(b"xyz", Codec.GZIP, MessageFormat.V0, 7, 1234) == (
        bytes.fromhex("0000000000000000 00000011") + crc + covered
    )


def test_a_wrapper_of_format_1_has_the_last_number_and_the_latest_time() -> None:
    covered = bytes.fromhex("01 03 00000000000004d2 ffffffff 00000003") + b"xyz"
    crc = zlib.crc32(covered).to_bytes(4, "big")
    assert wrap_set(b"xyz", Codec.LZ4, MessageFormat.V1, 7, 1234) == (
        bytes.fromhex("0000000000000006 00000019") + crc + covered
    )
