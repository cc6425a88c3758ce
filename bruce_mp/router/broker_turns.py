"""Turns of brokers: while traffic is small, all *combined* topics prefer the same brokers for AnyPartition messages.

Combined topics share a batch at each broker (`batching.combined`), and
each broker has its own dispatcher.  For a small batch, most of the CPU time is spent to wake the dispatcher, to send
the request and to receive the response.  If each topic chose its partition independently, the messages that an input
hands over at one time would wake all dispatchers.  So all topics choose the same broker in a *turn*, a period of
`BrokerTurns.turn_ms`, and another broker in the next turn.

In a turn each broker has a *weight*.  A topic divides the weight of each broker by the number of the topic's partitions
that the broker leads, and sends to the broker with the smallest quotient.  With exponentially distributed weights this
is a weighted random choice (Efraimidis and Spirakis, 2006): all partitions of a topic get equal shares of the topic's
messages, and topics with similar numbers of partitions at the brokers choose the same broker.

For most topics a common order of the brokers replaces the weights, because Kafka places the leaders of a new topic on
successive brokers.  The *spread* is the number of leading brokers that most topics have.  If a topic has one partition
on each of `spread` successive brokers, it sends to the broker among them that is first in the common order.  The order
begins at a broker that changes with the turn, and visits every `spread`th broker, so that few brokers serve all topics.
If twice the number of brokers is a multiple of the spread, all brokers get equal shares of the traffic by symmetry;
otherwise no common order is used.

Weights and orders come from Kronecker sequences (the fractional parts of start + turn * irrational step), because these
spread the traffic of a few turns more evenly than random numbers.

Traffic is small while a batch of all topics fits into one produce request.  Large traffic needs all brokers at once, so
each topic then chooses its partitions in its own rotation (`Topic`).
"""

from __future__ import annotations

import math
from collections import Counter
from itertools import count
from typing import TYPE_CHECKING, Final

from bruce_mp.config.topics import find_limits

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator

    from bruce_mp.config.sections import Batching
    from bruce_mp.router.cluster import ClusterView

__all__ = ["TURN_MS", "BrokerTurns", "LeaderCounts"]

LeaderCounts = tuple[tuple[int, int], ...]
"""(broker id, number of partitions of a topic that the broker leads), ascending."""

TURN_MS: Final = 500
"""The shortest turn, and the time after which the further messages of a chunk go to another partition.  For a span of n
chunks, that time is n times as long.

A chunk with messages for several partitions stays in use while one of the partitions is stuck.  So only a chunk that
takes longer than `TURN_MS` to fill has messages for several partitions.  In the 60 s of silence after which a broker
counts as failed, an input fills at most 120 such chunks (1 MB) for one topic.
"""
SHORTEST_BATCH_MS: Final = 100
"""A shorter batching time counts as this time, so that traffic of more than ten requests a second is never small."""

_START: Final = -1
_DIRECTION: Final = -2
"""Keys in `BrokerTurns._sequences` of the sequences that decide the start and the direction of the common order."""


class BrokerTurns:
    """The present turn, and each topic's order of brokers in it.  Turns begin at multiples of `turn_ms`."""

    def __init__(self, batching: Batching, rng: random.Random) -> None:
        self._rng = rng
        self._steps = _irrationals()
        self._sequences: dict[int, tuple[float, float]] = {}
        """(start, step) of each Kronecker sequence, by broker id, `_START` or `_DIRECTION`."""
        self._weights: dict[int, float] = {}
        """The weight of each broker in the present turn, computed when it is first needed."""
        self._orders: dict[LeaderCounts, list[int]] = {}
        """A cache of the results of `order_of` in the present turn; many topics have equal leader counts."""
        self._circle: list[int] = []
        """The ids of all brokers, ascending.  The first broker is the successor of the last broker."""
        self._spread = 0
        """The spread (see the module head); 0 if no common order is used."""
        self._ranks: dict[int, int] = {}
        """Each broker's place in the common order of the present turn; empty until it is needed."""
        self._turn = 0
        self._bytes = self._previous_bytes = 0
        """Bytes routed in the present turn, and in the previous turn."""
        self.current_turn: int | None = 0
        """The number of the present turn; None while traffic is large."""
        self.apply_config(batching)

    def apply_config(self, batching: Batching) -> None:
        """Apply a reloaded config; a turn lasts as long as a batch of combined topics may wait, at least `TURN_MS`."""
        limits = find_limits(batching, batching.combined.config)
        batch_ms = (limits.time_ms if limits is not None else None) or TURN_MS
        self.turn_ms = max(TURN_MS, batch_ms)
        # Traffic is small if a turn has fewer bytes than a full produce request for each batch of the turn would have.
        self._max_small_bytes = batching.produce_request_data_limit * self.turn_ms // max(SHORTEST_BATCH_MS, batch_ms)

    def record_routed(self, size: int, now_ms: int) -> None:
        """Count routed bytes, and update `current_turn`."""
        turn = now_ms // self.turn_ms
        if turn != self._turn:
            self._previous_bytes = self._bytes if turn == self._turn + 1 else 0
            self._turn, self._bytes = turn, 0
            self._weights.clear()
            self._ranks.clear()
            self._orders.clear()
        self._bytes += size
        self.current_turn = turn if max(self._bytes, self._previous_bytes) < self._max_small_bytes else None

    def apply_view(self, view: ClusterView) -> None:
        self._circle = sorted(view.brokers)
        self._ranks.clear()
        self._orders.clear()
        leaders_of_topics = (topic.leaders.values() for topic in view.topics.values())
        # The number of topics by their number of leaders, without topics with two partitions on one broker.
        topic_counts = Counter(len(leaders) for leaders in leaders_of_topics if len(leaders) == len({*leaders}))
        spread = max(topic_counts, key=lambda leader_count: (topic_counts[leader_count], leader_count), default=0)
        broker_count = len(self._circle)
        has_equal_shares = 0 < spread < broker_count and 2 * broker_count % spread == 0
        self._spread = spread if has_equal_shares else 0

    def order_of(self, leader_counts: LeaderCounts) -> list[int]:
        """Return the brokers of a topic in the order in which it prefers them in the present turn."""
        order = self._orders.get(leader_counts)
        if order is None:
            order = self._orders[leader_counts] = self._determine_order(leader_counts)
        return order

    def _determine_order(self, leader_counts: LeaderCounts) -> list[int]:
        if self._are_successive(leader_counts):
            self._ranks = self._ranks or self._order_brokers()
            return sorted([broker for broker, _ in leader_counts], key=self._ranks.__getitem__)
        quotients = [(self._weight_of(broker) / partition_count, broker) for broker, partition_count in leader_counts]
        return [broker for _, broker in sorted(quotients)]

    def _are_successive(self, leader_counts: LeaderCounts) -> bool:
        """Return True if a topic has one partition on each of `spread` successive brokers; False if `spread` is 0."""
        brokers = {broker for broker, partition_count in leader_counts if partition_count == 1}
        if not len(brokers) == len(leader_counts) == self._spread:
            return False
        predecessors = dict(zip(self._circle, self._circle[-1:] + self._circle, strict=False))
        group_starts = [broker for broker in brokers if predecessors.get(broker) not in brokers]
        return len(group_starts) == 1

    def _order_brokers(self) -> dict[int, int]:
        """Return each broker's place in an order that visits every `spread`th broker of the circle.

        The Kronecker sequences choose the first broker and the direction.  If a step ends at a broker with a place, the
        order continues with the next broker without a place.
        """
        circle, ranks = self._circle, dict[int, int]()
        index = int(self._number_in_turn(_START) * len(circle))
        step = 1 if self._number_in_turn(_DIRECTION) < 0.5 else -1
        while len(ranks) < len(circle):
            while circle[index % len(circle)] in ranks:
                index += step
            ranks[circle[index % len(circle)]] = len(ranks)
            index += step * self._spread
        return ranks

    def _weight_of(self, broker: int) -> float:
        if broker not in self._weights:
            # The inverse of the exponential distribution function turns a uniform number into an exponential one.
            self._weights[broker] = -math.log1p(-self._number_in_turn(broker))
        return self._weights[broker]

    def _number_in_turn(self, key: int) -> float:
        """Return the number of a Kronecker sequence for the present turn, at least 0 and less than 1."""
        if key not in self._sequences:
            self._sequences[key] = self._rng.random(), next(self._steps)
        start, step = self._sequences[key]
        return (start + self._turn * step) % 1


def _irrationals() -> Iterator[float]:
    """Yield the square roots of the primes, which are independent over the rationals: so no two sequences correlate."""
    primes: list[int] = []
    for number in count(2):
        if all(number % prime for prime in primes):
            primes.append(number)
            yield math.sqrt(number)
