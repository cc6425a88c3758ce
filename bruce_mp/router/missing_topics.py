"""The grace period for topics that are missing from metadata.

A restarted broker responds before it knows all topics (seen on Kafka 4 in KRaft mode).  If the router trusted such a
response, it would discard all queued messages.  So a known topic stays known, without leaders, until every response of
the grace period lacks it; its messages wait.  A topic that the daemon's user may no longer see stays known: brokers
hide forbidden topics, and report them only in response to a request by name.

A topic with fewer partitions than before gets the same grace period.  Kafka removes no partitions: either the broker
does not know of an increase yet, or the topic was deleted and created again.  The router trusts the response on the
leaders of the partitions that it has, so that AnyPartition messages go on.  The other partitions have no leaders,
because a message bound to a partition that does not exist is never delivered.  PartitionKey messages wait.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from bruce_mp.router.cluster import ClusterView, TopicView

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["MissingTopics"]

BELIEVED_AFTER_MS: Final = 10_000


def _shows_less(topic: TopicView | None, known: int) -> bool:
    return topic is None or len(topic.partitions) < known


class MissingTopics:
    """The missing topics, each with the time at which it was first missing.  Times are in ms on one clock."""

    def __init__(self) -> None:
        self._missing_since: dict[bytes, int] = {}

    @property
    def missing(self) -> Iterable[bytes]:
        """The topics to request by name."""
        return self._missing_since.keys()

    def complete(self, view: ClusterView, known: Mapping[bytes, int], now_ms: int) -> ClusterView:
        """Return the view with the topics in their grace period; `known` maps names to partition counts."""
        missing = [name for name, count in known.items() if _shows_less(view.topics.get(name), count)]
        self._missing_since = {name: self._missing_since.get(name, now_ms) for name in missing}
        kept = {
            name: _completed(view.topics.get(name), known[name])
            for name, since in self._missing_since.items()
            if now_ms - since < BELIEVED_AFTER_MS or name in view.forbidden
        }
        return ClusterView(view.brokers, {**view.topics, **kept}, view.forbidden) if kept else view


def _completed(shown: TopicView | None, count: int) -> TopicView:
    """Return a topic with `count` partitions, and the leaders that the answer shows."""
    return TopicView(tuple(range(count)), {} if shown is None else shown.leaders, is_partial=True)
