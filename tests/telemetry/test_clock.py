"""The steady clock."""

from __future__ import annotations

import time

from bruce_mp.telemetry.clock import SteadyClock


def test_moment_is_due_at_the_first_ms_that_has_reached_it() -> None:
    clock = SteadyClock()
    assert clock.ms_of(10.0) == 10_000 + clock.offset_ms
    assert clock.ms_of(10.0001) == 10_001 + clock.offset_ms


def test_time_of_a_moment_is_never_reached_before_it() -> None:
    clock = SteadyClock()
    moment = time.monotonic() + 0.0055
    while clock.now_ms() < clock.ms_of(moment):
        pass
    assert time.monotonic() >= moment
