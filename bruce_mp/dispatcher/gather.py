"""Batching in the dispatcher: records wait here for company before their partition's queue is ready to send them.

PartitionKey messages of topics that are batched by themselves have a batch per topic, combined topics one batch all
together, and the others do not wait at all.  What a full batch decides is only *when* its records become ready: a
record batch then takes as much from a queue as fits, so that batches grow while answers are slow.

What is known of a topic is kept by its place in the topic table, so that it gives way to what is known of the next one
there: topics come and go as long as a dispatcher lives.  A topic of which something gathers keeps its place.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from bruce_mp.batching import BatchBuilder
from bruce_mp.config.topics import UNBATCHED, BatchingKind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from bruce_mp.config.topics import TopicBatching
    from bruce_mp.slab.file import Slab
    from bruce_mp.slab.runs import Segment

__all__ = ["Gathering"]

_COMBINED: Final = 0
"""The key of the batch of all combined topics; topics' own batches have the topic's place, and there is no place 0."""
_NOBODY: Final = (0, UNBATCHED)


class Gathering:
    """The batches of one dispatcher.  Times in ms on a steady clock.

    `rule_of` gives the rule of a topic by its number; KeyError if the topic is gone.
    """

    def __init__(self, slab: Slab, rule_of: Callable[[int], TopicBatching]) -> None:
        self._slab = slab
        self._places = slab.geometry.topics
        self._rule_of = rule_of
        self._rules: dict[int, tuple[int, TopicBatching]] = {}
        """By place: the topic that has it, and its rule."""
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
        owner, rule = self._rules.get(self._place(topic), _NOBODY)
        return rule if owner == topic else self._learn(topic)

    def _learn(self, topic: int) -> TopicBatching:
        """A topic that is new in its place; of one that is gone a late frame may come, of which nothing is held."""
        try:
            rule = self._rule_of(topic)
        except KeyError:
            return UNBATCHED
        place = self._place(topic)
        self._builders.pop(place, None)
        self._rules[place] = topic, rule
        return rule

    def _place(self, topic: int) -> int:
        return topic % self._places

    def add(self, topic: int, segments: Iterable[Segment], now_ms: int) -> list[Segment]:
        """Add records of a topic; those (of any topic) that become ready with it, in order."""
        rule = self._rule(topic)
        if rule.kind is BatchingKind.NONE or self.draining:
            return list(segments)
        key = self._key(topic, rule.kind)
        builder = self._builders.get(key)
        if builder is None:
            builder = self._builders[key] = BatchBuilder(self._slab, rule.limits, keeps_whole=True)
        return [ready for segment in segments for batch in builder.add(segment, now_ms) for ready in batch]

    def _key(self, topic: int, kind: BatchingKind) -> int:
        return _COMBINED if kind is BatchingKind.COMBINED else self._place(topic)

    def flush_of(self, topic: int) -> list[Segment]:
        """What waits in the batch that a topic's records go to."""
        kind = self._rule(topic).kind
        builder = None if kind is BatchingKind.NONE else self._builders.get(self._key(topic, kind))
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
