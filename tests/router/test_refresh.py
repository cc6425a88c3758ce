"""The periodic refresh of the metadata."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from bruce_mp.config.model import Config
from bruce_mp.config.sections import Delivery, Kafka
from bruce_mp.router.process import _RouterProcess

if TYPE_CHECKING:
    from collections.abc import Callable


class Timers:
    """Stands for the event loop."""

    def __init__(self) -> None:
        self.set: list[tuple[float, Callable[[], None]]] = []
        self.cancelled = 0

    def call_later(self, delay: float, call: Callable[[], None]) -> SimpleNamespace:
        self.set.append((delay, call))
        return SimpleNamespace(cancel=self._cancel)

    def _cancel(self) -> None:
        self.cancelled += 1


@pytest.fixture
def timers() -> Timers:
    return Timers()


def router(timers: Timers, minutes: int, wishes: list[None]) -> Any:
    """The part of a router process that refreshes metadata."""
    delivery = Delivery(metadata_refresh_interval_min=minutes)
    return SimpleNamespace(
        _config=Config(kafka=Kafka(bootstrap_servers=("localhost:9092",)), delivery=delivery),
        _refresh_timer=None,
        _rng=random.Random(1),
        _loop=timers,
        _request_refresh=lambda: wishes.append(None),
    )


def test_refresh_delay_varies_from_80_to_120_percent_of_the_interval(timers: Timers) -> None:
    wishes: list[None] = []
    some = router(timers, 10, wishes)
    for _ in range(200):
        _RouterProcess._schedule_refresh(some)
    delays = [delay for delay, _ in timers.set]
    assert 480 <= min(delays) < 500
    assert 700 < max(delays) <= 720
    assert timers.cancelled == 199  # only one is waiting at any time
    timers.set[-1][1]()
    assert len(wishes) == 1


def test_interval_0_disables_the_refresh(timers: Timers) -> None:
    _RouterProcess._schedule_refresh(router(timers, 0, []))
    assert timers.set == []
