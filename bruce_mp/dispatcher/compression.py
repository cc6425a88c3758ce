"""Compression of record batches with the topic's configured codec.

If a broker is too old for the codec, the dispatcher uses `api_versions.FALLBACK_CODEC`, which all brokers accept.  It
sends a batch uncompressed if compression fails with an error, or if the compressed size is more than the percentage of
the setting `size_threshold_percent`.

Compressed, encrypted or random data does not shrink, and each attempt to compress it costs time.  So the compression of
each batch is also a *trial*, which fails if the batch does not shrink to `WORTHWHILE_PERCENT` of its size.  After
`MAX_FAILED_TRIALS` successive failures the dispatcher suspends the compression of the topic: it *skips* several batches
(sends them uncompressed), then tries one batch.  Each further failed trial doubles the number of skipped batches.  For
topics with few batches, a time limit (`MAX_SKIP_S`) also ends the skipping.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Final

from bruce_mp.config.topics import used_compressions
from bruce_mp.errors import LocalProtocolError
from bruce_mp.protocol.kafka.compression import Codec, compress, is_small_enough
from bruce_mp.telemetry.compression import CompressionEvent, CompressionSums
from bruce_mp.telemetry.counters import Counter

if TYPE_CHECKING:
    from collections.abc import Callable, Container

    from bruce_mp.config.sections import Compression, CompressionConfig
    from bruce_mp.protocol.kafka.api_versions import BrokerCapabilities
    from bruce_mp.slab.rows import ProcessRow

__all__ = ["CompressionTrials", "Compressor"]

MAX_FAILED_TRIALS: Final = 5
"""The number of successive failed trials after which a topic's compression is suspended."""
WORTHWHILE_PERCENT: Final = 90
"""A trial fails if the compressed size is more than this percentage of the uncompressed size."""
MIN_SKIPPED_BATCHES: Final = 16
MAX_SKIPPED_BATCHES: Final = 1024
"""The number of batches that are skipped between two trials doubles from the minimum to the maximum."""
MAX_SKIP_S: Final = 60.0
"""The time after a failed trial from which the next batch is a trial, even if fewer batches were skipped."""


class CompressionTrials:
    """The results of one topic's trials.  `now` is in seconds of a monotonic clock."""

    __slots__ = ("_failure_count", "_next_skip_count", "_skip_end", "_skips_left")

    def __init__(self) -> None:
        self._failure_count = 0
        """The number of failed trials since the last successful trial."""
        self._next_skip_count = MIN_SKIPPED_BATCHES
        """The number of batches to skip after the next failed trial."""
        self._skips_left = 0
        """The number of batches to skip before the next trial."""
        self._skip_end = 0.0
        """The time from which no batch is skipped, even if `_skips_left` is not 0."""

    @property
    def is_suspended(self) -> bool:
        return self._failure_count >= MAX_FAILED_TRIALS

    def count_batch(self, now: float) -> bool:
        """Count the next batch; return True if it is a trial, False if it is skipped."""
        if self._skips_left and now < self._skip_end:
            self._skips_left -= 1
            return False
        self._skips_left = 0
        return True

    def record(self, uncompressed_bytes: int, compressed_bytes: int, now: float) -> None:
        """Record a trial by the size of a batch before and after its compression."""
        if compressed_bytes * 100 <= uncompressed_bytes * WORTHWHILE_PERCENT:
            self._failure_count, self._next_skip_count = 0, MIN_SKIPPED_BATCHES
            return
        self._failure_count += 1
        if self.is_suspended:
            self._skips_left, self._skip_end = self._next_skip_count, now + MAX_SKIP_S
            self._next_skip_count = min(2 * self._next_skip_count, MAX_SKIPPED_BATCHES)


log = logging.getLogger(__name__)


class _TopicCodec:
    """A topic's compression rule, and the results of its trials."""

    __slots__ = ("configured_codec", "display_name", "is_fallback_logged", "name", "rule", "trials")

    def __init__(self, name: bytes, rule: CompressionConfig) -> None:
        self.name = name
        self.display_name = name.decode("utf-8", "replace")
        self.rule = rule
        self.configured_codec = Codec[rule.type.upper()]
        self.trials = CompressionTrials() if rule.adaptive else None
        """None if the topic's compression is never suspended."""
        self.is_fallback_logged = False
        """True once the use of the fallback codec was logged."""


class Compressor:
    """Compresses batches; counts the results in the process row and, by topic, in `sums`.

    `uncompressed_partitions` has the (topic, partition) pairs for which the leader refuses compressed batches; the
    caller updates it.  `clock` returns seconds of a monotonic clock.
    """

    def __init__(
        self,
        row: ProcessRow,
        rule_of: Callable[[bytes], CompressionConfig],
        compression: Compression,
        uncompressed_partitions: Container[tuple[bytes, int]] = (),
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._row = row
        self._topics: dict[bytes, _TopicCodec] = {}
        self.apply_config(rule_of, compression)
        self._uncompressed_partitions = uncompressed_partitions
        self._clock = clock
        self.sums = CompressionSums()

    def apply_config(self, rule_of: Callable[[bytes], CompressionConfig], compression: Compression) -> None:
        """Replace the compression rules; a topic with an unchanged rule keeps the results of its trials."""
        self._rule_of = rule_of
        self._size_threshold_percent = compression.size_threshold_percent
        self.is_off = all(config.type == "none" for config in used_compressions(compression))
        """True if no topic is compressed."""
        self._topics = {name: topic for name, topic in self._topics.items() if topic.rule == rule_of(name)}

    def sends_uncompressed(self, topic: bytes, partition: int) -> bool:
        has_no_codec = self._topic(topic).configured_codec is Codec.NONE
        return has_no_codec or (topic, partition) in self._uncompressed_partitions

    def compress(
        self, topic: bytes, partition: int, data: bytes, capabilities: BrokerCapabilities
    ) -> tuple[Codec, bytes]:
        """Compress `data`, the encoded records of a batch; return the codec and the bytes to send."""
        state = self._topic(topic)
        if self.sends_uncompressed(topic, partition) or len(data) < state.rule.min_size:
            self._row.add(Counter.MsgSetCompressionNo)
            return Codec.NONE, data
        codec = self._choose_codec(state, capabilities)
        if state.trials is not None and not state.trials.count_batch(self._clock()):
            self._row.add(Counter.MsgSetCompressionNo)
            self.sums.add(CompressionEvent(topic, codec.name.lower(), skipped=1))
            return Codec.NONE, data
        return self._compress(state, codec, data)

    def _topic(self, name: bytes) -> _TopicCodec:
        topic = self._topics.get(name)
        if topic is None:
            topic = self._topics[name] = _TopicCodec(name, self._rule_of(name))
        return topic

    def _choose_codec(self, topic: _TopicCodec, capabilities: BrokerCapabilities) -> Codec:
        codec = capabilities.accepted_codec(topic.configured_codec)
        if codec is not topic.configured_codec and not topic.is_fallback_logged:
            topic.is_fallback_logged = True
            log.warning(
                "Topic %s is compressed with %s: its broker is too old for %s.",
                topic.display_name, codec.name.lower(), topic.configured_codec.name.lower(),
                extra={"about": topic.name},
            )  # fmt: skip
        return codec

    def _compress(self, topic: _TopicCodec, codec: Codec, data: bytes) -> tuple[Codec, bytes]:
        start_ns = time.thread_time_ns()
        try:
            compressed = compress(codec, topic.rule.level if codec is topic.configured_codec else None, data)
        except LocalProtocolError as error:
            log.warning("Topic %s is sent uncompressed: %s", topic.display_name, error, extra={"about": topic.name})
            self._row.add(Counter.MsgSetCompressionError)
            return Codec.NONE, data
        micros = (time.thread_time_ns() - start_ns) // 1000
        is_kept = is_small_enough(len(compressed), len(data), self._size_threshold_percent)
        sizes = {"plain_bytes": len(data), "packed_bytes": len(compressed), "micros": micros}
        self.sums.add(CompressionEvent(topic.name, codec.name.lower(), tried=1, kept=int(is_kept), **sizes))
        if topic.trials is not None:
            self._record_trial(topic, topic.trials, len(data), len(compressed))
        self._row.add(Counter.MsgSetCompressionYes if is_kept else Counter.MsgSetNotCompressible)
        return (codec, compressed) if is_kept else (Codec.NONE, data)

    def _record_trial(
        self, topic: _TopicCodec, trials: CompressionTrials, uncompressed_bytes: int, compressed_bytes: int
    ) -> None:
        was_suspended = trials.is_suspended
        trials.record(uncompressed_bytes, compressed_bytes, self._clock())
        percent = compressed_bytes * 100 // uncompressed_bytes
        if trials.is_suspended and not was_suspended:
            text = "Topic %s compresses badly (to %d %%): it is sent uncompressed, with a trial now and then."
            log.info(text, topic.display_name, percent, extra={"about": topic.name})
        elif was_suspended and not trials.is_suspended:
            text = "Topic %s compresses well again (to %d %%)."
            log.info(text, topic.display_name, percent, extra={"about": topic.name})
