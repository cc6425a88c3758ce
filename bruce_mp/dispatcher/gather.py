"""Batching in the dispatcher: records wait here for company before their partition's queue is ready to send them.

PartitionKey messages of topics that are batched by themselves have a batch per topic, combined topics one batch all
together, and the others do not wait at all.  What a full batch decides is only *when* its records become ready: a
record batch then takes as much from a queue as fits, so that batches grow while answers are slow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from bruce_mp.batching import BatchBuilder
from bruce_mp.config.topics import BatchingKind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from bruce_mp.config.topics import TopicBatching
    from bruce_mp.slab.file import Slab
    from bruce_mp.slab.runs import Segment

__all__ = ["Gathering"]

_COMBINED: Final = 0
"""The key of the batch of all combined topics; topics' own batches have the topic's number."""


class Gathering:
    """The batches of one dispatcher.  Times in ms on a steady clock."""

    def __init__(self, slab: Slab, rule_of: Callable[[int], TopicBatching]) -> None:
        self._slab = slab
        self._rule_of = rule_of
        self._rules: dict[int, TopicBatching] = {}
        self._builders: dict[int, BatchBuilder] = {}
        self.draining = False
        """When set, nothing waits any more."""

    def change_rules(self, rule_of: Callable[[int], TopicBatching]) -> list[Segment]:
        """From now on these are the rules; what waited by the ones before."""
        waited = self.flush()
        self._rule_of = rule_of
        self._rules.clear()
        self._builders.clear()
        return waited

    def kind_of(self, topic: int) -> BatchingKind:
        """How a topic is batched."""
        return self._rule(topic).kind

    def _rule(self, topic: int) -> TopicBatching:
        rule = self._rules.get(topic)
        if rule is None:
            rule = self._rules[topic] = self._rule_of(topic)
        return rule

    def add(self, topic: int, segments: Iterable[Segment], now_ms: int) -> list[Segment]:
        """Add records of a topic; those (of any topic) that become ready with it, in order."""
        rule = self._rule(topic)
        if rule.kind is BatchingKind.NONE or self.draining:
            return list(segments)
        key = self._key(topic)
        builder = self._builders.get(key)
        if builder is None:
            builder = self._builders[key] = BatchBuilder(self._slab, rule.limits, keeps_whole=True)
        return [ready for segment in segments for batch in builder.add(segment, now_ms) for ready in batch]

    def _key(self, topic: int) -> int:
        return _COMBINED if self._rule(topic).kind is BatchingKind.COMBINED else topic

    def flush_of(self, topic: int) -> list[Segment]:
        """What waits in the batch that a topic's records go to."""
        builder = self._builders.get(self._key(topic))
        return builder.flush() if builder is not None else []

    @property
    def due_ms(self) -> int | None:
        """When a batch is due next."""
        return min((builder.due_ms for builder in self._builders.values() if builder.due_ms is not None), default=None)

    def flush_due(self, now_ms: int) -> list[Segment]:
        """What is due by now."""
        due = [
            builder for builder in self._builders.values() if builder.due_ms is not None and builder.due_ms <= now_ms
        ]
        return [segment for builder in due for segment in builder.flush()]

    def flush(self) -> list[Segment]:
        """Everything that waits."""
        return [segment for builder in self._builders.values() for segment in builder.flush()]
