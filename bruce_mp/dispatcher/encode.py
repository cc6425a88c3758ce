"""A batch of places in the slab as bytes for a broker: encoded in the format that it takes, compressed if it pays.

That is a record batch, or a message set where the broker is older than that.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from bruce_mp import kernels
from bruce_mp.errors import LocalProtocolError
from bruce_mp.protocol.compression import Codec, choose, compress
from bruce_mp.protocol.kafka_types import PartitionData
from bruce_mp.protocol.message_set import MessageFormat, wrap_set
from bruce_mp.protocol.record_batch import NO_PRODUCER, Producer, finish_batch
from bruce_mp.slab import layout as lay
from bruce_mp.telemetry.counters import Counter

if TYPE_CHECKING:
    from collections.abc import Callable, Container

    from bruce_mp.config.sections import Compression, CompressionConfig
    from bruce_mp.protocol.api_versions import BrokerAbilities
    from bruce_mp.slab.file import Slab
    from bruce_mp.slab.recovery import SentBatch
    from bruce_mp.slab.rows import Row

__all__ = ["Encoder"]

_LOG = logging.getLogger(__name__)


class Encoder:
    """Encodes batches; what it does is counted in the process's row.

    `plain` names the topics and partitions that have to be sent uncompressed.
    """

    def __init__(
        self,
        slab: Slab,
        row: Row,
        rule_of: Callable[[bytes], CompressionConfig],
        compression: Compression,
        plain: Container[tuple[bytes, int]] = (),
    ) -> None:
        self._slab = slab
        self._row = row
        self._rule_of = rule_of
        self._threshold = compression.size_threshold_percent
        self._rules: dict[bytes, CompressionConfig] = {}
        self._plain = plain

    def encode(self, topic: bytes, batch: SentBatch, abilities: BrokerAbilities) -> PartitionData:
        """The batch as one partition's part of a produce request to a broker with these abilities."""
        has_batches = abilities.message_format is MessageFormat.BATCHES
        encode = self._record_batch if has_batches else self._message_set
        whole = encode(topic, batch, abilities)
        self._row.add(Counter.SerializeMsgSet)
        self._row.add(Counter.SerializeMsg, batch.records)
        return PartitionData(topic, batch.partition, whole)

    def _record_batch(self, topic: bytes, batch: SentBatch, abilities: BrokerAbilities) -> bytes:
        encoded = kernels.encode(self._slab, batch.segments)
        codec, data = self._compress(topic, batch.partition, encoded.data, abilities)
        stamps = (encoded.first_timestamp, encoded.max_timestamp)
        return finish_batch(data, encoded.records, *stamps, codec=codec, producer=self._producer(batch))

    def _message_set(self, topic: bytes, batch: SentBatch, abilities: BrokerAbilities) -> bytes:
        encoded = kernels.encode_message_set(self._slab, batch.segments, abilities.message_format)
        codec, data = self._compress(topic, batch.partition, encoded.data, abilities)
        if codec is Codec.NONE:
            return data
        return wrap_set(data, codec, abilities.message_format, encoded.records, encoded.max_timestamp)

    def _producer(self, batch: SentBatch) -> Producer:
        if batch.base_sequence < 0:
            return NO_PRODUCER
        return Producer(self._slab.signed(lay.SUPER_PRODUCER_ID), batch.epoch, batch.base_sequence)

    def _rule(self, topic: bytes) -> CompressionConfig:
        rule = self._rules.get(topic)
        if rule is None:
            rule = self._rules[topic] = self._rule_of(topic)
        return rule

    def _compress(self, topic: bytes, partition: int, data: bytes, abilities: BrokerAbilities) -> tuple[Codec, bytes]:
        """Compress where the config says so and the result is worth it; failing to is no reason not to send."""
        rule = self._rule(topic)
        codec = Codec[rule.type.upper()]
        if codec is Codec.NONE or len(data) < rule.min_size or (topic, partition) in self._plain:
            self._row.add(Counter.MsgSetCompressionNo)
            return Codec.NONE, data
        if not abilities.takes(codec):
            return self._not_compressed(topic, data, f"its broker is too old for {rule.type}.")
        try:
            compressed = compress(codec, rule.level, data)
        except LocalProtocolError as error:
            return self._not_compressed(topic, data, str(error))
        if not choose(len(compressed), len(data), self._threshold):
            self._row.add(Counter.MsgSetNotCompressible)
            return Codec.NONE, data
        self._row.add(Counter.MsgSetCompressionYes)
        return codec, compressed

    def _not_compressed(self, topic: bytes, data: bytes, why: str) -> tuple[Codec, bytes]:
        _LOG.warning("Topic %s is sent uncompressed: %s", topic.decode("utf-8", "replace"), why, extra={"about": topic})
        self._row.add(Counter.MsgSetCompressionError)
        return Codec.NONE, data
