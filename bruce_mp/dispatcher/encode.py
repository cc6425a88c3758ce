"""A batch of places in the slab as the bytes of a record batch: encoded, compressed if it pays, sealed with its CRC."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from bruce_mp import kernels
from bruce_mp.errors import LocalProtocolError
from bruce_mp.protocol.compression import Codec, choose, compress
from bruce_mp.protocol.kafka_types import PartitionData
from bruce_mp.protocol.record_batch import NO_PRODUCER, Producer, finish_batch
from bruce_mp.slab import layout as lay
from bruce_mp.telemetry.counters import Counter

if TYPE_CHECKING:
    from collections.abc import Callable

    from bruce_mp.config.sections import Compression, CompressionConfig
    from bruce_mp.slab.file import Slab
    from bruce_mp.slab.recovery import SentBatch
    from bruce_mp.slab.rows import Row

__all__ = ["Encoder"]

_LOG = logging.getLogger(__name__)


class Encoder:
    """Encodes batches; what it does is counted in the process's row."""

    def __init__(
        self, slab: Slab, row: Row, rule_of: Callable[[bytes], CompressionConfig], compression: Compression
    ) -> None:
        self._slab = slab
        self._row = row
        self._rule_of = rule_of
        self._threshold = compression.size_threshold_percent
        self._rules: dict[bytes, CompressionConfig] = {}

    def encode(self, topic: bytes, batch: SentBatch) -> PartitionData:
        """The batch as one partition's part of a produce request."""
        encoded = kernels.encode(self._slab, batch.segments)
        codec, data = self._compress(topic, encoded.data)
        self._row.add(Counter.SerializeMsgSet)
        self._row.add(Counter.SerializeMsg, encoded.records)
        stamps = (encoded.first_timestamp, encoded.max_timestamp)
        whole = finish_batch(data, encoded.records, *stamps, codec=codec, producer=self._producer(batch))
        return PartitionData(topic, batch.partition, whole)

    def _producer(self, batch: SentBatch) -> Producer:
        if batch.base_sequence < 0:
            return NO_PRODUCER
        return Producer(self._slab.signed(lay.SUPER_PRODUCER_ID), batch.epoch, batch.base_sequence)

    def _rule(self, topic: bytes) -> CompressionConfig:
        rule = self._rules.get(topic)
        if rule is None:
            rule = self._rules[topic] = self._rule_of(topic)
        return rule

    def _compress(self, topic: bytes, data: bytes) -> tuple[Codec, bytes]:
        """Compress where the config says so and the result is worth it; failing to is no reason not to send."""
        rule = self._rule(topic)
        codec = Codec[rule.type.upper()]
        if codec is Codec.NONE or len(data) < rule.min_size:
            self._row.add(Counter.MsgSetCompressionNo)
            return Codec.NONE, data
        try:
            compressed = compress(codec, rule.level, data)
        except LocalProtocolError as error:
            _LOG.warning("Topic %s is sent uncompressed: %s", topic.decode("utf-8", "replace"), error)
            self._row.add(Counter.MsgSetCompressionError)
            return Codec.NONE, data
        if not choose(len(compressed), len(data), self._threshold):
            self._row.add(Counter.MsgSetNotCompressible)
            return Codec.NONE, data
        self._row.add(Counter.MsgSetCompressionYes)
        return codec, compressed
