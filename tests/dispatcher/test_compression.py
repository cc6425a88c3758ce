"""Compression: the choice of batches and codecs, with log messages and counters."""

from __future__ import annotations

import logging
import random
from typing import TYPE_CHECKING, Any, Final

import pytest

from bruce_mp.config.sections import Compression, CompressionConfig
from bruce_mp.dispatcher import compression
from bruce_mp.dispatcher.compression import MAX_FAILED_TRIALS, MIN_SKIPPED_BATCHES, Compressor
from bruce_mp.errors import LocalProtocolError
from bruce_mp.protocol.kafka.api_versions import BrokerCapabilities
from bruce_mp.protocol.kafka.compression import Codec
from bruce_mp.slab import layout as lay
from bruce_mp.slab.rows import ProcessRow
from bruce_mp.telemetry.counters import Counter
from support.record_batches import decompress
from support.slabs import DISPATCHER_ROW, new_slab

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bruce_mp.slab.file import Slab
    from bruce_mp.telemetry.compression import CompressionEvent

NEW: Final = BrokerCapabilities(12, 12, 5)
TEXT: Final = b"the same words, again and again; " * 100
NOISE: Final = random.Random(3).randbytes(3000)
PERCENT_75: Final = Compression(size_threshold_percent=75)


@pytest.fixture
def slab() -> Iterator[Slab]:
    with new_slab() as made:
        yield made


class Bench:
    """A compressor with one config for all topics, and its counters."""

    def __init__(self, slab: Slab, codec: str, compression: Compression = PERCENT_75, **rule: Any) -> None:
        self.now = 0.0
        self.slab = slab
        config = CompressionConfig(type=codec, **rule)  # type: ignore[arg-type]
        self.compressor = Compressor(
            ProcessRow(slab, DISPATCHER_ROW), lambda _: config, compression, clock=lambda: self.now
        )

    def send(self, data: bytes, capabilities: BrokerCapabilities = NEW, topic: bytes = b"t") -> Codec:
        """The codec that data is sent in; it must come out as it went in."""
        codec, sent = self.compressor.compress(topic, 0, data, capabilities)
        assert decompress(codec, sent) == data
        return codec

    def sums(self, topic: bytes = b"t") -> CompressionEvent:
        (event,) = [event for event in self.compressor.sums.events() if event.topic == topic]
        return event

    def counted(self) -> dict[str, int]:
        names = ("Yes", "No", "Error")
        counters = self.slab.row_at(DISPATCHER_ROW) + lay.ROW_COUNTERS
        found = {name: self.slab.longs[(counters >> 3) + Counter[f"MsgSetCompression{name}"]] for name in names}
        return {name: count for name, count in found.items() if count}


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
def test_compression_sums_count_tried_kept_and_skipped_batches(slab: Slab, codec: Codec) -> None:
    bench = Bench(slab, codec.name.lower())
    assert [bench.send(data) for data in (TEXT, NOISE, b"small", TEXT)] == [codec, Codec.NONE, Codec.NONE, codec]
    event = bench.sums()
    assert (event.codec, event.tried, event.kept, event.skipped) == (codec.name.lower(), 3, 2, 0)
    assert event.plain_bytes == 2 * len(TEXT) + len(NOISE)
    assert len(NOISE) * 0.9 < event.packed_bytes < len(NOISE) + len(TEXT)
    assert bench.counted() == {"Yes": 2, "No": 1}


@pytest.mark.parametrize(("size", "codec"), [(99, Codec.NONE), (100, Codec.SNAPPY)])
def test_a_batch_smaller_than_min_size_is_not_tried(slab: Slab, size: int, codec: Codec) -> None:
    assert Bench(slab, "snappy", min_size=100).send(TEXT[:size]) is codec


@pytest.mark.parametrize(("percent", "codec"), [(100, Codec.ZSTD), (60, Codec.ZSTD), (40, Codec.NONE), (0, Codec.NONE)])
def test_the_compressed_form_is_kept_only_below_the_threshold(slab: Slab, percent: int, codec: Codec) -> None:
    half_noise = NOISE + b"x" * len(NOISE)
    assert Bench(slab, "zstd", Compression(size_threshold_percent=percent)).send(half_noise) is codec


@pytest.mark.parametrize(
    ("codec", "produce_version", "used"),
    [
        ("gzip", 0, Codec.GZIP),
        ("snappy", 0, Codec.SNAPPY),
        ("lz4", 0, Codec.SNAPPY),
        ("lz4", 1, Codec.SNAPPY),
        ("lz4", 2, Codec.LZ4),
        ("zstd", 2, Codec.SNAPPY),
        ("zstd", 6, Codec.SNAPPY),
        ("zstd", 7, Codec.ZSTD),
    ],
)
def test_snappy_replaces_a_codec_that_the_broker_does_not_support(
    slab: Slab, caplog: pytest.LogCaptureFixture, codec: str, produce_version: int, used: Codec
) -> None:
    """The log says so once a topic.  The level is that of the codec that was wanted, and of no use to another."""
    bench = Bench(slab, codec, level=None if codec == "snappy" else 9)
    with caplog.at_level(logging.WARNING):
        for topic in (b"t", b"u", b"t", b"u", b"t"):
            assert bench.send(TEXT, BrokerCapabilities(produce_version, 0, None), topic) is used
    said = [f"Topic {topic} is compressed with snappy: its broker is too old for {codec}." for topic in "tu"]
    assert caplog.messages == ([] if used.name.lower() == codec else said)
    assert bench.sums().codec == used.name.lower()


def test_adaptive_compression_skips_an_incompressible_topic(slab: Slab, caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench(slab, "lz4", adaptive=True)
    with caplog.at_level(logging.INFO):
        for _ in range(MAX_FAILED_TRIALS + MIN_SKIPPED_BATCHES):
            assert bench.send(NOISE) is Codec.NONE
        assert (bench.sums().tried, bench.sums().skipped) == (MAX_FAILED_TRIALS, MIN_SKIPPED_BATCHES)
        assert bench.send(TEXT, topic=b"other") is Codec.LZ4
        assert bench.send(TEXT) is Codec.LZ4
    assert caplog.messages == [
        "Topic t compresses badly (to 100 %): it is sent uncompressed, with a trial now and then.",
        "Topic t compresses well again (to 2 %).",
    ]


@pytest.mark.parametrize(("level", "skipped"), [(None, 1), (3, 0)])
def test_a_reload_ends_the_pause_of_a_topic_only_with_another_rule(slab: Slab, level: int | None, skipped: int) -> None:
    bench = Bench(slab, "zstd", adaptive=True)
    for _ in range(MAX_FAILED_TRIALS):
        bench.send(NOISE)
    rule = CompressionConfig(type="zstd", level=level, adaptive=True)
    bench.compressor.apply_config(lambda _: rule, PERCENT_75)
    bench.send(NOISE)
    assert bench.sums().skipped == skipped


def test_every_batch_is_compressed_without_adaptive_compression(slab: Slab) -> None:
    bench = Bench(slab, "lz4")
    for _ in range(100):
        bench.send(NOISE)
    assert (bench.sums().tried, bench.sums().kept, bench.sums().skipped) == (100, 0, 0)


def test_a_batch_is_sent_uncompressed_when_compression_fails(
    slab: Slab, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> bytes:
        raise LocalProtocolError("it cannot.")

    monkeypatch.setattr(compression, "compress", fail)
    bench = Bench(slab, "zstd")
    assert bench.send(TEXT) is Codec.NONE
    assert caplog.messages == ["Topic t is sent uncompressed: it cannot."]
    assert bench.counted() == {"Error": 1}
