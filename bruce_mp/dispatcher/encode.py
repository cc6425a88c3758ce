"""Encoding and compression of batches: as record batches, or as message sets for brokers before Kafka 0.11."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bruce_mp import kernels
from bruce_mp.errors import SlabError
from bruce_mp.protocol.kafka.compression import Codec
from bruce_mp.protocol.kafka.kafka_types import EncodedTopics, PartitionData
from bruce_mp.protocol.kafka.message_set import MessageFormat, wrap_set
from bruce_mp.protocol.kafka.record_batch import NO_PRODUCER, Producer, batch_header
from bruce_mp.slab import layout as lay
from bruce_mp.telemetry.counters import Counter

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bruce_mp.dispatcher.compression import Compressor
    from bruce_mp.protocol.kafka.api_versions import BrokerCapabilities
    from bruce_mp.slab.file import Slab
    from bruce_mp.slab.recovery import BuiltBatch
    from bruce_mp.slab.rows import ProcessRow

__all__ = ["BatchEncoder"]


class BatchEncoder:
    """Encodes the batches of a request, and counts the batches in the process row.

    `keeps_empty_values` is True if an empty value is sent as empty, False if it is sent as null.
    """

    def __init__(
        self, slab: Slab, row: ProcessRow, compressor: Compressor, *, keeps_empty_values: bool = False
    ) -> None:
        self.keeps_empty_values = keeps_empty_values
        self._slab = slab
        self._row = row
        self._compressor = compressor
        self._producer_id = NO_PRODUCER.producer_id
        """The producer id of the current `encode` call."""

    def encode_uncompressed(
        self, names: list[bytes], batches: Sequence[BuiltBatch], capabilities: BrokerCapabilities
    ) -> EncodedTopics | None:
        """Encode all batches of a request by one kernel call, without compression; `names` has the topic of each batch.

        Return None if `encode` must be used: a batch is damaged, compression is configured for any topic, or the broker
        needs message sets.
        """
        if not self._compressor.is_off or capabilities.message_format is not MessageFormat.BATCHES:
            return None
        producer_id = self._slab.read_signed(lay.SUPER_PRODUCER_ID)
        try:
            buffers = kernels.produce_topics(
                self._slab,
                capabilities.produce_version,
                names,
                batches,
                producer_id,
                keeps_empty_values=self.keeps_empty_values,
            )
        except SlabError:
            return None
        self._row.add(Counter.SerializeMsgSet, len(batches))
        self._row.add(Counter.SerializeMsg, sum([segment.records for batch in batches for segment in batch.segments]))
        self._row.add(Counter.MsgSetCompressionNo, len(batches))
        return EncodedTopics(buffers, names, [batch.partition for batch in batches])

    def encode(
        self, batches: Sequence[tuple[bytes, BuiltBatch]], capabilities: BrokerCapabilities
    ) -> list[PartitionData | SlabError]:
        """Encode (topic name, batch) pairs for a produce request; return one entry for each pair.

        The entry of a batch with a damaged segment is the SlabError.
        """
        self._producer_id = self._slab.read_signed(lay.SUPER_PRODUCER_ID)
        accepts_record_batches = capabilities.message_format is MessageFormat.BATCHES
        encode = self._record_batch if accepts_record_batches else self._message_set
        encoded: list[PartitionData | SlabError] = []
        record_count = damaged_count = 0
        for topic, batch in batches:
            try:
                encoded.append(encode(topic, batch, capabilities))
                record_count += batch.records
            except SlabError as error:
                encoded.append(error)
                damaged_count += 1
        self._row.add(Counter.SerializeMsgSet, len(batches) - damaged_count)
        self._row.add(Counter.SerializeMsg, record_count)
        return encoded

    def _record_batch(self, topic: bytes, batch: BuiltBatch, capabilities: BrokerCapabilities) -> PartitionData:
        producer = (
            NO_PRODUCER if batch.base_sequence < 0 else Producer(self._producer_id, batch.epoch, batch.base_sequence)
        )
        if self._compressor.sends_uncompressed(topic, batch.partition):
            header, data = kernels.record_batch(
                self._slab, batch.segments, producer, keeps_empty_values=self.keeps_empty_values
            )
            self._row.add(Counter.MsgSetCompressionNo)
            return PartitionData(topic, batch.partition, data, header)
        encoded = kernels.encode(self._slab, batch.segments, keeps_empty_values=self.keeps_empty_values)
        codec, data = self._compressor.compress(topic, batch.partition, encoded.data, capabilities)
        timestamps = (encoded.first_timestamp, encoded.max_timestamp)
        header = batch_header(data, encoded.record_count, *timestamps, codec=codec, producer=producer)
        return PartitionData(topic, batch.partition, data, header)

    def _message_set(self, topic: bytes, batch: BuiltBatch, capabilities: BrokerCapabilities) -> PartitionData:
        encoded = kernels.encode_message_set(
            self._slab, batch.segments, capabilities.message_format, keeps_empty_values=self.keeps_empty_values
        )
        codec, data = self._compressor.compress(topic, batch.partition, encoded.data, capabilities)
        if codec is not Codec.NONE:
            data = wrap_set(data, codec, capabilities.message_format, encoded.record_count, encoded.max_timestamp)
        return PartitionData(topic, batch.partition, data)
