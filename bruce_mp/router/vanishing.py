"""Topics that are missing from the metadata: gone, or only unknown to a broker that has just started?

A broker that comes back answers before it knows all topics (seen on Kafka 4 in KRaft mode).  To believe it would throw
away everything that is queued.  So a topic that was known once stays known, without leaders, until it has been missing
from every answer for a while; its messages wait meanwhile.  One that our user may not see any more is not gone: brokers
hide what is forbidden, and say so only when they are asked for it by name.

A topic that has fewer partitions than before is treated in the same way.  Kafka removes no partitions: either the
broker has not heard of an increase, or the topic was deleted and created again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from bruce_mp.router.cluster import ClusterView, TopicView

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["Vanishing"]

BELIEVED_AFTER_MS: Final = 10_000


def _shows_less(topic: TopicView | None, known: int) -> bool:
    return topic is None or len(topic.partitions) < known


class Vanishing:
    """Remembers since when which topics are missing.  Times in ms on one clock."""

    def __init__(self) -> None:
        self._missing_since: dict[bytes, int] = {}

    @property
    def missing(self) -> Iterable[bytes]:
        """The topics that should be asked for by name."""
        return self._missing_since.keys()

    def complete(self, view: ClusterView, known: Mapping[bytes, int], now_ms: int) -> ClusterView:
        """The view with the topics that are not believed to be gone; `known` has their numbers of partitions."""
        missing = [name for name, count in known.items() if _shows_less(view.topics.get(name), count)]
        self._missing_since = {name: self._missing_since.get(name, now_ms) for name in missing}
        kept = {
            name: TopicView(tuple(range(known[name])), {})
            for name, since in self._missing_since.items()
            if now_ms - since < BELIEVED_AFTER_MS or name in view.forbidden
        }
        return ClusterView(view.brokers, {**view.topics, **kept}, view.forbidden) if kept else view
