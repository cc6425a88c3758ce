"""Turns of brokers: while traffic is small, all combined topics prefer the same brokers for AnyPartition messages.

A wake-up of a dispatcher, a request and its response cost more than the messages of a small batch.  If each topic chose
its partition alone, each tick of the inputs would wake all dispatchers.  So the topics choose together.  In a turn each
broker has a number, and a topic sends to the broker for which this number divided by the topic's partitions there is
smallest.  With exponentially distributed numbers this is a weighted random choice (Efraimidis and Spirakis, 2006): each
partition of a topic has the same share, and topics with similar partitions choose the same broker.

The numbers come from a Kronecker sequence, because its shares are more even after a few turns than those of random
numbers.

Large traffic needs all brokers at once, so each topic then rotates alone.  Traffic is small while a batch of all topics
fits into one produce request.
"""

from __future__ import annotations

import math
from itertools import count
from typing import TYPE_CHECKING, Final

from bruce_mp.config.topics import find_limits

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator

    from bruce_mp.config.sections import Batching

__all__ = ["TURN_MS", "BrokerTurns"]

TURN_MS: Final = 500
"""Longest turn of a partition in a chunk that fills slowly, by chunk of its span, if batches take no longer.

A chunk with messages for several partitions stays in use while one of these is stuck.  So only lanes that take less
than a chunk in this time mix partitions: in 60 s, the silence after which a broker counts as failed, 1 MB each.
"""
SHORTEST_BATCH_MS: Final = 100
"""Shorter batches count as this long, so that traffic of more than ten requests a second is never small."""


class BrokerTurns:
    """The turns of brokers, which begin at multiples of `turn_ms`, and the bytes routed in them."""

    def __init__(self, batching: Batching, rng: random.Random) -> None:
        self._rng = rng
        self._steps = _irrationals()
        self._sequences: dict[int, tuple[float, float]] = {}
        """Start and step of each broker's sequence."""
        self._numbers: dict[int, float] = {}
        """The numbers of brokers in the present turn."""
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
        self._bytes += size

    @property
    def current(self) -> int | None:
        """The number of the present turn; None while traffic is large."""
        return self._turn if max(self._bytes, self._bytes_before) < self._max_bytes else None

    def number_of(self, broker: int) -> float:
        """Return the broker's number in the present turn."""
        number = self._numbers.get(broker)
        return self._compute(broker) if number is None else number

    def _compute(self, broker: int) -> float:
        if broker not in self._sequences:
            self._sequences[broker] = self._rng.random(), next(self._steps)
        start, step = self._sequences[broker]
        number = self._numbers[broker] = -math.log1p(-((start + self._turn * step) % 1))
        return number


def _irrationals() -> Iterator[float]:
    """Yield the square roots of the primes, which are linearly independent over the rational numbers."""
    primes: list[int] = []
    for number in count(2):
        if all(number % prime for prime in primes):
            primes.append(number)
            yield math.sqrt(number)
