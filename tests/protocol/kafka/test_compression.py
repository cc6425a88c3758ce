"""Codecs: kafka-python reads the output."""

from __future__ import annotations

import random

import lz4.frame
import pytest
import snappy
from hypothesis import given
from hypothesis import strategies as st

from bruce_mp.errors import LocalProtocolError
from bruce_mp.protocol.kafka.compression import LEVELS, Codec, compress, is_small_enough
from support.examples import examples
from support.record_batches import decompress

PACKED = [codec for codec in Codec if codec is not Codec.NONE]
TEXT = b"2026-11-21 10:00:00 host daemon[17]: a line as logs have them\n" * 2000


@pytest.mark.parametrize("codec", PACKED)
def test_kafka_python_decompresses_every_codec(codec: Codec) -> None:
    packed = compress(codec, None, TEXT)
    assert len(packed) < len(TEXT) / 4
    assert decompress(codec, packed) == TEXT


@given(codec=st.sampled_from(Codec), data=st.binary(max_size=2000))
@examples(75)
def test_compressed_data_decompresses_unchanged(codec: Codec, data: bytes) -> None:
    assert decompress(codec, compress(codec, None, data)) == data


@pytest.mark.parametrize("codec", list(LEVELS))
def test_every_codec_accepts_exactly_its_levels(codec: Codec) -> None:
    levels = LEVELS[codec]
    for level in (levels.lowest, levels.highest):
        assert decompress(codec, compress(codec, level, TEXT[:5000])) == TEXT[:5000]
    for level in (levels.lowest - 1, levels.highest + 1):
        with pytest.raises(LocalProtocolError, match=codec.name.lower()):
            compress(codec, level, TEXT)


def test_a_higher_level_compresses_better() -> None:
    data = random.Random(3).choices([b"GET /index", b" 200 ", b"10.0.0.", b"7", b"13", b"\n"], k=20_000)
    sizes = [len(compress(Codec.GZIP, level, b"".join(data))) for level in (1, 6, 9)]
    assert sizes[0] > sizes[1] > sizes[2]


def test_snappy_ignores_a_level_and_is_one_raw_block() -> None:
    assert compress(Codec.SNAPPY, 7, TEXT) == snappy.compress(TEXT)


def test_gzip_output_does_not_depend_on_the_time() -> None:
    assert compress(Codec.GZIP, 6, TEXT)[4:8] == bytes(4)  # the time of the container


def test_lz4_frames_have_independent_blocks() -> None:
    info = lz4.frame.get_frame_info(compress(Codec.LZ4, None, TEXT))
    assert (info["block_linked"], info["block_size"]) == (False, 65536)


@pytest.mark.parametrize(
    ("compressed", "plain", "percent", "worth_it"),
    [
        (75, 100, 75, True),
        (76, 100, 75, False),
        (100, 100, 100, True),
        (101, 100, 100, False),
        (1, 100, 0, False),
        (751, 1001, 75, False),
    ],
)
def test_the_compressed_form_is_kept_up_to_the_threshold(
    compressed: int, plain: int, percent: int, worth_it: bool
) -> None:
    assert is_small_enough(compressed, plain, percent) is worth_it
