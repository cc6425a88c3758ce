"""Encoding for a broker, in the format and the codec that it accepts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest
from kafka.record.memory_records import MemoryRecords

from bruce_mp.config.sections import Compression, CompressionConfig
from bruce_mp.dispatcher.compression import Compressor
from bruce_mp.dispatcher.encode import BatchEncoder
from bruce_mp.errors import SlabError
from bruce_mp.protocol.kafka.api_versions import BrokerCapabilities
from bruce_mp.protocol.kafka.kafka_types import PartitionData
from bruce_mp.protocol.kafka.produce_request import encode_topics
from bruce_mp.slab.recovery import BuiltBatch
from bruce_mp.slab.rows import ProcessRow
from bruce_mp.telemetry.counters import Counter
from support.put_records import put_records
from support.record_batches import KafkaRecord
from support.slabs import DISPATCHER_ROW, new_slab

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bruce_mp.slab.file import Slab

NOW: Final = 1_700_000_000_000
Plain = frozenset[tuple[bytes, int]]
RECORDS: Final = [KafkaRecord(NOW + number, b"key", b"value" * 20) for number in range(10)]


@pytest.fixture
def slab() -> Iterator[Slab]:
    with new_slab() as made:
        yield made


def encode(slab: Slab, produce_version: int, codec: str, plain: Plain = frozenset(), **limits: int) -> bytes:
    rule = CompressionConfig(type=codec, **limits)  # type: ignore[arg-type]
    row = ProcessRow(slab, DISPATCHER_ROW)
    encoder = BatchEncoder(slab, row, Compressor(row, lambda _: rule, Compression(), plain))
    batch = BuiltBatch(1, 4, -1, -1, tuple(put_records(slab, [RECORDS])))
    (data,) = encoder.encode([(b"t1", batch)], BrokerCapabilities(produce_version, 0, None))
    assert isinstance(data, PartitionData)
    assert (data.topic, data.partition) == (b"t1", 4)
    return data.header + data.records


def plain_encoder(slab: Slab, codec: str = "none") -> BatchEncoder:
    row = ProcessRow(slab, DISPATCHER_ROW)
    rule = CompressionConfig(type=codec)  # type: ignore[arg-type]
    return BatchEncoder(slab, row, Compressor(row, lambda _: rule, Compression(configs={"c": rule}, default="c")))


def test_all_batches_of_a_request_are_encoded_as_each_by_itself(slab: Slab) -> None:
    capabilities = BrokerCapabilities(9, 0, None)
    segments = put_records(slab, [RECORDS[:2], RECORDS[:3]])
    batches = [BuiltBatch(1, index, -1, -1, (one,)) for index, one in enumerate(segments)]
    encoder = plain_encoder(slab)
    found = encoder.encode_uncompressed([b"t1", b"t2"], batches, capabilities)
    assert found is not None
    assert (found.names, found.partitions) == ([b"t1", b"t2"], [0, 1])
    counters = ProcessRow(slab, DISPATCHER_ROW).counters
    assert counters[Counter.SerializeMsgSet] == counters[Counter.MsgSetCompressionNo] == 2
    assert counters[Counter.SerializeMsg] == 2 + 3
    one_by_one = encoder.encode([(b"t1", batches[0]), (b"t2", batches[1])], capabilities)
    assert found.buffers == encode_topics(9, [one for one in one_by_one if isinstance(one, PartitionData)])


@pytest.mark.parametrize(("codec", "version", "is_stale"), [("gzip", 9, False), ("none", 2, False), ("none", 9, True)])
def test_compressed_old_and_damaged_batches_are_not_encoded_at_once(
    slab: Slab, codec: str, version: int, *, is_stale: bool
) -> None:
    [segment] = put_records(slab, [RECORDS])
    batch = BuiltBatch(1, 0, -1, -1, (segment._replace(generation=segment.generation + is_stale),))
    encoder = plain_encoder(slab, codec)
    assert encoder.encode_uncompressed([b"t1"], [batch], BrokerCapabilities(version, 0, None)) is None
    assert ProcessRow(slab, DISPATCHER_ROW).counters[Counter.SerializeMsgSet] == 0


def test_an_unreadable_batch_is_separated_and_not_counted(slab: Slab) -> None:
    row = ProcessRow(slab, DISPATCHER_ROW)
    encoder = BatchEncoder(slab, row, Compressor(row, lambda _: CompressionConfig(type="none"), Compression()))
    first, second, third = put_records(slab, [RECORDS[:2], RECORDS[:3], RECORDS[:4]])
    stale = second._replace(generation=second.generation + 1)
    batches = [(b"t1", BuiltBatch(1, index, -1, -1, (one,))) for index, one in enumerate((first, stale, third))]
    found = encoder.encode(batches, BrokerCapabilities(3, 0, None))
    assert [type(one) for one in found] == [PartitionData, SlabError, PartitionData]
    assert row.counters[Counter.SerializeMsgSet] == row.counters[Counter.MsgSetCompressionNo] == 2
    assert row.counters[Counter.SerializeMsg] == 2 + 4


def read(data: bytes) -> list[tuple[bytes | None, bytes | None]]:
    return [(record.key, record.value) for batch in MemoryRecords(data) for record in batch]


def magic_and_codec(data: bytes) -> tuple[int, int]:
    return data[16], data[22 if data[16] == 2 else 17]


@pytest.mark.parametrize(
    ("produce_version", "codec", "sent_as"),
    [
        (0, "none", (0, 0)),
        (0, "gzip", (0, 1)),
        (1, "snappy", (0, 2)),
        (1, "lz4", (0, 2)),
        (2, "none", (1, 0)),
        (2, "gzip", (1, 1)),
        (2, "snappy", (1, 2)),
        (2, "lz4", (1, 3)),
        (2, "zstd", (1, 2)),
        (3, "none", (2, 0)),
        (3, "lz4", (2, 3)),
        (6, "zstd", (2, 2)),
        (7, "zstd", (2, 4)),
    ],
)
def test_the_message_format_and_the_codec_follow_the_produce_version(
    slab: Slab, produce_version: int, codec: str, sent_as: tuple[int, int]
) -> None:
    data = encode(slab, produce_version, codec)
    assert magic_and_codec(data) == sent_as
    assert read(data) == [(record.key, record.value) for record in RECORDS]


@pytest.mark.parametrize(("partition", "sent_as"), [(4, 0), (5, 1)])
def test_a_partition_that_refused_the_codec_is_sent_uncompressed(slab: Slab, partition: int, sent_as: int) -> None:
    assert magic_and_codec(encode(slab, 3, "gzip", frozenset({(b"t1", partition)})))[1] == sent_as


@pytest.mark.parametrize("produce_version", [0, 2, 3])
def test_a_small_set_is_not_compressed(slab: Slab, produce_version: int, caplog: pytest.LogCaptureFixture) -> None:
    assert magic_and_codec(encode(slab, produce_version, "gzip", min_size=10_000))[1] == 0
    assert caplog.messages == []
