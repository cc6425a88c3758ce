"""A batch of places in the slab as bytes for a broker: encoded in the format that it takes, compressed if it pays.

That is a record batch, or a message set where the broker is older than that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bruce_mp import kernels
from bruce_mp.protocol.compression import Codec
from bruce_mp.protocol.kafka_types import PartitionData
from bruce_mp.protocol.message_set import MessageFormat, wrap_set
from bruce_mp.protocol.record_batch import NO_PRODUCER, Producer, batch_header
from bruce_mp.slab import layout as lay
from bruce_mp.telemetry.counters import Counter

if TYPE_CHECKING:
    from bruce_mp.dispatcher.compressing import Compressor
    from bruce_mp.protocol.api_versions import BrokerAbilities
    from bruce_mp.slab.file import Slab
    from bruce_mp.slab.recovery import SentBatch
    from bruce_mp.slab.rows import Row

__all__ = ["Encoder"]


class Encoder:
    """Encodes batches; what it does is counted in the process's row.

    `keeps_empty`: a value without bytes stays empty, and does not become null.
    """

    def __init__(self, slab: Slab, row: Row, compressor: Compressor, *, keeps_empty: bool = False) -> None:
        self.keeps_empty = keeps_empty
        self._slab = slab
        self._row = row
        self._compressor = compressor

    def encode(self, topic: bytes, batch: SentBatch, abilities: BrokerAbilities) -> PartitionData:
        """The batch as one partition's part of a produce request to a broker with these abilities."""
        has_batches = abilities.message_format is MessageFormat.BATCHES
        encode = self._record_batch if has_batches else self._message_set
        data = encode(topic, batch, abilities)
        self._row.add(Counter.SerializeMsgSet)
        self._row.add(Counter.SerializeMsg, batch.records)
        return data

    def _record_batch(self, topic: bytes, batch: SentBatch, abilities: BrokerAbilities) -> PartitionData:
        encoded = kernels.encode(self._slab, batch.segments, keeps_empty=self.keeps_empty)
        codec, data = self._compressor.compress(topic, batch.partition, encoded.data, abilities)
        stamps = (encoded.first_timestamp, encoded.max_timestamp)
        header = batch_header(data, encoded.records, *stamps, codec=codec, producer=self._producer(batch))
        return PartitionData(topic, batch.partition, data, header)

    def _message_set(self, topic: bytes, batch: SentBatch, abilities: BrokerAbilities) -> PartitionData:
        encoded = kernels.encode_message_set(
            self._slab, batch.segments, abilities.message_format, keeps_empty=self.keeps_empty
        )
        codec, data = self._compressor.compress(topic, batch.partition, encoded.data, abilities)
        if codec is not Codec.NONE:
            data = wrap_set(data, codec, abilities.message_format, encoded.records, encoded.max_timestamp)
        return PartitionData(topic, batch.partition, data)

    def _producer(self, batch: SentBatch) -> Producer:
        if batch.base_sequence < 0:
            return NO_PRODUCER
        return Producer(self._slab.signed(lay.SUPER_PRODUCER_ID), batch.epoch, batch.base_sequence)
