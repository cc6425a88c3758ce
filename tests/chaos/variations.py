"""The load and settings of a chaos run, chosen by its seed."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from support.endless_senders import UNLIMITED
from support.traffic import Load

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Variation", "variation_of"]

SENDERS: Final = 3
BATCHING: Final[Mapping[str, Mapping[str, object]]] = {
    "none": {"batching.default.action": "none"},
    "per topic": {
        "batching.configs.some.time_ms": 50,
        "batching.default.action": "per_topic",
        "batching.default.config": "some",
    },
    "combined": {},
}
CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")
LARGEST: Final = {200: 1.0, 3000: 1.0, 30_000: 0.4}
"""Size of the largest values in bytes, and the fraction of the rate at which such messages are sent."""


@dataclass(frozen=True, slots=True)
class Variation:
    """One variation; `request` limits the keys and values in one request, `attempts` the failed ones (0: no limit)."""

    batching: str
    codec: str
    largest: int
    keyed: int
    max_in_flight: int
    request: str
    attempts: int

    def settings(self) -> dict[str, object]:
        return {
            **BATCHING[self.batching],
            "compression.configs.chosen.type": self.codec,
            "compression.default": "chosen",
            "delivery.max_in_flight": self.max_in_flight,
            "batching.produce_request_data_limit": self.request,
            "delivery.max_failed_attempts": self.attempts,
            "delivery.kafka_socket_timeout_s": 3,
            "input.unix_datagram.when_full": "block",
            "http.discard_report_interval_s": 86_400,  # one report has the whole run
        }

    def load(self, topics: tuple[str, ...], seed: int) -> Load:
        return Load(topics, SENDERS, UNLIMITED, smallest=20, largest=self.largest, keyed=self.keyed, seed=seed)

    def rate(self, rate: float) -> float:
        return rate * LARGEST[self.largest]


def variation_of(seed: int, codecs: tuple[str, ...] = CODECS) -> Variation:
    """Return the variation of a seed; `codecs` are those of the brokers."""
    rng = random.Random(f"variation {seed}")
    return Variation(
        batching=rng.choice(sorted(BATCHING)),
        codec=rng.choice(codecs),
        largest=rng.choice(sorted(LARGEST)),
        keyed=rng.choice((0, 30, 50, 100)),
        max_in_flight=rng.choice((1, 2, 5)),
        request=rng.choice(("0", "8k", "64k", "1m")),
        attempts=rng.choice((0, 0, 3)),
    )
