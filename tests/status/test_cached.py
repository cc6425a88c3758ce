from __future__ import annotations

from threading import Event, Thread

import pytest

from bruce_mp.status.cached import Cached


class Slow:
    """A reading that takes `took` seconds on a clock that otherwise stands still."""

    def __init__(self, took: float) -> None:
        self.took = took
        self.now = 100.0
        self.readings = 0

    def read(self) -> int:
        self.now += self.took
        self.readings += 1
        return self.readings

    def clock(self) -> float:
        return self.now


def test_a_fast_reading_is_never_cached() -> None:
    quick = Slow(0.1)
    sampled = Cached(quick.read, quick.clock)
    assert [sampled(), sampled()] == [1, 2]


def test_a_slow_reading_is_cached_for_a_while() -> None:
    slow = Slow(2.0)
    sampled = Cached(slow.read, slow.clock)
    assert sampled() == 1
    slow.now += 5.9
    assert sampled() == 1
    slow.now += 0.2
    assert sampled() == 2


def test_a_concurrent_caller_gets_the_previous_reading() -> None:
    begun, may_end = Event(), Event()
    readings = iter([1, 2])

    def read() -> int:
        reading = next(readings)
        if reading == 2:
            begun.set()
            assert may_end.wait(30)
        return reading

    sampled = Cached(read)
    assert sampled() == 1
    reader = Thread(target=sampled)
    reader.start()
    assert begun.wait(30)
    assert sampled() == 1
    may_end.set()
    reader.join(30)


def test_a_failed_reading_is_retried() -> None:
    answers = [7, 0]

    def read() -> int:
        return 14 // answers.pop()

    sampled = Cached(read)
    with pytest.raises(ZeroDivisionError):
        sampled()
    assert sampled() == 2
