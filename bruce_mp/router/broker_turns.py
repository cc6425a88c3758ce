"""Turns of brokers: while traffic is small, all combined topics prefer the same brokers for AnyPartition messages.

A wake-up of a dispatcher, a request and its response cost more than the messages of a small batch.  If each topic chose
its partition alone, each tick of the inputs would wake all dispatchers.  So the topics choose together.  In a turn each
broker has a number, and a topic sends to the broker for which this number divided by the topic's partitions there is
smallest.  With exponentially distributed numbers this is a weighted random choice (Efraimidis and Spirakis, 2006): each
partition of a topic has the same share, and topics with similar partitions choose the same broker.

Kafka places the leaders of a new topic on successive brokers.  Topics with one partition on each of `spread` successive
brokers take the first one of a common order, which begins at any broker and visits every `spread`th.  Few brokers then
serve all topics.  By symmetry the shares are equal if twice the number of brokers is a multiple of the spread.

The numbers and orders come from Kronecker sequences, because their shares are more even after a few turns than those of
random numbers.

Large traffic needs all brokers at once, so each topic then rotates alone.  Traffic is small while a batch of all topics
fits into one produce request.
"""

from __future__ import annotations

import math
from collections import Counter
from itertools import count
from typing import TYPE_CHECKING, Final

from bruce_mp.config.topics import find_limits

if TYPE_CHECKING:
    import random
    from collections.abc import Collection, Iterator

    from bruce_mp.config.sections import Batching
    from bruce_mp.router.cluster import ClusterView

__all__ = ["TURN_MS", "BrokerTurns"]

TURN_MS: Final = 500
"""Longest turn of a partition in a chunk that fills slowly, by chunk of its span, if batches take no longer.

A chunk with messages for several partitions stays in use while one of these is stuck.  So only lanes that take less
than a chunk in this time mix partitions: in 60 s, the silence after which a broker counts as failed, 1 MB each.
"""
SHORTEST_BATCH_MS: Final = 100
"""Shorter batches count as this long, so that traffic of more than ten requests a second is never small."""

_START: Final = -1
_DIRECTION: Final = -2


class BrokerTurns:
    """The turns of brokers, which begin at multiples of `turn_ms`, and the bytes routed in them."""

    def __init__(self, batching: Batching, rng: random.Random) -> None:
        self._rng = rng
        self._steps = _irrationals()
        self._sequences: dict[int, tuple[float, float]] = {}
        """Start and step of the sequence of each broker, and of `_START` and `_DIRECTION`."""
        self._numbers: dict[int, float] = {}
        """The numbers of brokers in the present turn."""
        self._circle: list[int] = []
        """All brokers, by id."""
        self._spread = 0
        """The number of successive brokers of most topics; 0 if no order gives equal shares."""
        self._ranks: dict[int, int] = {}
        """The brokers in the order of the present turn."""
        self._turn = 0
        self._bytes = self._bytes_before = 0
        """Bytes routed in the present turn, and in the one before."""
        self.apply_config(batching)

    def apply_config(self, batching: Batching) -> None:
        """Apply a reloaded config; a turn is as long as a batch of the combined topics, and at least `TURN_MS`."""
        limits = find_limits(batching, batching.combined.config)
        batch_ms = (limits.time_ms if limits is not None else None) or TURN_MS
        self.turn_ms = max(TURN_MS, batch_ms)
        self._max_bytes = batching.produce_request_data_limit * self.turn_ms // max(SHORTEST_BATCH_MS, batch_ms)

    def add(self, size: int, now_ms: int) -> None:
        """Count routed bytes, and begin the next turn if it is time."""
        turn = now_ms // self.turn_ms
        if turn != self._turn:
            self._bytes_before = self._bytes if turn == self._turn + 1 else 0
            self._turn, self._bytes = turn, 0
            self._numbers.clear()
            self._ranks.clear()
        self._bytes += size

    def apply_view(self, view: ClusterView) -> None:
        """Apply new metadata."""
        self._circle = sorted(view.brokers)
        self._ranks.clear()
        spreads = Counter(
            len(topic.leaders) for topic in view.topics.values() if len(topic.leaders) == len({*topic.leaders.values()})
        )
        spread = max(spreads, key=lambda size: (spreads[size], size), default=0)
        brokers = len(self._circle)
        self._spread = spread if 0 < spread < brokers and 2 * brokers % spread == 0 else 0

    def are_successive(self, brokers: Collection[int]) -> bool:
        """Return True if these brokers are `spread` successive ones, so that `rank_of` gives them equal shares."""
        if len(brokers) != self._spread:
            return False
        before = dict(zip(self._circle, self._circle[-1:] + self._circle, strict=False))
        return sum(before.get(broker) not in brokers for broker in brokers) == 1

    def rank_of(self, broker: int) -> int:
        """Return the broker's rank in the common order of the present turn."""
        if not self._ranks:
            self._ranks = self._rank()
        return self._ranks[broker]

    def _rank(self) -> dict[int, int]:
        circle, ranks = self._circle, dict[int, int]()
        at = int(self._element(_START) * len(circle))
        step = 1 if self._element(_DIRECTION) < 1 / 2 else -1
        while len(ranks) < len(circle):
            while circle[at % len(circle)] in ranks:
                at += step
            ranks[circle[at % len(circle)]] = len(ranks)
            at += step * self._spread
        return ranks

    @property
    def current(self) -> int | None:
        """The number of the present turn; None while traffic is large."""
        return self._turn if max(self._bytes, self._bytes_before) < self._max_bytes else None

    def number_of(self, broker: int) -> float:
        """Return the broker's number in the present turn."""
        number = self._numbers.get(broker)
        return self._compute(broker) if number is None else number

    def _compute(self, broker: int) -> float:
        number = self._numbers[broker] = -math.log1p(-self._element(broker))
        return number

    def _element(self, key: int) -> float:
        """Return the element of a sequence for the present turn, between 0 and 1."""
        if key not in self._sequences:
            self._sequences[key] = self._rng.random(), next(self._steps)
        start, step = self._sequences[key]
        return (start + self._turn * step) % 1


def _irrationals() -> Iterator[float]:
    """Yield the square roots of the primes, which are linearly independent over the rational numbers."""
    primes: list[int] = []
    for number in count(2):
        if all(number % prime for prime in primes):
            primes.append(number)
            yield math.sqrt(number)
